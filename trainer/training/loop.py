"""The training loop, which reads from top to bottom."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from types import FrameType
from typing import Any

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pipeline.output import say
from pipeline.store.errors import EXIT_INTERRUPTED
from trainer.data.block_window import ResidentRows
from trainer.data.table import RowTable
from trainer.errors import PreemptedError, TrainingDivergedError
from trainer.parallel import agreement
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run
from trainer.signals import handle_signals
from trainer.step.call import CALLS_AHEAD, TrainCall
from trainer.step.state import TrainState, read_step
from trainer.training.log_line import describe_point
from trainer.training.meter import Meter, find_divergence
from trainer.training.metrics import make_records
from trainer.training.profiling import trace_calls
from trainer.training.session import Session, open_session


def train(
    run: Run,
    rows: RowTable | ResidentRows,
    folder: RunFolder,
    *,
    console: Console,
    held_out: RowTable | None = None,
    profile: str | None = None,
    take_over: bool = False,
) -> int:
    """Trains a run to its last step, resuming from its latest checkpoint if any.

    Args:
        run: Run to train.
        rows: Rows of the run's task.
        folder: Folder of the run, RUN; made if it does not exist.
        console: Console for progress.
        held_out: Rows to measure on every ``trainer.validate_every`` updates; training
            does not depend on them.
        profile: Folder for a trace of a few calls; None for no trace.
        take_over: Whether to replace a trainer that may still be running there.

    Returns:
        The step that was reached.

    Raises:
        DataFormatError: If the folder holds another run.
        RunLockedError: If another trainer is at work in the folder.
        StorageError: If checkpoints or metrics cannot be written.
        TrainingDivergedError: If a loss is not finite, or values are above or below all
            returns by more than is allowed; the diverged state is not saved.
        PreemptedError: If a signal to stop came; the last step is saved.
    """
    config = run.config.trainer
    session, state = open_session(
        run, rows, folder, held_out=held_out, take_over=take_over, console=console
    )
    step = read_step(state)
    meter = Meter(step)
    validate_every = None if session.validation is None else config.validate_every
    compiled: TrainCall | None = None
    # All processes must stop after the same call. A call waits for all of them, so that
    # none can be further ahead than this when one is told to stop.
    stopping = agreement.Stop(ahead=(CALLS_AHEAD + 1) * config.updates_per_call)
    with (
        closing(session),
        session.explaining_takeover(),
        _make_bar(console) as bar,
        _collect_signals(folder, step) as stop,
        trace_calls(profile, console=console) as after_call,
    ):
        task = bar.add_task("train", total=config.steps, completed=step, loss=0.0)
        while step < config.steps and not stopping.reached(step, told=stop.requested):
            # The training call below returns at once. While the devices work on it, the
            # next batches are drawn and sent.
            with meter.waiting_for_input():
                batches = session.next_batches()
            # Compiled here and not before the loop, since it takes batches to do so.
            if compiled is None:
                compiled = _compile(
                    session.call, (state, session.rows, batches), console
                )
                if session.validation is not None:
                    # Compiled now, so that the first measurement need not wait for it.
                    arguments = (state, session.draw_held_out(step))
                    session.validation.call = _compile(
                        session.validation.call,
                        arguments,
                        console,
                        what="the measurement on held-out data",
                    )
                meter.restart()
            with _forbid_implicit_transfers():
                state, metrics = compiled(state, session.rows, batches)
            step += config.updates_per_call
            meter.add(step, metrics)
            after_call(metrics.mean["loss"])
            bar.update(task, completed=step)
            saves = step % config.checkpoint_every == 0
            validates = validate_every is not None and step % validate_every == 0
            # Every save is a log point, so that a diverged state is found before it is
            # saved, and the records on disk reach the checkpoint.
            if saves or validates or step % config.log_every == 0:
                measured = state if validates else None
                bar.update(task, loss=_log(session, meter, console, measured))
            if saves:
                session.save(step, state)
                stop.saves.append(step)
        # Logged first, because logging raises if the run has diverged.
        _log(session, meter, console)
        session.save(step, state)
        session.checkpoints.wait()
    if step < config.steps:
        raise PreemptedError(
            f"{folder}: stopped at step {step} of {config.steps} and saved it; run the "
            "same command to go on"
        )
    return step


def _log(
    session: Session,
    meter: Meter,
    console: Console,
    measured: TrainState | None = None,
) -> float | None:
    """Records the metrics since the last log point, and ends a run that has diverged.

    Without a terminal, and so without a progress bar, a line is printed as well.

    Args:
        session: Session of the run.
        meter: Meter that has gathered the metrics.
        console: Console for the line.
        measured: State to measure on held-out windows; None for no measurement.

    Returns:
        Loss averaged over updates and seeds; None if there was no call.

    Raises:
        TrainingDivergedError: If training diverged; the message gives the interval of
            steps and the last good checkpoint.
    """
    run, logged = session.run, meter.logged
    taken = meter.take()
    if taken is None:
        return None
    metrics, point = taken
    seeds = tuple(run.config.trainer.seed_range)
    held_out = None
    if measured is not None:
        held_out = session.validate(point["step"], measured)
        point["validation_s"] = meter.restart()
    # Recorded before the check: the metrics of a diverged run are what people look at.
    session.record(make_records(metrics, seeds=seeds, point=point, held_out=held_out))
    diverged = find_divergence(
        metrics,
        run.facts.return_range(run.config.agent.discount),
        max_over_estimation=run.config.trainer.max_over_estimation,
    )
    if diverged is not None:
        wrong, hint = diverged
        good = session.checkpoints.last_good()
        raise TrainingDivergedError(
            f"{wrong}, between steps {logged} and {point['step']}; the last good "
            f"checkpoint is {'none' if good is None else f'step {good}'} in "
            f"{session.checkpoints.folder}. Lower agent.learning_rate or "
            f"agent.temperature, or look at value and critic in the metrics{hint}"
        )
    loss = float(metrics.mean["loss"].mean())
    if not console.is_terminal:
        say(console, describe_point(point, loss, steps=run.config.trainer.steps))
    return loss


def _compile(
    call: Any, arguments: tuple[Any, ...], console: Console, *, what: str = "the update"
) -> Any:
    """Compiles a call for its arguments, and prints what is compiled and how long."""
    # Wide networks compile for minutes.
    say(console, f"compiling {what}")
    started = time.perf_counter()
    compiled = call.lower(*arguments).compile()
    # Processes compile at different speeds, and their first collective operation waits
    # for 30 s at most.
    agreement.wait_for_all("compiled")
    say(console, f"compiled in {time.perf_counter() - started:.1f} s")
    return compiled


def _forbid_implicit_transfers() -> AbstractContextManager[None]:
    """Refuses transfers between host and devices that the code does not spell out."""
    # An argument on the host would be sent again with every call, and a value that is
    # fetched would be waited for; neither shows but in the speed. On a CPU device only
    # the former is refused, because it shares the host's memory.
    return jax.transfer_guard("disallow")


def _make_bar(console: Console) -> Progress:
    """Makes the progress bar of training."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3g}", markup=False),
        TimeRemainingColumn(),
        console=console,
        # Without a terminal, `_log` prints a line at each log point.
        disable=not console.is_terminal,
    )


