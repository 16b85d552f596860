"""Running a sweep: one program for each thing to do, of one cell or several at a time.

A program that fails ends its cell, not the sweep. One that was preempted ends the sweep
in the same way, to be started again.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pipeline.output import say
from pipeline.store import files
from pipeline.store.units import format_duration
from trainer.errors import EXIT_FAILED, EXIT_PREEMPTED
from trainer.signals import handle_signals
from trainer.sweep.cells import Cell
from trainer.sweep.states import State, logged_step, look
from trainer.sweep.totals import count_updates_left

# Beside the cells' folders, and not matched by OUT/*.
LOGS = ".logs"
_POLL_S = 2.0


class Runner(Protocol):
    """Runs ``python -m trainer`` with some arguments."""

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        """Runs one command to its end.

        Args:
            arguments: Of ``python -m trainer``.
            log: File its output is added to.
            tick: To call now and then while it runs.

        Returns:
            Its exit code; negative if a signal ended it.
        """

    def stopped(self) -> bool:
        """Whether this process was told to stop."""


class Processes:
    """A process for each command; a signal to stop is handed on to all there are.

    Args:
        environments: Variables of each of the processes that run side by side, such as
            the devices it may use; as many as there are threads that call this.
    """

    def __init__(self, environments: Sequence[Mapping[str, str]] = ({},)) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stop = False
        self._free: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
        for environment in environments:
            self._free.put(environment)

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        """Runs one command, see ``Runner``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file, self._taken() as environment:
            child = subprocess.Popen(
                [sys.executable, "-m", "trainer", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | dict(environment),
            )
            self._children.add(child)
            try:
                if self._stop:  # Before there was a child to tell.
                    child.terminate()
                while True:
                    try:
                        return child.wait(_POLL_S)
                    except subprocess.TimeoutExpired:
                        tick()
            finally:
                self._children.discard(child)

    @contextmanager
    def _taken(self) -> Iterator[Mapping[str, str]]:
        """Lends what no other process is using."""
        environment = self._free.get()
        try:
            yield environment
        finally:
            self._free.put(environment)

    def stopped(self) -> bool:
        """Whether this process was told to stop."""
        return self._stop

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hands SIGTERM and Ctrl-C on to the children: training saves, then ends."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self._stop = True
            # A copy: threads of cells add and discard meanwhile.
            for child in tuple(self._children):
                child.terminate()

        with handle_signals(hand_on, signal.SIGTERM, signal.SIGINT):
            yield


@dataclass
class Clock:
    """How long cells take, to tell how long is left.

    Attributes:
        now: Seconds of a clock that only goes on.
    """

    now: Callable[[], float] = time.perf_counter
    _spent: dict[str, float] = field(default_factory=dict)
    _updates: dict[str, int] = field(default_factory=dict)

    def add(self, cell: Cell, updates: int, seconds: float) -> None:
        """Remembers what some updates of a cell took, evaluation included."""
        if updates > 0:
            self._spent[cell.method] = self._spent.get(cell.method, 0.0) + seconds
            self._updates[cell.method] = self._updates.get(cell.method, 0) + updates

    def left_s(self, left: Sequence[tuple[Cell, int]]) -> float | None:
        """Estimates what is left.

        Args:
            left: Cells and updates.

        Returns:
            Seconds: updates left by the mean of the method's, or of all methods' where
            none of the method has run; None if nothing has.
        """
        if not self._spent:
            return None
        mean = sum(self._spent.values()) / sum(self._updates.values())
        rates = {
            method: self._spent[method] / self._updates[method]
            for method in self._spent
        }
        return sum(updates * rates.get(cell.method, mean) for cell, updates in left)


def run_sweep(
    cells: Sequence[Cell],
    *,
    runner: Runner,
    console: Console,
    jobs: int = 1,
    again: str = "the same command",
    clock: Clock | None = None,
) -> int:
    """Trains and evaluates every cell that is not finished.

    Args:
        cells: In the order to begin them.
        runner: Runs a cell's commands; called from ``jobs`` threads.
        console: For progress and failures.
        jobs: Cells that run side by side.
        again: Command that goes on with the sweep.
        clock: Of the estimates.

    Returns:
        Exit code: 0 if all cells are finished, 1 if some failed, 75 if the sweep was
        stopped and the same command goes on.
    """
    clock = clock or Clock()
    states = [look(cell) for cell in cells]
    waiting = [
        (cell, state)
        for cell, state in zip(cells, states, strict=True)
        if state.stage != "finished"
    ]
    say(console, f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished")
    stop = threading.Event()
    failures: list[tuple[Cell, str]] = []
    with _progress(console) as bar, ThreadPoolExecutor(jobs) as pool:
        total = sum(count_updates_left(*each) for each in waiting)
        task = bar.add_task(f"0/{len(waiting)}", total=total)
        done = [0] * len(waiting)

        def show(index: int, updates: int) -> None:
            done[index] = max(0, updates)
            bar.update(task, completed=sum(done))

        def work(index: int) -> tuple[str | None, float]:
            cell, state = waiting[index]
            if stop.is_set():
                return _STOPPED, 0.0
            say(console, f"[{index + 1}/{len(waiting)}] {cell.name}: {state}")
            started = clock.now()
            problem = _finish(
                cell, state, runner, lambda: show(index, logged_step(cell) - state.step)
            )
            if problem == _STOPPED:
                stop.set()
            return problem, clock.now() - started

        futures = {pool.submit(work, index): index for index in range(len(waiting))}
        left = dict(enumerate(waiting))
        for future in as_completed(futures):
            problem, seconds = _result(future, stop)
            index = futures[future]
            cell, state = left.pop(index)
            if problem == _STOPPED:
                continue
            updates = count_updates_left(cell, state)
            show(index, updates)
            bar.update(task, description=f"{len(waiting) - len(left)}/{len(waiting)}")
            name = f"{cell.name}: " if jobs > 1 else ""
            if problem is not None:
                failures.append((cell, problem))
                say(console, f"  {name}failed: {problem}")
                continue
            clock.add(cell, updates, seconds)
            rest = clock.left_s(
                [(c, count_updates_left(c, s)) for c, s in left.values()]
            )
            say(
                console,
                f"  {name}done in {format_duration(seconds)}"
                + (f"; about {format_duration(rest / jobs)} left" if rest else ""),
            )
    if stop.is_set():
        say(console, f"stopped; to go on: {again}")
        return EXIT_PREEMPTED
    if failures:
        say(console, f"{len(failures)} of {len(cells)} cells failed:")
        for cell, problem in failures:
            say(console, f"  {cell.name}: {problem}")
        say(console, f"to try them again: {again}")
        return EXIT_FAILED
    return 0


_STOPPED = "stopped"


def _result(
    future: Future[tuple[str | None, float]], stop: threading.Event
) -> tuple[str | None, float]:
    try:
        return future.result()
    except BaseException:  # A bug: no further cell is begun before it is shown.
        stop.set()
        raise


def _finish(
    cell: Cell, state: State, runner: Runner, tick: Callable[[], None]
) -> str | None:
    """Does what a cell lacks.

    Returns:
        What went wrong, ``_STOPPED`` if the sweep is to end, else None.
    """
    if state.stage == "differs":
        return f"{cell.folder} {state}; give another `out`, or move it away"
    with _log_of(cell) as log:
        if state.stage in ("new", "begun"):
            problem = _run(cell.train, log, runner, tick)
            if problem is not None:
                return problem
            state = look(cell)
        if state.stage == "trained":
            problem = _run(cell.evaluate(state.missing), log, runner, tick)
            if problem is not None:
                return problem
            state = look(cell)
        if state.stage != "finished":
            return f"its commands ended well, and yet it is {state}; see {log.kept}"
    return None


@dataclass(frozen=True)
class _Log:
    """Output of a cell's programs.

    Attributes:
        file: Written to while they run.
        kept: Where it is found afterwards.
    """

    file: Path
    kept: str


@contextmanager
def _log_of(cell: Cell) -> Iterator[_Log]:
    """The log of a cell.

    Objects of a bucket cannot be appended to: on gs:// it is put there when the cell's
    programs have ended.
    """
    folder, name = str(cell.folder.path.parent / LOGS), f"{cell.name}.log"
    if not cell.folder.remote:
        yield _Log(Path(folder) / name, f"{folder}/{name}")
        return
    with tempfile.TemporaryDirectory(prefix="vast-rl-sweep-") as scratch:
        log = _Log(Path(scratch) / name, f"{folder}/{name}")
        log.file.write_bytes(files.read(folder, name).data or b"")
        try:
            yield log
        finally:
            files.write(folder, name, log.file.read_bytes())


def _run(
    arguments: Sequence[str], log: _Log, runner: Runner, tick: Callable[[], None]
) -> str | None:
    code = runner(arguments, log.file, tick)
    if code == EXIT_PREEMPTED or runner.stopped():
        return _STOPPED
    if code == 0:
        return None
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    said = _last_line(log.file)
    return f"{arguments[0]} ended with {how}: {said} (see {log.kept})"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} % of all updates", markup=False),
        console=console,
        # Without a terminal the lines of the cells are the progress.
        disable=not console.is_terminal,
    )
