"""Runs a sweep: a process for each training and evaluation, of several cells at once.

A process that fails ends its cell and not the sweep. A process that was preempted ends
the sweep with the same exit code, so that a launcher starts the sweep again.
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
from pipeline.store.errors import DataFormatError
from pipeline.store.units import format_duration
from trainer.errors import EXIT_FAILED, EXIT_PREEMPTED, StorageError
from trainer.signals import handle_signals
from trainer.sweep.cells import Cell
from trainer.sweep.states import (
    State,
    describe_other_stores,
    read_logged_step,
    read_state,
)
from trainer.sweep.totals import count_updates_left

# Folder of the logs, beside the cells' folders. With the dot, a shell does not match it
# by OUT/*, which `report` is given.
LOGS = ".logs"
_POLL_S = 2.0
# Errors of reading the state of a cell; other cells can go on.
_READ_ERRORS = (OSError, DataFormatError, StorageError)


class Runner(Protocol):
    """Runs ``python -m trainer`` with some arguments."""

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        """Runs one command to its end.

        Args:
            arguments: Arguments of ``python -m trainer``.
            log: File that the command's output is appended to.
            tick: Function to call every few seconds while the command runs.

        Returns:
            Exit code of the command; negative if a signal ended it.
        """

    def is_stopped(self) -> bool:
        """Says whether this process was told to stop."""


class ProcessRunner:
    """Runs each command in a process, and forwards signals to all running ones.

    Args:
        environments: Environment variables for each of the processes that run side by
            side, such as the devices that it may use. There must be as many as threads
            that call this runner.
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
        """Runs one command, as ``Runner`` describes."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file, self._borrow_environment() as environment:
            child = subprocess.Popen(
                [sys.executable, "-m", "trainer", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | dict(environment),
            )
            self._children.add(child)
            try:
                # The signal may have come just before this child was listed.
                if self._stop:
                    child.terminate()
                while True:
                    try:
                        return child.wait(_POLL_S)
                    except subprocess.TimeoutExpired:
                        tick()
            except BaseException:
                # A child that nobody waits for would keep its device, and the run.
                child.terminate()
                child.wait()
                raise
            finally:
                self._children.discard(child)

    @contextmanager
    def _borrow_environment(self) -> Iterator[Mapping[str, str]]:
        """Lends the variables, and so the devices, that no other process uses."""
        environment = self._free.get()
        try:
            yield environment
        finally:
            self._free.put(environment)

    def is_stopped(self) -> bool:
        """Says whether this process was told to stop."""
        return self._stop

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """Forwards SIGTERM and Ctrl-C to the children, so that training saves and ends.

        A process that a launcher stops gets a SIGTERM alone; its children get none.
        """

        def forward(number: int, frame: FrameType | None) -> None:
            self._stop = True
            # A copy, because the threads of the cells change the set meanwhile.
            for child in tuple(self._children):
                child.terminate()

        with handle_signals(forward, signal.SIGTERM, signal.SIGINT):
            yield


@dataclass
class Clock:
    """Measures how long cells take, and estimates the time that is left.

    Attributes:
        now: Function that returns the seconds of a monotonic clock.
    """

    now: Callable[[], float] = time.perf_counter
    _spent: dict[str, float] = field(default_factory=dict)
    _updates: dict[str, int] = field(default_factory=dict)

    def add(self, cell: Cell, updates: int, seconds: float) -> None:
        """Adds the seconds that updates of a cell and their evaluation took."""
        if updates > 0:
            self._spent[cell.method] = self._spent.get(cell.method, 0.0) + seconds
            self._updates[cell.method] = self._updates.get(cell.method, 0) + updates

    def estimate_left_s(self, left: Sequence[tuple[Cell, int]]) -> float | None:
        """Estimates the seconds that unfinished cells take, one after another.

        Args:
            left: Unfinished cells, with the updates that each still lacks.

        Returns:
            Seconds at the mean speed of each cell's method, or of all methods if no
            cell of the method has finished; None if no cell has.
        """
        if not self._spent:
            return None
        # Methods differ in the cost of an update by several times.
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
        cells: Cells, in the order in which they begin.
        runner: Runner of the cells' commands, which ``jobs`` threads call.
        console: Console for progress and failures.
        jobs: Number of cells that run side by side.
        again: Command line that continues the sweep.
        clock: Clock for the estimates; None makes one.

    Returns:
        Exit code: 0 if all cells are finished, 1 if some failed, 75 if the sweep was
        stopped and the same command continues it.
    """
    clock = clock or Clock()
    read: list[tuple[Cell, State]] = []
    failures: list[tuple[Cell, str]] = []
    for cell in cells:
        try:
            read.append((cell, read_state(cell)))
        except _READ_ERRORS as error:
            say(console, f"{cell.name}: failed: {error}")
            failures.append((cell, str(error)))
    waiting = [(cell, state) for cell, state in read if state.stage != "finished"]
    finished = len(read) - len(waiting)
    say(console, f"{len(cells)} cells, {finished} of them finished")
    if remark := describe_other_stores(read):
        say(console, remark)
    stop = threading.Event()
    with _make_bar(console) as bar, ThreadPoolExecutor(jobs) as pool:
        total = sum(count_updates_left(cell, state) for cell, state in waiting)
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
            try:
                problem = _finish(
                    cell,
                    state,
                    runner,
                    lambda: show(index, read_logged_step(cell) - state.step),
                )
            except _READ_ERRORS as error:
                problem = str(error)
            if problem == _STOPPED:
                stop.set()
            return problem, clock.now() - started

        futures = {pool.submit(work, index): index for index in range(len(waiting))}
        left = dict(enumerate(waiting))
        for future in as_completed(futures):
            problem, seconds = _get_result(future, stop)
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
            # The estimate is of one job after another; jobs share the work.
            rest = clock.estimate_left_s(
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


# Problem of a cell whose command was stopped, which is no failure of the cell.
_STOPPED = "stopped"


def _get_result(
    future: Future[tuple[str | None, float]], stop: threading.Event
) -> tuple[str | None, float]:
    """Returns the problem and the seconds of a cell that has ended."""
    try:
        return future.result()
    except BaseException:
        # A bug. The pool waits for all cells before the traceback is shown, so the
        # cells that have not begun must not begin.
        stop.set()
        raise


def _finish(
    cell: Cell, state: State, runner: Runner, tick: Callable[[], None]
) -> str | None:
    """Trains and evaluates a cell as far as its state requires.

    Returns:
        Text of the problem if a command failed; ``_STOPPED`` if the sweep is to end;
        None if the cell is finished.
    """
    if state.stage == "differs":
        return f"{cell.folder} {state}; give another `out`, or move the folder away"
    with _open_log(cell) as log:
        if state.stage in ("new", "begun"):
            problem = _run(cell.train_arguments, log, runner, tick)
            if problem is not None:
                return problem
            state = read_state(cell)
        if state.stage == "trained":
            arguments = cell.make_evaluate_arguments(state.missing)
            problem = _run(arguments, log, runner, tick)
            if problem is not None:
                return problem
            state = read_state(cell)
        # The files decide, and not the exit codes: a cell that stays unfinished would
        # otherwise be run again and again by the same command.
        if state.stage != "finished":
            return f"its commands ended well, and yet it is {state}; see {log.kept}"
    return None


@dataclass(frozen=True)
class _Log:
    """Log with the output of a cell's commands.

    Attributes:
        file: Local file that the commands write to.
        kept: Path of the log for the user, which may be in a bucket.
    """

    file: Path
    kept: str


@contextmanager
def _open_log(cell: Cell) -> Iterator[_Log]:
    """Opens the log of a cell.

    Objects in a bucket cannot be appended to. A log on gs:// is therefore a temporary
    file, which is uploaded when the cell's commands have ended.
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
    """Runs a command; returns its problem as ``_finish`` does."""
    code = runner(arguments, log.file, tick)
    if code == EXIT_PREEMPTED or runner.is_stopped():
        return _STOPPED
    if code == 0:
        return None
    ending = f"exit code {code}" if code > 0 else f"signal {-code}"
    # The last line is the error: programs print it after all progress.
    error = _read_last_line(log.file)
    return f"{arguments[0]} ended with {ending}: {error} (see {log.kept})"


def _read_last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _make_bar(console: Console) -> Progress:
    """Makes the progress bar of all updates of the sweep."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} % of all updates", markup=False),
        console=console,
        # Without a terminal the lines of the cells are the progress.
        disable=not console.is_terminal,
    )
