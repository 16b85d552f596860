"""The training loop, readable top to bottom."""

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
from trainer.signals import handled
from trainer.step.call import CALLS_AHEAD, TrainCall
from trainer.step.state import TrainState, step_of
from trainer.training.log_line import describe_point
from trainer.training.meter import Meter, find_divergence
from trainer.training.metrics import records
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
    """Trains a run to its last step, going on from its latest checkpoint if any.

    Args:
        run: What to train.
        rows: Of its task.
        folder: RUN; made if it does not exist.
        console: For progress.
        held_out: Rows to measure on every ``trainer.validate_every`` updates; what is
            trained does not depend on them.
        profile: Folder for a trace of a few calls; None for none.
        take_over: Whether to take the place of a trainer that may still run there.

    Returns:
        The step reached.

    Raises:
        DataFormatError: If the folder holds another run.
        RunLockedError: If another trainer is at work in the folder.
        StorageError: If what it writes cannot be written.
        TrainingDivergedError: If a loss is not finite, or values are above all
            returns by more than is allowed; nothing of it is saved.
        PreemptedError: If a signal to stop came; the last step is saved.
    """
    config = run.config.trainer
    session, state = open_session(
        run, rows, folder, held_out=held_out, take_over=take_over, console=console
    )
    step = step_of(state)
    meter = Meter(step)
    every = None if session.validation is None else config.validate_every
    compiled: TrainCall | None = None
    # A call waits for all processes, so that none is further ahead than this.
    stopping = agreement.Stop(ahead=(CALLS_AHEAD + 1) * config.updates_per_call)
    with (
        closing(session),
        session.owned(),
        _progress(console) as bar,
        _stop_requested(folder, step) as stop,
        trace_calls(profile) as after_call,
    ):
        task = bar.add_task("train", total=config.steps, completed=step, loss=0.0)
        while step < config.steps and not stopping.reached(step, told=stop.requested):
            # The call below returns at once: while the devices work on it, the next
            # batches are drawn and on their way.
            with meter.waiting_for_input():
                batches = session.next_batches()
            if compiled is None:
                compiled = _compile(
                    session.call, (state, session.rows, batches), console
                )
                if session.validation is not None:
                    given = (state, session.draw_held_out(step))
                    session.validation.call = _compile(
                        session.validation.call, given, console, what="validation "
                    )
                meter.restart()
            with _only_sent_on_purpose():
                state, metrics = compiled(state, session.rows, batches)
            step += config.updates_per_call
            meter.add(step, metrics)
            after_call(metrics.mean["loss"])
            bar.update(task, completed=step)
            saves = step % config.checkpoint_every == 0
            validates = every is not None and step % every == 0
            if saves or validates or step % config.log_every == 0:
                measured = state if validates else None
                bar.update(task, loss=_log(session, meter, console, measured))
            if saves:
                session.save(step, state)
                stop.saves.append(step)
        _log(session, meter, console)  # Nothing of a run that diverged is ever saved.
        session.save(step, state)
        session.checkpoints.wait()
    if step < config.steps:
        raise PreemptedError(
            f"stopped at step {step} of {config.steps} and saved it; run the same "
            "command to go on"
        )
    return step


def _log(
    session: Session,
    meter: Meter,
    console: Console,
    measured: TrainState | None = None,
) -> float | None:
    """Records what came since the last log point, and ends a run that diverged.

    Where there is no terminal, and so no bar, a line says how far training is.

    Args:
        session: Of the run.
        meter: That gathered it.
        console: For the line.
        measured: State to measure on held-out windows as well.

    Returns:
        Loss averaged over updates and seeds; None if nothing came.

    Raises:
        TrainingDivergedError: If a loss is not finite, or values are beyond reach.
    """
    run, logged = session.run, meter.logged
    taken = meter.take()
    if taken is None:
        return None
    metrics, facts = taken
    seeds = tuple(run.config.trainer.seed_range)
    held_out = None
    if measured is not None:
        held_out = session.validate(facts["step"], measured)
        facts["validation_s"] = meter.restart()
    session.record(records(metrics, seeds=seeds, facts=facts, held_out=held_out))
    diverged = find_divergence(
        metrics,
        run.facts.return_range(run.config.agent.discount),
        max_over_estimation=run.config.trainer.max_over_estimation,
    )
    if diverged is not None:
        wrong, hint = diverged
        good = session.checkpoints.last_good()
        raise TrainingDivergedError(
            f"{wrong}, between steps {logged} and {facts['step']}; the last good "
            f"checkpoint is {'none' if good is None else f'step {good}'} in "
            f"{session.checkpoints.folder}. Lower agent.learning_rate or "
            f"agent.temperature, or look at over_estimation in the metrics{hint}"
        )
    loss = float(metrics.mean["loss"].mean())
    if not console.is_terminal:
        say(console, describe_point(facts, loss, steps=run.config.trainer.steps))
    return loss


def _compile(
    call: Any, arguments: tuple[Any, ...], console: Console, *, what: str = ""
) -> Any:
    started = time.perf_counter()
    compiled = call.lower(*arguments).compile()
    # Compilers are not equally quick, and what joins processes waits 30 s at most.
    agreement.wait_for_all("compiled")
    say(console, f"{what}compiled in {time.perf_counter() - started:.1f} s")
    return compiled


def _only_sent_on_purpose() -> AbstractContextManager[None]:
    """Refuses values that would move to or from a device without being sent to it.

    They would be sent anew with every call, and a fetched one waited for. A CPU device
    shares the host's memory: there, nothing that is fetched can be refused.
    """
    return jax.transfer_guard("disallow")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3g}", markup=False),
        TimeRemainingColumn(),
        console=console,
        # Without a terminal each log point is a line.
        disable=not console.is_terminal,
    )


class _Stop:
    """What signals ask for: to save and stop, and a second Ctrl-C to stop at once.

    Args:
        folder: RUN.
        step: That training goes on from.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        self._folder = folder
        self.requested = False
        # Steps that were begun to be saved: the one before the last is there.
        self.saves = [step, step]

    def note(self, number: int, frame: FrameType | None) -> None:
        """Notes a signal, or ends this process."""
        if self.requested and number == signal.SIGINT:
            line = (
                f"error: stopped at once; {self._folder} has a checkpoint of step "
                f"{self.saves[-2]}, what came after it may be lost; run the same "
                "command to go on\n"
            )
            # Whatever the process is about holds locks: nothing else is called.
            os.write(2, line.encode())
            os._exit(EXIT_INTERRUPTED)
        self.requested = True


@contextmanager
def _stop_requested(folder: RunFolder, step: int) -> Iterator[_Stop]:
    """Collects signals to stop instead of dying of them: of launchers and terminals."""
    stop = _Stop(folder, step)
    with handled(stop.note, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        yield stop
