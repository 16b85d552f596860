"""Files that grow, of a run in a bucket: written on this disk and copied there."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline.store import files
from trainer.runs.folder import METRICS_FILE, RunFolder

# An object can be replaced about once a second; whole copies cost more than that.
_COPY_EVERY_S = 10.0


class GrowingFiles:
    """Folder on this machine for files that are appended to.

    That is the run's own folder, unless that is in a bucket, whose objects cannot be
    appended to: then the files are kept on this machine's disk and copied there whole,
    in the background, every few seconds.

    Args:
        folder: RUN; its metrics are the first content of a folder that is copied.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.local = Path(str(folder))
        self._copied: dict[str, int] = {}
        self._started: list[Any] = []
        self._last = -math.inf
        if not folder.remote:
            return
        self._scratch = tempfile.TemporaryDirectory(prefix="vast-rl-metrics-")
        self.local = Path(self._scratch.name)
        self._target = files.open_folder(str(folder))
        there = folder.read(METRICS_FILE)
        if there.data is not None:
            (self.local / METRICS_FILE).write_bytes(there.data)

    def update(self) -> None:
        """Starts copying, unless it was done just now or is going on still."""
        busy = any(not each.done() for each in self._started)
        if not busy and time.monotonic() - self._last >= _COPY_EVERY_S:
            self._finish_started()
            self._start()

    def finish(self) -> None:
        """Copies what has changed and waits until it is there."""
        self._finish_started()
        self._start()
        self._finish_started()

    def close(self) -> None:
        """Copies what has changed and deletes the local copies."""
        if self._scratch is not None:
            with self._scratch:
                self.finish()

    def _start(self) -> None:
        if self._scratch is None:
            return
        self._last = time.monotonic()
        for path in sorted(self.local.rglob("*")):
            if not path.is_file():
                continue
            name = path.relative_to(self.local).as_posix()
            data = path.read_bytes()
            if self._copied.get(name) != len(data):  # They only grow.
                self._copied[name] = len(data)
                self._started.append(self._target.write(name, data))

    def _finish_started(self) -> None:
        with files.storage_errors("copying them"):
            for each in self._started:
                each.result()
        self._started.clear()