class _Stop:
    """Notes signals: the first asks to save and stop, a second Ctrl-C stops at once.

    Args:
        folder: Folder of the run, RUN.
        step: Step that training starts from.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        self._folder = folder
        self.requested = False
        # Steps whose saving was started. Saves run in the background, one at a time, so
        # only the last but one is known to be finished.
        self.saves = [step, step]

    def note(self, number: int, frame: FrameType | None) -> None:
        """Notes a signal, or ends this process if it is a second Ctrl-C."""
        if self.requested and number == signal.SIGINT:
            line = (
                f"error: stopped at once; {self._folder} has a checkpoint of step "
                f"{self.saves[-2]}, what came after it may be lost; run the same "
                "command to go on\n"
            )
            # The signal may have interrupted code that holds locks, such as Rich's or
            # logging's, so nothing is called that could wait for one.
            os.write(2, line.encode())
            os._exit(EXIT_INTERRUPTED)
        self.requested = True


@contextmanager
def _collect_signals(folder: RunFolder, step: int) -> Iterator[_Stop]:
    """Collects signals to stop, which would otherwise end the process at once."""
    # SIGTERM comes from launchers, SIGHUP from a terminal that is closed.
    stop = _Stop(folder, step)
    with handle_signals(stop.note, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        yield stop
