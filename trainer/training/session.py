"""The session of a run: its mesh, call, feed, checkpoints, records and lock.

Opening a session refuses everything that can be refused before the first update:
another run in the folder, an impossible mesh, processes whose settings differ.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grain
import jax
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from pipeline.output import say
from pipeline.store.errors import DataFormatError
from trainer.agents.base import Agent, Metrics
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, gather_on_device, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.data.held_out import HeldOutBatches, HeldOutSource
from trainer.data.table import RowTable
from trainer.errors import RunLockedError, StorageError
from trainer.parallel import agreement
from trainer.parallel.mesh import (
    assemble_batch,
    batch_sharding,
    find_local_part,
    make_mesh,
    replicated,
)
from trainer.runs.checkpoints import CheckpointWriter
from trainer.runs.folder import (
    CHECKPOINTS,
    EVALUATIONS_FILE,
    LOCK_FILE,
    RUN_FILE,
    RunFolder,
    check_writable,
)
from trainer.runs.lock import RunLock, lock_run
from trainer.runs.names import describe_seeds
from trainer.runs.resumption import check_same_run
from trainer.runs.retention import Retention
from trainer.runs.run import Run, read_run, write_run
from trainer.step.call import TrainCall, make_train_call
from trainer.step.state import TrainState, init_state, read_step
from trainer.step.validate import ValidationCall, make_validation_call
from trainer.tracking.tracker import Json
from trainer.tracking.trackers import Trackers


@dataclass
class Validation:
    """The means to measure a state on held-out windows.

    Attributes:
        source: Held-out batches by step.
        call: Call that measures a state; the loop replaces it by its compiled form.
    """

    source: HeldOutSource
    call: ValidationCall


@dataclass(frozen=True)
class Session:
    """A run, its folder and its devices, from the first update to the last.

    Attributes:
        run: Run that is trained.
        mesh: Mesh of all devices.
        call: Training call, not compiled.
        rows: Rows on the devices to gather from; None where the host gathers.
        feed: Iterator over the batches of each call, from the next step on.
        checkpoints: Writer of the run's checkpoints.
        records: Trackers that records go to; None in all processes but the first.
        lock: Lock on the folder; None in all processes but the first.
        folder: Folder of the run, RUN.
        validation: Held-out windows and the call that measures on them; None for none.
    """

    run: Run
    mesh: Mesh
    call: TrainCall
    rows: Any
    feed: grain.DatasetIterator
    checkpoints: CheckpointWriter
    records: Trackers | None
    lock: RunLock | None
    folder: RunFolder
    validation: Validation | None

    def next_batches(self) -> Any:
        """Draws the batches of the next call and sends them to the devices."""
        return _send_to_mesh(next(self.feed), self.mesh, self.run)

    def validate(self, step: int, state: TrainState) -> Metrics:
        """Measures a state on the held-out windows of its step, and waits for it.

        Args:
            step: Updates done.
            state: State after them.

        Returns:
            Metrics as NumPy arrays ``[Q]`` or ``[Q, K + 1]``.
        """
        assert self.validation is not None
        measured = self.validation.call(state, self.draw_held_out(step))
        metrics: Metrics = jax.device_get(measured)
        return metrics

    def draw_held_out(self, step: int) -> HeldOutBatches:
        """Draws the held-out windows of a step and sends them to the devices."""
        assert self.validation is not None
        drawn: HeldOutBatches = _send_to_mesh(
            self.validation.source.at(step), self.mesh, self.run
        )
        return drawn

    def record(self, records: list[Json]) -> None:
        """Writes the records of a log point, in the first process."""
        if self.records is not None:
            with _explain_write_errors(self.folder):
                self.records.write(records)

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving a step unless it is saved already; waits for records only.

        Args:
            step: Updates done.
            state: State after them.

        Raises:
            StorageError: If this step, or the one before, cannot be written, or another
                process has taken over the folder.
        """
        # Two trainers in one folder would delete each other's checkpoints, so ownership
        # is looked at directly before each save.
        if self.lock is not None:
            self.lock.check()
        # A checkpoint must not exist without the records up to its step: a resumed run
        # would leave a gap in them.
        if self.records is not None:
            with _explain_write_errors(self.folder):
                self.records.sync()
        if step not in self.checkpoints.steps():
            self.checkpoints.save(step, state, self.feed, self.run)

    def close(self) -> None:
        """Closes records and checkpoints, which waits for saves.

        Raises:
            StorageError: If a save or the records cannot be written, unless that was
                raised before.
        """
        # The stack runs backwards, whatever fails on the way: checkpoints are closed
        # first, and the lock is released only when nothing is being written any more.
        with ExitStack() as stack:
            if self.lock is not None:
                stack.callback(self.lock.release)
            stack.enter_context(self.explaining_takeover())
            stack.callback(self.checkpoints.close)
            if self.records is not None:
                with _explain_write_errors(self.folder):
                    self.records.close()

    @contextmanager
    def explaining_takeover(self) -> Iterator[None]:
        """Replaces a storage error by that of a takeover, if one was its cause."""
        # A process that takes over deletes what this one was about to write; advice to
        # make room would mislead.
        try:
            yield
        except StorageError:
            if self.lock is not None:
                self.lock.check()
            raise


