"""Runs two commands at once on one store, and stops the first at a chosen moment.

Both are forked from a process that has imported their modules, because imports take
seconds and the work to be tested takes a fraction of a second.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_TIMEOUT_S = 120.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        *("pipeline.cli", "pipeline.beam.pipelines", "pipeline.beam.runners"),
        *("pipeline.commands.execution", "pipeline.sources.detection"),
        *("pipeline.collection.scripted", "pipeline.domains.goals", "tests.twins"),
    ]
)


def _execute(arguments: list[str], log: str) -> None:
    """Runs a command of the pipeline as its own process would."""
    from pipeline.cli import main

    said = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Run:
    """A command that is running.

    Args:
        arguments: Arguments of ``python -m pipeline``.
        log: File for its output.
    """

    def __init__(self, arguments: Sequence[object], log: Path) -> None:
        self._log = log
        words = list(map(str, arguments))
        self._process: BaseProcess = _processes.Process(
            target=_execute, args=(words, str(log))
        )
        self._process.start()

    def wait(self) -> tuple[int, str]:
        """Waits for the end; returns the exit code and the output."""
        self._process.join(_TIMEOUT_S)
        code = self._process.exitcode
        if code is None:
            self.signal(signal.SIGKILL)
            raise TimeoutError(f"still running: {self._log.read_text()}")
        return code, self._log.read_text()

    def signal(self, number: int) -> None:
        """Sends a signal if the command is still running."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, number)

    def most_files(self, root: Path) -> int:
        """Waits for the end; returns the most files that a folder held meanwhile."""
        most = 0
        while self._process.is_alive():
            most = max(most, _count_files(root))
        return most

    def stop_at(self, root: Path, files: int, seconds: float) -> bool:
        """Stops the command some time after a folder holds a number of files.

        Returns:
            Whether the command was still running.
        """
        while self._process.is_alive() and _count_files(root) < files:
            time.sleep(0.0005)
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        return self._process.is_alive()


def _count_files(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))
