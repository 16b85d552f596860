"""Growing files of a run in a bucket, which are written here and copied there."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline.store import files
from trainer.runs.folder import METRICS_FILE, RunFolder

# Cloud Storage lets an object be replaced about once a second. Copies are rarer,
# because each sends the whole file.
_COPY_EVERY_S = 10.0


class GrowingFiles:
    """A folder on this machine for files that are appended to.

    It is the run's own folder, unless the run is in a bucket, whose objects cannot be
    appended to. Then files are written to this machine's disk, and whole copies are
    sent to the bucket in the background, every few seconds.

    Args:
        folder: Folder of the run. If it is in a bucket, its metrics are fetched first.

    Attributes:
        local: Folder to write into.
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
        # Copies replace the object, so the file must begin with the earlier lines.
        metrics = folder.read(METRICS_FILE)
        if metrics.data is not None:
            (self.local / METRICS_FILE).write_bytes(metrics.data)

    def update(self) -> None:
        """Starts copies, unless the last ones are recent or still under way."""
        busy = any(not copy.done() for copy in self._started)
        if not busy and time.monotonic() - self._last >= _COPY_EVERY_S:
            self._finish_started()
            self._start()

    def finish(self) -> None:
        """Copies all changed files, and waits until the bucket has them."""
        # Two copies of one file at once could arrive in either order.
        self._finish_started()
        self._start()
        self._finish_started()

    def close(self) -> None:
        """Copies all changed files, and deletes this machine's files."""
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
            # Files only grow, so a file of the same length has not changed.
            if self._copied.get(name) != len(data):
                self._copied[name] = len(data)
                self._started.append(self._target.write(name, data))

    def _finish_started(self) -> None:
        with files.storage_errors("copying them"):
            for copy in self._started:
                copy.result()
        self._started.clear()
