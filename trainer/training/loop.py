"""The training loop, readable top to bottom."""

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import jax
from etils import epath
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pipeline.store.errors import DataFormatError
from trainer.agents.base import Metrics
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, gather_on_device, make_feed
from trainer.data.table import RowTable
from trainer.errors import PreemptedError, StorageError, TrainingDivergedError
from trainer.parallel import agreement
from trainer.parallel.mesh import batch_sharding, local_part, make_mesh, replicated
from trainer.runs.checkpoints import Checkpoints
from trainer.runs.folder import CHECKPOINTS, RUN_FILE, FolderLike, open_folder
from trainer.runs.run import Run, write_run
from trainer.signals import handled
from trainer.step.call import CALLS_AHEAD, TrainCall, make_train_call
from trainer.step.state import init_state, step_of
from trainer.training.metrics import combine, nonfinite, over_estimated, records
from trainer.training.metrics_writer import MetricsWriter
from trainer.training.profiling import trace_calls

# Untrained networks' values are of size 1, however small the rewards are.
_LEAST_RANGE = 10.0


def train(
    run: Run,
    rows: RowTable | ResidentRows,
    out: FolderLike,
    *,
    console: Console,
    profile: str | None = None,
) -> int:
    """Trains a run to its last step, going on from its latest checkpoint if any.

    Args:
        run: What to train.
        rows: Of its task.
        out: RUN, on disk or gs://; made if it does not exist.
        console: For progress.
        profile: Folder for a trace of a few calls; None for none.

    Returns:
        The step reached.

    Raises:
        DataFormatError: If the folder holds another run.
        StorageError: If what it writes cannot be written.
        TrainingDivergedError: If a loss is not finite, or values are above all
            returns by more than is allowed; nothing of it is saved.
        PreemptedError: If SIGTERM came; the last step is saved.
    """
    config = run.config.trainer
    seeds = tuple(config.seed_range)
    low, high = run.facts.return_range(run.config.agent.discount)
    limit = high + config.max_over_estimation * max(high - low, _LEAST_RANGE)

    # -- Where we are: refused before anything is built ------------------------
    agreement.check_alike(run.to_json())
    agent = run.agent()
    mesh = make_mesh(
        run.config.mesh,
        seeds=config.seeds,
        batch_size=config.batch_size,
        microbatches=config.microbatches,
    )
    folder = open_folder(out)
    agreement.check_one_folder(folder / RUN_FILE)
    checkpoints = Checkpoints(
        folder,
        keep=config.keep_checkpoints,
        keep_every=config.keep_every,
        writable=True,
    )
    latest = checkpoints.latest()
    agreement.check_alike({"the latest checkpoint": latest})
    if latest is not None:
        checkpoints.check_run(latest, run)

    # -- State ------------------------------------------------------------------
    state = init_state(agent, mesh, seeds)
    call = make_train_call(
        agent, mesh, seeds=config.seeds, microbatches=config.microbatches
    )

    # -- Data ------------------------------------------------------------------
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
    on_mesh = (
        _to_mesh((rows.observations, rows.actions), replicated(mesh))
        if on_device and isinstance(rows, RowTable)
        else None
    )
    console.print(
        f"{len(jax.devices())} {jax.devices()[0].platform} device(s) of "
        f"{jax.process_count()} process(es), mesh {dict(mesh.shape)}; rows are "
        f"gathered on the {'device' if on_device else 'host'}, {_describe_rows(rows)}"
    )

    held, rows_held = part
    for line in agreement.introduce(
        f"seeds {seeds[held][0]} to {seeds[held][-1]}, rows {rows_held.start} to "
        f"{rows_held.stop - 1} of each batch"
    ):
        console.print(line)

    # -- Going on --------------------------------------------------------------
    if latest is not None:
        state = checkpoints.restore(
            latest, state, feed, updates_per_call=config.updates_per_call
        )
        console.print(f"going on from the checkpoint of step {latest}")
    elif (folder / RUN_FILE).exists():
        console.print("an earlier start here reached no checkpoint: starting anew")
    checkpoints.prepare(state)
    step = step_of(state)
    writer: MetricsWriter | None = None
    if agreement.is_primary():
        with _writing(folder):
            write_run(folder, run)
            writer = MetricsWriter(folder, resume_step=step)

    # -- Loop ------------------------------------------------------------------
    compiled: TrainCall | None = None
    pending: list[Metrics] = []
    window_start, blocked_s = time.perf_counter(), 0.0
    started, logged = window_start, step

    def log() -> None:
        nonlocal window_start, blocked_s, logged
        if not pending:
            return
        metrics = combine(pending)
        now = time.perf_counter()
        elapsed = now - window_start
        facts = {
            "step": step,
            "time_s": now - started,
            "updates_per_s": (step - logged) / elapsed,
            "input_blocked_share": blocked_s / elapsed,
        }
        if writer is not None:
            with _writing(folder):
                writer.write(records(metrics, seeds=seeds, facts=facts))
        wrong, hint = _diverged(metrics, high=high, limit=limit)
        if wrong:
            good = checkpoints.latest()
            raise TrainingDivergedError(
                f"{wrong}, between steps {logged} and {step}; the last good checkpoint "
                f"is {'none' if good is None else f'step {good}'} in "
                f"{checkpoints.folder}. Lower agent.learning_rate or "
                "agent.temperature, or look at over_estimation in the metrics" + hint
            )
        bar.update(task, loss=float(metrics.mean["loss"].mean()))
        pending.clear()
        window_start, blocked_s, logged = now, 0.0, step

    def save() -> None:
        log()  # Nothing of a run that diverged is ever saved.
        if writer is not None:
            with _writing(folder):
                writer.sync()  # No step is there without the records up to it.
        if step not in checkpoints.steps():
            checkpoints.save(step, state, feed, run)

    # A call waits for all processes, so that none is further ahead than this.
    stopping = agreement.Stop(ahead=(CALLS_AHEAD + 1) * config.updates_per_call)

    try:
        with (
            _progress(console) as bar,
            _stop_requested() as stop,
            trace_calls(profile) as after_call,
        ):
            task = bar.add_task("train", total=config.steps, completed=step, loss=0.0)
            while step < config.steps and not stopping.reached(step, told=bool(stop)):
                # The call below returns at once: while the devices work on it, the
                # next batches are drawn and on their way.
                waited = time.perf_counter()
                batches = _to_mesh(next(feed), batch_sharding(mesh))
                blocked_s += time.perf_counter() - waited
                if compiled is None:
                    compiled = _compile(call, (state, on_mesh, batches), console)
                    window_start, blocked_s = time.perf_counter(), 0.0
                with _only_sent_on_purpose():
                    state, metrics = compiled(state, on_mesh, batches)
                step += config.updates_per_call
                pending.append(metrics)
                after_call(metrics.mean["loss"])
                if len(pending) > CALLS_AHEAD:
                    jax.block_until_ready(pending[-1 - CALLS_AHEAD].mean["loss"])
                bar.update(task, completed=step)
                if step % config.log_every == 0:
                    log()
                if step % config.checkpoint_every == 0:
                    save()
            save()
            checkpoints.wait()
    finally:
        try:
            if writer is not None:
                with _writing(folder):
                    writer.close()
        finally:
            checkpoints.close()
    if step < config.steps:
        raise PreemptedError(
            f"stopped at step {step} of {config.steps} and saved it; run the same "
            "command to go on"
        )
    return step


