"""The evaluation of a run's checkpoints while it is trained, in a process of its own.

A watch shares nothing with the trainer but the run's folder. It reads committed
checkpoints and never deletes or locks any, so it cannot hold training up.
"""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment
from pipeline.output import say
from pipeline.store.errors import UsageError
from trainer.errors import PreemptedError, StalledError
from trainer.evaluation.evaluator import Evaluator, make_episode_bars, make_evaluators
from trainer.nn.networks import Params
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import Evaluation, EvaluationSettings, read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, read_run
from trainer.signals import handle_signals

# Attempts to read a checkpoint that its trainer may be deleting, and seconds between
# two, in which a deletion ends.
_ATTEMPTS = 3
_DELETION_S = 2.0


@dataclass(frozen=True)
class Patience:
    """Settings of a watch: the seconds between looks, and until it gives up.

    Attributes:
        poll_s: Seconds between two looks.
        timeout_s: Seconds without a new checkpoint after which training counts as
            stalled; time spent on evaluating does not count.
    """

    poll_s: float = 10.0
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        for option, seconds in (("--poll", self.poll_s), ("--timeout", self.timeout_s)):
            # Written as "not >", so that NaN is refused as well.
            if not seconds > 0:
                raise UsageError(
                    f"{option}: expected more than 0, got {seconds:g} seconds; raise it"
                )


