"""What a run is trained with, put together and taken apart again.

Everything that can be refused is refused here, before the first update: another run in
the folder, a mesh that cannot be, processes that differ.
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
from trainer.data.held_out import HeldOutBatches, HeldOutSource
from trainer.data.table import RowTable
from trainer.errors import RunLockedError, StorageError
from trainer.parallel import agreement
from trainer.parallel.mesh import (
    batch_sharding,
    local_part,
    make_mesh,
    replicated,
)
from trainer.runs.checkpoints import CheckpointWriter
from trainer.runs.folder import CHECKPOINTS, LOCK_FILE, RUN_FILE, RunFolder
from trainer.runs.lock import RunLock, lock_run
from trainer.runs.resumption import check_same_run
from trainer.runs.run import Run, write_run
from trainer.step.call import TrainCall, make_train_call
from trainer.step.state import TrainState, init_state, step_of
from trainer.step.validate import ValidationCall, make_validation_call
from trainer.tracking.tracker import Json
from trainer.tracking.trackers import Trackers


@dataclass
class Validation:
    """What a state is measured with on held-out windows.

    Attributes:
        source: Batches by step.
        call: That measures; compiled by whoever calls it first.
    """

    source: HeldOutSource
    call: ValidationCall


@dataclass(frozen=True)
class Session:
    """A run, its folder and its devices, from the first update to the last.

    Attributes:
        run: What is trained.
        mesh: Devices.
        call: Training call, not compiled.
        rows: Rows to gather from on the devices; None where the host gathers.
        feed: Batches of one call after another, from the next step on.
        checkpoints: Of the run's folder.
        records: Where figures go; None in all processes but the first.
        lock: On the folder, likewise.
        folder: RUN.
        validation: What measures the state on held-out windows; None for nothing.
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
        return _to_mesh(next(self.feed), batch_sharding(self.mesh))

    def validate(self, step: int, state: TrainState) -> Metrics:
        """Measures a state on the held-out windows of its step, and waits for it.

        Returns:
            NumPy metrics, ``[Q]`` or ``[Q, K + 1]`` each.
        """
        assert self.validation is not None
        measured = self.validation.call(state, self.draw_held_out(step))
        metrics: Metrics = jax.device_get(measured)
        return metrics

    def draw_held_out(self, step: int) -> HeldOutBatches:
        """Draws the held-out windows of a step and sends them to the devices."""
        assert self.validation is not None
        drawn: HeldOutBatches = _to_mesh(
            self.validation.source.at(step), batch_sharding(self.mesh)
        )
        return drawn

    def record(self, records: list[Json]) -> None:
        """Writes records of a log point, if this process is the one that does."""
        if self.records is not None:
            with _writing(self.folder):
                self.records.write(records)

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving a step, unless it is there. Waits for nothing but records.

        Raises:
            StorageError: If this step, or the one before, cannot be written, or another
                process has taken over.
        """
        if self.lock is not None:
            self.lock.check()
        if self.records is not None:
            with _writing(self.folder):
                self.records.sync()  # No step is there without the records up to it.
        if step not in self.checkpoints.steps():
            self.checkpoints.save(step, state, self.feed, self.run)

    def close(self) -> None:
        """Closes records and checkpoints, which waits for saves.

        Raises:
            StorageError: If something cannot be written, and none has said so before.
        """
        with ExitStack() as last:
            if self.lock is not None:
                last.callback(self.lock.release)
            last.enter_context(self.owned())
            last.callback(self.checkpoints.close)
            if self.records is not None:
                with _writing(self.folder):
                    self.records.close()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Says so where what failed did so because another process has taken over.

        It has cleared away what this one was about to write.
        """
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
    """Puts together what a run is trained with, from its latest checkpoint if any.

    All processes of a run must call this.

    Args:
        run: What to train.
        rows: Of its task.
        folder: RUN; made if it does not exist.
        held_out: Rows to measure on and not to train on, if that is asked for.
        take_over: Whether to take the place of a trainer that may still run there.
        console: For who is there, and where training goes on.

    Returns:
        The session, to be closed, and the state of the step it starts from.

    Raises:
        DataFormatError: If the folder holds another run.
        HostsError: If processes differ.
        RunLockedError: If another trainer is at work in the folder.
        StorageError: If what is there cannot be read, or the run cannot be written.
    """
    config = run.config.trainer
    seeds = tuple(config.seed_range)

    # What is refused is refused before anything is built.
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
        lock = _lock(folder, take_over=take_over, console=console)
        if lock is not None:
            on_error.callback(lock.release)
        checkpoints = CheckpointWriter(
            folder, keep=config.keep_checkpoints, keep_every=config.keep_every
        )
        latest = checkpoints.latest()
        agreement.check_alike({"the latest checkpoint": latest})
        if latest is not None:
            saved = checkpoints.read_run(latest)
            if saved.fingerprint == rows.former_fingerprint:
                # A run of an earlier version, which draws by what that called the data.
                rows = rows.with_fingerprint(saved.fingerprint)
                run = replace(run, fingerprint=saved.fingerprint)
            check_same_run(saved, run, where=f"{checkpoints.folder}/{latest}")

        state = init_state(agent, mesh, seeds)
        call = make_train_call(
            agent, mesh, seeds=config.seeds, microbatches=config.microbatches
        )
        feed, rows_on_mesh = _open_feed(run, agent, rows, mesh, console)

        if latest is not None:
            state = checkpoints.restore(
                latest, state, feed, updates_per_call=config.updates_per_call
            )
            say(console, f"{_how_it_goes_on(latest, config.steps)} {latest}")
        elif folder.exists():
            say(console, "an earlier start here reached no checkpoint: starting anew")
        checkpoints.prepare(state)
        records: Trackers | None = None
        if agreement.is_primary():
            with _writing(folder):
                write_run(folder, run)
                records = Trackers(
                    folder, run, resume_step=step_of(state), console=console
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


def _how_it_goes_on(latest: int, steps: int) -> str:
    if latest >= steps:
        return f"already finished, {steps} updates were asked for: there is step"
    return "going on from the checkpoint of step"


def _lock(folder: RunFolder, *, take_over: bool, console: Console) -> RunLock | None:
    """Takes the lock in process 0; a refusal is raised by all of them."""
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
                "room there and look who may write, then run the same command"
            ) from error
    agreement.wait_for_all("locked")
    refusal = agreement.gather({"refusal": refusal})[0]["refusal"]
    if refusal:
        raise RunLockedError(refusal)
    return lock