def open_session(
    run: Run,
    rows: RowTable | ResidentRows,
    folder: RunFolder,
    *,
    held_out: RowTable | None = None,
    take_over: bool = False,
    console: Console,
) -> tuple[Session, TrainState]:
    """Opens the session of a run, from its latest checkpoint if there is one.

    All processes of a run must call this.

    Args:
        run: Run to train.
        rows: Rows of the run's task.
        folder: Folder of the run, RUN; made if it does not exist.
        held_out: Rows to measure on; None for no measurements.
        take_over: Whether to replace a trainer that may still be running there.
        console: Console for the processes' introductions and the step of the start.

    Returns:
        The session, which the caller closes, and the state that training starts from.

    Raises:
        DataFormatError: If the folder holds another run.
        HostsError: If the settings of processes differ.
        RunLockedError: If another trainer is at work in the folder.
        StorageError: If a checkpoint cannot be read, or the run cannot be written.
    """
    config = run.config.trainer
    seeds = tuple(config.seed_range)

    # Whatever can be refused is refused before arrays are allocated or files written.
    agreement.check_alike(run.to_json())
    agent = run.agent()
    mesh = make_mesh(
        run.config.mesh,
        seeds=config.seeds,
        batch_size=config.batch_size,
        microbatches=config.microbatches,
        width=run.config.agent.width,
    )
    agreement.check_one_folder(folder.path / RUN_FILE)
    with ExitStack() as on_error:
        lock = _take_lock(folder, take_over=take_over, console=console)
        if lock is not None:
            on_error.callback(lock.release)
        retention = Retention(
            config.keep_checkpoints, config.keep_every, config.checkpoint_every
        )
        checkpoints = CheckpointWriter(folder, retention)
        latest = checkpoints.latest()
        agreement.check_alike({"the latest checkpoint": latest})
        saved: Run | None = None
        where = f"{checkpoints.folder}/{latest}"
        if latest is not None:
            saved = checkpoints.read_run(latest)
        elif folder.read(EVALUATIONS_FILE).data:
            # The checkpoints were deleted. Results of another run would be taken for
            # results of this one.
            saved, where = read_run(folder), f"{folder}/{EVALUATIONS_FILE}"
        if saved is not None:
            if saved.fingerprint == rows.former_fingerprint:
                # A run of an earlier version goes on under that version's fingerprint,
                # which keys its random streams.
                rows = rows.with_fingerprint(saved.fingerprint)
                run = replace(run, fingerprint=saved.fingerprint)
            check_same_run(saved, run, where=where)

        state = init_state(agent, mesh, seeds)
        call = make_train_call(
            agent, mesh, seeds=config.seeds, microbatches=config.microbatches
        )
        feed, rows_on_mesh = _open_feed(run, agent, rows, mesh, console)

        if latest is not None:
            state = checkpoints.restore(
                latest, state, feed, updates_per_call=config.updates_per_call
            )
            say(console, _describe_resumption(latest, config.steps))
        elif folder.exists():
            say(console, "an earlier start here reached no checkpoint: starting anew")
        # Memory for saves is allocated now. For a large state that takes many seconds,
        # which the first save would hold up training for.
        checkpoints.prepare(state)
        records: Trackers | None = None
        if agreement.is_primary():
            with _explain_write_errors(folder):
                write_run(folder, run)
                records = Trackers(
                    folder, run, resume_step=read_step(state), console=console
                )
        session = Session(
            run,
            mesh,
            call,
            rows_on_mesh,
            feed,
            checkpoints,
            records,
            lock,
            folder,
            _open_validation(run, agent, held_out, mesh),
        )
        on_error.pop_all()
        return session, state


def _describe_resumption(latest: int, steps: int) -> str:
    if latest >= steps:
        return (
            f"already finished: {steps} updates were asked for, and the latest "
            f"checkpoint is of step {latest}; raise --trainer.steps to train on"
        )
    return f"going on from the checkpoint of step {latest}"


def _take_lock(
    folder: RunFolder, *, take_over: bool, console: Console
) -> RunLock | None:
    """Takes the lock in process 0; if the lock is refused, all processes raise."""
    # If only process 0 raised, the others would wait for it until they time out.
    lock: RunLock | None = None
    refusal = ""
    if agreement.is_primary():
        try:
            lock = lock_run(folder, take_over=take_over, console=console)
        except RunLockedError as error:
            refusal = str(error)
        except OSError as error:
            raise StorageError(
                f"{folder}: cannot be locked against other trainers ({error}); make "
                "room there, check the permissions, then run the same command"
            ) from error
    agreement.wait_for_all("locked")
    refusal = agreement.gather_facts({"refusal": refusal})[0]["refusal"]
    if refusal:
        raise RunLockedError(refusal)
    return lock


