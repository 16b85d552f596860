"""The tracker of ``metrics.jsonl``, with a line for each seed and log point.

Every run has this file, whichever other trackers it has. A restart first drops the
lines of updates that it will do again, so the file has one line for a seed and a step.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipeline.output import say
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.tracking.tracker import Json


class JsonLines:
    """Appends records to a file of JSON lines.

    Damaged lines are moved to ``metrics.jsonl.damaged`` with a warning. They do not
    keep a run from training: checkpoints hold all that it needs.

    Args:
        path: The file; it is made if it does not exist.
        resume_step: Step that training continues from. Records of later steps are
            dropped, because their updates are done again.
        folder: Folder of the run, which warnings name.
        console: Console for warnings of damaged or missing records.

    Attributes:
        kept: Records of earlier starts that remain in the file.
        reached: Largest step of all records in the file, including dropped ones.
    """

    def __init__(
        self, path: Path, *, resume_step: int, folder: RunFolder, console: Console
    ) -> None:
        self.kept: list[Json] = []
        self.reached = 0
        for problem in self._truncate(path, resume_step):
            say(console, f"warning: {folder}/{problem}", style="yellow")
        self._lines = path.open("a")

    def write(self, records: Sequence[Json]) -> None:
        """Appends a line for each record."""
        self._lines.writelines(json.dumps(record) + "\n" for record in records)
        # A process that is killed loses what the file object still buffers.
        self._lines.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._lines.close()

    def _truncate(self, path: Path, step: int) -> list[str]:
        """Drops records after a step, damaged lines, and a half-written last line.

        Returns:
            A line for each problem with the records up to the step.
        """
        # A killed process leaves a last line without its end, which is no damage.
        complete, _, _ = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        lines, damaged, problems = [], [], []
        for number, line in enumerate(complete.split(b"\n"), start=1):
            if not line:
                continue
            try:
                record = _decode(line, where=f"{path.name}, line {number}")
            except DataFormatError as error:
                damaged.append(line + b"\n")
                problems.append(str(error))
                continue
            self.reached = max(self.reached, record["step"])
            if record["step"] <= step:
                lines.append(line + b"\n")
                self.kept.append(record)
        last = max((record["step"] for record in self.kept), default=0)
        # Every step with a checkpoint has a record, so some are lost if the last one is
        # earlier.
        if last < step:
            problems.append(
                f"{path.name}: has no records after step {last}, and training goes on "
                f"from step {step}: those in between are lost"
            )
        if damaged:
            with path.with_name(f"{path.name}.damaged").open("ab") as aside:
                aside.writelines(damaged)
        if path.exists():
            # Replaced at once: a process that is killed while it rewrites the file in
            # place would lose all records.
            shortened = path.with_name(f"{path.name}.shortened")
            shortened.write_bytes(b"".join(lines))
            shortened.replace(path)
        return problems


def _decode(line: bytes, *, where: str) -> Json:
    remedy = f"the line is damaged, and put aside into {METRICS_FILE}.damaged"
    record = load_object(line, where=where, remedy=remedy)
    # Not `isinstance`: True is an int, too.
    if type(record.get("step")) is not int:
        raise DataFormatError(
            f"{where}: step: expected a number, got {record.get('step')!r:.80}; "
            f"{remedy}"
        )
    return record