def watch_run(
    folder: RunFolder,
    settings: EvaluationSettings,
    *,
    steps: Sequence[int] | Literal["all"] = "all",
    tasks: Sequence[int] = (),
    environment: TaskEnvironment | None = None,
    candidates: int | None = None,
    patience: Patience | None = None,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates each checkpoint once it is committed, until the run's last step.

    A checkpoint that is deleted before its turn is named and left out. Evaluations that
    are recorded already, with as many episodes and the same seed, are not played again,
    so that a watch that was stopped continues where it was.

    Args:
        folder: Folder of the run, RUN; it need not exist yet.
        settings: Settings of the evaluation.
        steps: Checkpoints to evaluate: ``"all"``, or their steps. With steps, the watch
            ends when each was evaluated or is past and has no checkpoint.
        tasks: Task numbers, as in ``evaluate_run``.
        environment: Environment to act in; None for that of the run.
        candidates: Actions that are drawn at a step, as in ``evaluate_run``.
        patience: Seconds between looks, and until the watch gives up.
        console: Console for results and warnings; None shows nothing.

    Returns:
        The evaluations that were made, in order.

    Raises:
        StalledError: If no new checkpoint comes within ``patience.timeout_s``.
        PreemptedError: If SIGTERM came; finished evaluations are recorded.
        DataFormatError: If the environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        UsageError: If a number is out of range, or the agent draws no candidates.
    """
    console = Console(quiet=True) if console is None else console
    patience = Patience() if patience is None else patience
    evaluations: list[Evaluation] = []
    with _sigterm_raises(folder), contextlib.ExitStack() as stack:
        folder_watch = _FolderWatch(folder, patience, console)
        folder_watch.wait_for_first()
        run = read_run(folder)
        last = run.config.trainer.steps
        wanted = None if steps == "all" else {int(step) for step in steps}
        if wanted is not None and (not wanted or max(wanted) > last):
            raise UsageError(
                f"steps: expected some of 1 to {last:,}, the last step of {folder}, "
                f"got {sorted(wanted) or 'none'}; choose among these"
            )
        evaluators = make_evaluators(
            folder,
            run,
            tasks,
            settings=settings,
            environment=environment,
            candidates=candidates,
            console=console,
        )
        work = _Work(folder, run, evaluators, stack, console)
        done: set[int] = set()
        while True:
            committed = folder_watch.steps()
            newest = max(committed, default=0)
            for step in sorted((wanted or set()) - done - set(committed)):
                if step < newest:
                    say(
                        console,
                        f"step {step:,}: has no checkpoint any more, left out",
                    )
                    done.add(step)
            waiting = set(committed) - done
            waiting &= waiting if wanted is None else wanted
            if waiting:
                # The oldest first, because the trainer deletes in that order.
                evaluations += work.evaluate(min(waiting))
                done.add(min(waiting))
                # Patience is for the trainer: evaluating takes none of it.
                folder_watch.restart_wait()
            elif newest >= last or (wanted is not None and done >= wanted):
                return evaluations
            else:
                folder_watch.sleep()


class _Work:
    """Evaluates checkpoints in every task, leaving out what is recorded already."""

    def __init__(
        self,
        folder: RunFolder,
        run: Run,
        evaluators: list[Evaluator],
        stack: contextlib.ExitStack,
        console: Console,
    ) -> None:
        self._folder = folder
        self._run = run
        self._evaluators = evaluators
        self._stack = stack
        self._console = console
        self._started: set[Evaluator] = set()
        self._recorded = {known.key for known in read_evaluations(folder)}

    def evaluate(self, step: int) -> list[Evaluation]:
        """Evaluates a checkpoint; returns the evaluations that were made."""
        missing = {
            evaluator: [
                seed
                for seed in self._run.config.trainer.seed_range
                if evaluator.key(step, seed) not in self._recorded
            ]
            for evaluator in self._evaluators
        }
        if not any(missing.values()):
            return []
        params = restore_unless_deleted(self._folder, step, self._run, self._console)
        evaluations: list[Evaluation] = []
        for evaluator, seeds in missing.items():
            if params is None or not seeds:
                continue
            # Entered when it first has work, and kept to the end of the watch:
            # environments take seconds to start.
            if evaluator not in self._started:
                self._started.add(self._stack.enter_context(evaluator))
            with make_episode_bars(self._console) as progress:
                evaluations += evaluator.evaluate(step, params, seeds, progress)
        return evaluations


class _FolderWatch:
    """Looks for committed checkpoints, and gives up if none comes for too long."""

    def __init__(self, folder: RunFolder, patience: Patience, console: Console) -> None:
        self._folder = folder
        self._patience = patience
        self._console = console
        self._names: set[str] = set()
        self._steps: list[int] = []
        self._newest: int | None = None
        self.restart_wait()

    def restart_wait(self) -> None:
        """Starts the wait for a new checkpoint again."""
        self._since = time.monotonic()

    def steps(self) -> list[int]:
        """Lists the committed steps, ascending."""
        folder = self._folder.checkpoints
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        # Nothing is opened unless a name has changed, since opening takes time. On gs://
        # names do not tell: a step's folder exists before the step is whole.
        if names == self._names and not self._folder.remote:
            return self._steps
        if names:
            # A reader remembers the steps that it has seen, so a new one is opened.
            with CheckpointReader(self._folder) as checkpoints:
                self._steps = checkpoints.steps()
        self._names = names
        newest = max(self._steps, default=None)
        if newest != self._newest:
            self._newest = newest
            self.restart_wait()
        return self._steps

    def wait_for_first(self) -> None:
        """Waits for the first checkpoint."""
        # Before it, `run.json` may still be replaced by another start.
        if not self.steps():
            exists = self._folder.exists()
            say(
                self._console,
                f"waiting for {'the first checkpoint of ' if exists else ''}"
                f"{self._folder}" + ("" if exists else ": there is no run yet"),
            )
        while not self.steps():
            self.sleep()

    def sleep(self) -> None:
        """Waits for the next look.

        Raises:
            StalledError: If no new checkpoint has come for too long.
        """
        patience = self._patience
        waited = time.monotonic() - self._since
        if waited >= patience.timeout_s:
            last = "at all" if self._newest is None else f"after step {self._newest:,}"
            raise StalledError(
                f"{self._folder}: no checkpoint {last} within "
                f"{patience.timeout_s / 60:g} minutes; training has stopped or is "
                "slower than that. Look at its output, then repeat this command, if "
                "need be with a longer --timeout"
            )
        time.sleep(min(patience.poll_s, patience.timeout_s - waited))


def restore_unless_deleted(
    folder: RunFolder, step: int, run: Run, console: Console
) -> Params | None:
    """Restores a step's parameters, unless its trainer has deleted it.

    Args:
        folder: Folder of the run, RUN.
        step: Step of the checkpoint.
        run: The run.
        console: Console for the news that the step was deleted.

    Returns:
        Parameters with a leading axis ``Q``; None if the step was deleted.

    Raises:
        StorageError: If the step cannot be read and was not deleted.
    """
    for attempt in range(_ATTEMPTS):
        with CheckpointReader(folder) as checkpoints:
            try:
                return checkpoints.restore_params(
                    step, run.agent(), seeds=run.config.trainer.seeds
                )
            # The handler of SIGTERM raises this wherever the process is.
            except PreemptedError:
                raise
            # Files that vanish while they are read make Orbax raise errors of many
            # classes. The step's folder may outlive them, so only an error that stays
            # is no deletion.
            except Exception:
                exists = (folder.checkpoints / str(step)).exists()
                if exists and attempt == _ATTEMPTS - 1:
                    raise
        if not exists:
            break
        time.sleep(_DELETION_S)
    say(console, f"step {step:,}: was deleted before it could be evaluated, left out")
    return None


@contextlib.contextmanager
def _sigterm_raises(folder: RunFolder) -> Iterator[None]:
    """Turns SIGTERM into an exception, so that worker processes are ended, too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise PreemptedError(
            f"{folder}: stopped watching; finished evaluations are recorded, run the "
            "same command to go on"
        )

    with handle_signals(stop, signal.SIGTERM):
        yield