def check_folder(folder: RunFolder) -> None:
    """Refuses a folder that holds anything but a run.

    Args:
        folder: Folder of the run, RUN.

    Raises:
        DataFormatError: If the folder holds something else.
        StorageError: If files cannot be written there.
        UsageError: If the path leads to or through a file.
    """
    path = folder.path
    check_writable(path)
    if (
        path.is_dir()
        and not folder.exists()
        and not all(_may_be_left_over(file) for file in path.iterdir())
    ):
        raise DataFormatError(
            f"{path}: expected an empty folder or that of a run, got one that is not "
            "empty and holds no run; give another --out"
        )


def _may_be_left_over(path: epath.Path) -> bool:
    """Says whether a start that was killed before run.json existed may leave a path."""
    if path.name == CHECKPOINTS:
        return path.is_dir() and not any(path.iterdir())
    # Files are written under a name of their own first, then renamed.
    return path.name.startswith((RUN_FILE, LOCK_FILE))


def _open_feed(
    run: Run,
    agent: Agent[Any],
    rows: RowTable | ResidentRows,
    mesh: Mesh,
    console: Console,
) -> tuple[grain.DatasetIterator, Any]:
    """Opens the feed of this process, and puts rows on the devices if those gather."""
    config = run.config.trainer
    seeds = tuple(config.seed_range)
    part = find_local_part(mesh, seeds=config.seeds, batch_size=config.batch_size)
    on_device = _gathers_on_device(run.config.feed, rows)
    source = BatchSource(
        rows,
        agent.sampler,
        seeds=seeds,
        batch_size=config.batch_size,
        steps=config.steps,
        gather=not on_device,
        part=part,
    )
    feed = make_feed(source, run.config.feed, updates_per_call=config.updates_per_call)
    # The source has refused to gather on a device what is not all in memory.
    rows_on_mesh = (
        _copy_to_mesh((rows.observations, rows.actions), replicated(mesh))
        if on_device and isinstance(rows, RowTable)
        else None
    )
    say(
        console,
        f"{len(jax.devices())} {jax.devices()[0].platform} device(s) of "
        f"{jax.process_count()} process(es), mesh {dict(mesh.shape)}; rows are "
        f"gathered on the {'device' if on_device else 'host'}, {_describe_rows(rows)}",
    )
    held, rows_held = part
    for line in agreement.describe_processes(
        f"{describe_seeds(seeds[held])}, rows {rows_held.start} to "
        f"{rows_held.stop - 1} of each batch"
    ):
        say(console, line)
    return feed, rows_on_mesh


def _gathers_on_device(config: FeedConfig, rows: RowTable | ResidentRows) -> bool:
    """Decides for all processes whether devices look up rows; all must call this."""
    # Devices of two machines may have memory of two sizes. If some processes gathered
    # on devices and some on hosts, they would compile programs that never meet.
    answers = agreement.gather_facts({"on_device": gather_on_device(config, rows)})
    return all(answer["on_device"] for answer in answers)


def _open_validation(
    run: Run, agent: Agent[Any], held_out: RowTable | None, mesh: Mesh
) -> Validation | None:
    config = run.config.trainer
    if held_out is None or config.validate_every is None:
        return None
    source = HeldOutSource(
        held_out,
        agent.sampler,
        seeds=config.seed_range,
        batch_size=config.batch_size,
        batches=config.validation_batches,
        part=find_local_part(mesh, seeds=config.seeds, batch_size=config.batch_size),
    )
    return Validation(source, make_validation_call(agent, mesh, seeds=config.seeds))


def _describe_rows(rows: RowTable | ResidentRows) -> str:
    if isinstance(rows, RowTable):
        return "all of them in memory"
    schedule = rows.schedule
    return (
        f"{schedule.resident} of {schedule.blocks} blocks in memory "
        f"({rows.nbytes / 2**20:,.0f} MiB), one changed every {schedule.swap_every} "
        "steps"
    )


def _send_to_mesh(batches: Any, mesh: Mesh, run: Run) -> Any:
    """Sends this process's part of batches to its devices."""
    # `device_put` takes whole arrays, and with several processes none has them.
    if jax.process_count() == 1:
        return jax.device_put(batches, batch_sharding(mesh))
    config = run.config.trainer
    return assemble_batch(
        mesh, batches, seeds=config.seeds, batch_size=config.batch_size
    )


def _copy_to_mesh(values: Any, placed: jax.sharding.NamedSharding) -> Any:
    """Sends arrays that every process has whole to all devices."""
    if jax.process_count() == 1:
        return jax.device_put(values, placed)
    return jax.tree.map(
        lambda value: jax.make_array_from_process_local_data(placed, value), values
    )


@contextmanager
def _explain_write_errors(folder: RunFolder) -> Iterator[None]:
    """Turns an operating system's error into one that names the folder.

    Raises:
        StorageError: If the metrics cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: the run's metrics could not be written ({error}). Make room "
            "there, then run the same command to go on from the latest checkpoint"
        ) from error