def check_folder(out: FolderLike) -> None:
    """Refuses a folder that holds something else than this run.

    Args:
        out: RUN, as given.

    Raises:
        DataFormatError: If it is a file, or a folder of something else.
    """
    folder = open_folder(out)
    if folder.is_file():
        raise DataFormatError(
            f"{folder}: expected a folder for the run, found a file; give another --out"
        )
    if (
        folder.is_dir()
        and not (folder / RUN_FILE).exists()
        and not all(_left_by_a_start(path) for path in folder.iterdir())
    ):
        raise DataFormatError(
            f"{folder}: is not empty and holds no run; give another --out"
        )


def _diverged(metrics: Metrics, *, high: float, limit: float) -> tuple[str, str]:
    """What of these figures ends a run, and what else to look at; empty if nothing."""
    bad = nonfinite(metrics)
    if bad:
        return f"{', '.join(bad)} became NaN or infinite", ""
    too_high = over_estimated(metrics, limit=limit)
    if not too_high:
        return "", ""
    values = " and ".join(f"{name} {value:.4g}" for name, value in too_high.items())
    return (
        f"{values} is far above any return, {high:.4g} at most",
        "; trainer.max_over_estimation is how far is too far",
    )


def _left_by_a_start(path: epath.Path) -> bool:
    """Whether it is there before run.json is: a start may be killed in between."""
    if path.name == CHECKPOINTS:
        return path.is_dir() and not any(path.iterdir())
    return path.name.startswith(RUN_FILE)  # It is written beside its place first.


def _compile(call: Any, arguments: tuple[Any, ...], console: Console) -> TrainCall:
    started = time.perf_counter()
    compiled: TrainCall = call.lower(*arguments).compile()
    # Compilers are not equally quick, and what joins processes waits 30 s at most.
    agreement.wait_for_all("compiled")
    console.print(f"compiled in {time.perf_counter() - started:.1f} s")
    return compiled


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


def _only_sent_on_purpose() -> AbstractContextManager[None]:
    """Refuses values that would move to or from a device without being sent to it.

    They would be sent anew with every call, and a fetched one waited for. A CPU device
    shares the host's memory: there, nothing that is fetched can be refused.
    """
    return jax.transfer_guard("disallow")


@contextmanager
def _writing(folder: FolderLike) -> Iterator[None]:
    """Says what it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: the run's metrics could not be written ({error}). Make room "
            "there, then run the same command to go on from the latest checkpoint"
        ) from error


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3g}"),
        TimeRemainingColumn(),
        console=console,
        # Without a terminal the log lines of metrics.jsonl are the progress.
        disable=not console.is_terminal,
    )


@contextmanager
def _stop_requested() -> Iterator[list[int]]:
    """Collects SIGTERM (and the first Ctrl-C) instead of dying of it."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    with handled(remember, signal.SIGTERM, signal.SIGINT):
        yield received
