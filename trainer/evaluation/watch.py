"""Evaluates a run's checkpoints while it is trained, from a process of its own.

Shares nothing with the trainer but the run's folder: it reads committed checkpoints,
takes none away and waits for nothing but them, so it cannot hold training up.
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
from trainer.evaluation.evaluator import Evaluator, episode_bars, make_evaluators
from trainer.nn.networks import Params
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import Evaluation, EvaluationSettings, read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, read_run
from trainer.signals import handled

_ATTEMPTS = 3
_DELETION_S = 2.0


@dataclass(frozen=True)
class Patience:
    """How a folder is watched.

    Attributes:
        poll_s: Seconds between two looks.
        timeout_s: Seconds without a new checkpoint after which training counts as
            stalled. Time spent on evaluating is not counted.
    """

    poll_s: float = 10.0
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("poll_s", "timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(
                    f"{name}: expected more than 0, got {getattr(self, name)}"
                )


def watch_run(
    folder: RunFolder,
    settings: EvaluationSettings,
    *,
    steps: Sequence[int] | Literal["all"] = "all",
    tasks: Sequence[int] = (),
    environment: TaskEnvironment | None = None,
    patience: Patience | None = None,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates each checkpoint once it is committed, until the run's last step.

    The oldest goes first: the trainer deletes in that order. A checkpoint deleted
    before its turn is named and passed over. What ``evaluations.jsonl`` holds already,
    with as many episodes and the same seed, is not evaluated again, so a watch that was
    stopped goes on where it was.

    Args:
        folder: RUN; it need not exist yet.
        settings: How each is evaluated; the environments are kept between checkpoints.
        steps: Checkpoints to evaluate, ``"all"`` or their steps. With steps, it is done
            when each was evaluated or training has passed it by.
        tasks: As in ``evaluate_run``.
        environment: Likewise.
        patience: How often to look, and when to give up.
        console: Where results and warnings are shown; None shows nothing.

    Returns:
        The evaluations made, in order.

    Raises:
        StalledError: If no new checkpoint comes within the time given.
        PreemptedError: If SIGTERM came; what was evaluated is recorded.
        DataFormatError: If the environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        UsageError: If a number is out of range.
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
                f"got {sorted(wanted) or 'none'}"
            )
        evaluators = make_evaluators(
            folder,
            run,
            tasks,
            settings=settings,
            environment=environment,
            console=console,
        )
        work = _Work(folder, run, evaluators, stack, console)
        handled: set[int] = set()
        while True:
            there = folder_watch.steps()
            newest = max(there, default=0)
            for step in sorted((wanted or set()) - handled - set(there)):
                if step < newest:
                    say(
                        console,
                        f"step {step:,}: has no checkpoint any more, left out",
                    )
                    handled.add(step)
            waiting = set(there) - handled
            waiting &= waiting if wanted is None else wanted
            if waiting:
                evaluations += work.evaluate(min(waiting))
                handled.add(min(waiting))
                folder_watch.rested()
            elif newest >= last or (wanted is not None and handled >= wanted):
                return evaluations
            else:
                folder_watch.sleep()


class _Work:
    """Evaluates what of a checkpoint was not yet evaluated, in every task asked for."""

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
        self._recorded = {each.key for each in read_evaluations(folder)}

    def evaluate(self, step: int) -> list[Evaluation]:
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
            if evaluator not in self._started:  # Not before there is work for it.
                self._started.add(self._stack.enter_context(evaluator))
            with episode_bars(self._console) as progress:
                evaluations += evaluator.evaluate(step, params, seeds, progress)
        return evaluations


class _FolderWatch:
    """Looks for committed checkpoints, and at the clock."""

    def __init__(self, folder: RunFolder, patience: Patience, console: Console) -> None:
        self._folder = folder
        self._patience = patience
        self._console = console
        self._names: set[str] = set()
        self._steps: list[int] = []
        self._newest: int | None = None
        self.rested()

    def rested(self) -> None:
        """Starts the wait for a new checkpoint afresh."""
        self._since = time.monotonic()

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        folder = self._folder.checkpoints
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        # On gs:// a step's folder is there before the step is whole.
        if names == self._names and not self._folder.remote:
            return self._steps
        if names:
            # Opened anew each time: a reader remembers which steps there were.
            with CheckpointReader(self._folder) as checkpoints:
                self._steps = checkpoints.steps()
        self._names = names
        newest = max(self._steps, default=None)
        if newest != self._newest:
            self._newest = newest
            self.rested()
        return self._steps

    def wait_for_first(self) -> None:
        """Waits for the first checkpoint: what the folder says is then final."""
        if not self.steps():
            found = self._folder.exists()
            say(
                self._console,
                f"waiting for {'the first checkpoint of ' if found else ''}"
                f"{self._folder}" + ("" if found else ": there is no run yet"),
            )
        while not self.steps():
            self.sleep()

    def sleep(self) -> None:
        """Waits for the next look.

        Raises:
            StalledError: If there was nothing new for too long.
        """
        patience = self._patience
        waited = time.monotonic() - self._since
        if waited >= patience.timeout_s:
            last = "at all" if self._newest is None else f"after step {self._newest:,}"
            raise StalledError(
                f"{self._folder}: no checkpoint {last} within "
                f"{patience.timeout_s / 60:g} minutes; training has stopped or is "
                "slower than that. Look at its output, then repeat this command, with "
                "a longer --timeout if need be"
            )
        time.sleep(min(patience.poll_s, patience.timeout_s - waited))


def restore_unless_deleted(
    folder: RunFolder, step: int, run: Run, console: Console
) -> Params | None:
    """Restores a step's parameters; None, and a word, if its trainer has deleted it."""
    for attempt in range(_ATTEMPTS):
        with CheckpointReader(folder) as checkpoints:
            try:
                return checkpoints.restore_params(
                    step, run.agent(), seeds=run.config.trainer.seeds
                )
            except PreemptedError:  # Raised wherever SIGTERM found this process.
                raise
            except Exception:
                # Whatever files that vanish make Orbax raise. While they vanish, the
                # step's folder is still there.
                there = (folder.checkpoints / str(step)).exists()
                if there and attempt == _ATTEMPTS - 1:
                    raise
        if not there:
            break
        time.sleep(_DELETION_S)
    say(console, f"step {step:,}: was deleted before it could be evaluated, left out")
    return None


@contextlib.contextmanager
def _sigterm_raises(folder: RunFolder) -> Iterator[None]:
    """Turns SIGTERM into an exception, so that the environments are ended too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise PreemptedError(
            f"stopped watching {folder}; what was evaluated is recorded, run the same "
            "command to go on"
        )

    with handled(stop, signal.SIGTERM):
        yield