def check_folder(folder: RunFolder) -> None:
    """Refuses a folder that holds something else than this run.

    Args:
        folder: RUN, as given.

    Raises:
        DataFormatError: If it is a file, or a folder of something else.
    """
    path = folder.path
    if path.is_file():
        raise DataFormatError(
            f"{path}: expected a folder for the run, found a file; give another --out"
        )
    if (
        path.is_dir()
        and not folder.exists()
        and not all(_left_by_a_start(file) for file in path.iterdir())
    ):
        raise DataFormatError(
            f"{path}: is not empty and holds no run; give another --out"
        )


def _left_by_a_start(path: epath.Path) -> bool:
    """Whether it is there before run.json is: a start may be killed in between."""
    if path.name == CHECKPOINTS:
        return path.is_dir() and not any(path.iterdir())
    # They are written beside their places first.
    return path.name.startswith((RUN_FILE, LOCK_FILE))


def _open_feed(
    run: Run,
    agent: Agent[Any],
    rows: RowTable | ResidentRows,
    mesh: Mesh,
    console: Console,
) -> tuple[grain.DatasetIterator, Any]:
    """This process's part of all batches, and rows on the devices to gather from."""
    config = run.config.trainer
    seeds = tuple(config.seed_range)
    part = local_part(mesh, seeds=config.seeds, batch_size=config.batch_size)
    on_device = gather_on_device(run.config.feed, rows)
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
    # The source has refused a device for what is not all in memory.
    rows_on_mesh = (
        _to_mesh((rows.observations, rows.actions), replicated(mesh))
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
    for line in agreement.introduce(
        f"seeds {seeds[held][0]} to {seeds[held][-1]}, rows {rows_held.start} to "
        f"{rows_held.stop - 1} of each batch"
    ):
        say(console, line)
    return feed, rows_on_mesh


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
        part=local_part(mesh, seeds=config.seeds, batch_size=config.batch_size),
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


def _to_mesh(values: Any, placed: jax.sharding.NamedSharding) -> Any:
    """Sends what this process holds of each array to its devices."""
    if jax.process_count() == 1:
        return jax.device_put(values, placed)
    return jax.tree.map(
        lambda value: jax.make_array_from_process_local_data(placed, value), values
    )


@contextmanager
def _writing(folder: RunFolder) -> Iterator[None]:
    """Says what it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: the run's metrics could not be written ({error}). Make room "
            "there, then run the same command to go on from the latest checkpoint"
        ) from error
