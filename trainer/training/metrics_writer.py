"""Records of a run as they are made: metrics.jsonl and TensorBoard's files."""

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from pipeline.output import say
from pipeline.store import files
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError
from trainer.runs.folder import METRICS_FILE, TENSORBOARD, RunFolder
from trainer.training.metrics import Json

# An object can be replaced about once a second; whole copies cost more than that.
_COPY_EVERY_S = 10.0


class MetricsWriter:
    """Appends records to a run's folder.

    Objects of a bucket cannot be appended to: on gs:// the files are kept on this
    machine's disk and copied there whole, in the background, every few seconds.

    Lines that are damaged are put aside, into ``metrics.jsonl.damaged``: what is lost
    with them is said, and is no reason not to train.

    Args:
        folder: RUN.
        resume_step: Step training goes on from: later records, of updates that are
            done again, are dropped.
        console: For what is damaged or missing of the records.
    """

    def __init__(
        self, folder: RunFolder, *, resume_step: int, console: Console
    ) -> None:
        self._copies = _Copies(folder) if folder.remote else None
        local = Path(str(folder)) if self._copies is None else self._copies.local
        path = local / METRICS_FILE
        for problem in _truncate(path, resume_step):
            say(console, f"warning: {folder}/{problem}", style="yellow")
        self._lines = path.open("a")
        self._board = _Board(local / TENSORBOARD, purge_step=resume_step)

    def write(self, records: list[Json]) -> None:
        """Writes records; vectors go to the JSON lines only."""
        self._lines.writelines(json.dumps(record) + "\n" for record in records)
        self._lines.flush()
        for record in records:
            self._board.write(record)
        if self._copies is not None:
            self._copies.update()

    def sync(self) -> None:
        """Waits until what was written is where the run is."""
        if self._copies is not None:
            self._copies.finish()

    def close(self) -> None:
        """Flushes and closes both."""
        self._lines.close()
        self._board.close()
        if self._copies is not None:
            self._copies.close()


class _Board:
    """Scalars for TensorBoard, written at once: there is no thread to die unseen.

    A thread that a full disk has ended takes nothing from its queue, and what is put
    there then waits for ever.

    Args:
        folder: Of TensorBoard's files; made if it does not exist.
        purge_step: Later scalars of earlier files count no more.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(folder / "events"))
        start = SessionLog(status=SessionLog.START)
        self._add(Event(step=purge_step, session_log=start))

    def write(self, record: Json) -> None:
        """Adds the finite numbers of a record."""
        values = [
            Summary.Value(tag=f"seed{record['seed']}/{name}", simple_value=value)
            for name, value in record.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self._add(Event(step=record["step"], summary=Summary(value=values)))

    def close(self) -> None:
        """Closes the file."""
        self._events.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._events.write_event(event)
        self._events.flush()


class _Copies:
    """Files on this machine that are copied to a folder on gs:// as they grow.

    Args:
        folder: RUN in a bucket; its metrics are the first content.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="vast-rl-metrics-")
        self.local = Path(self._scratch.name)
        self._target = files.open_folder(str(folder))
        self._copied: dict[str, int] = {}
        self._started: list[Any] = []
        self._last = -math.inf
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
        """Copies what has changed and deletes the local files."""
        with self._scratch:
            self.finish()

    def _start(self) -> None:
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


def _truncate(path: Path, step: int) -> list[str]:
    """Drops records after a step, a half-written last line, and what is damaged.

    Returns:
        What is wrong with the records that are to be there, a line each.
    """
    complete, _, _ = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
    kept, damaged, problems = [], [], []
    last = 0
    for number, line in enumerate(complete.split(b"\n"), start=1):
        if not line:
            continue
        try:
            of = _step_of(line, where=f"{path.name}, line {number}")
        except DataFormatError as error:
            damaged.append(line + b"\n")
            problems.append(str(error))
            continue
        if of <= step:
            kept.append(line + b"\n")
            last = max(last, of)
    if last < step:  # There is a record of every step that is saved.
        problems.append(
            f"{path.name}: has no records after step {last}, and training goes on from "
            f"step {step}: those in between are lost"
        )
    if damaged:
        with path.with_name(f"{path.name}.damaged").open("ab") as aside:
            aside.writelines(damaged)
    if path.exists():
        # Put in place whole: killed in between, there would be no records at all.
        shortened = path.with_name(f"{path.name}.shortened")
        shortened.write_bytes(b"".join(kept))
        shortened.replace(path)
    return problems


def _step_of(line: bytes, *, where: str) -> int:
    remedy = f"the line is damaged, and put aside into {METRICS_FILE}.damaged"
    step = load_object(line, where=where, remedy=remedy).get("step")
    if type(step) is not int:
        raise DataFormatError(
            f"{where}: step: expected a number, got {step!r:.80}; {remedy}"
        )
    return step
