"""``metrics.jsonl``: one line for each seed and log point of training.

Every run has it, whatever else its figures are sent to. Lines of updates that are done
again after a restart are dropped first, so each step has one line of each seed.
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

    Lines that are damaged are put aside, into ``metrics.jsonl.damaged``: what is lost
    with them is said, and is no reason not to train.

    Args:
        path: The file; made if it does not exist.
        resume_step: Step training goes on from: later records, of updates that are
            done again, are dropped.
        folder: RUN, as warnings name it.
        console: For what is damaged or missing of the records.

    Attributes:
        kept: Records that are there from before.
        reached: Step of the last record that was ever written, dropped ones included.
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
        """Adds a line a record."""
        self._lines.writelines(json.dumps(record) + "\n" for record in records)
        self._lines.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._lines.close()

    def _truncate(self, path: Path, step: int) -> list[str]:
        """Drops records after a step, a half-written last line, and what is damaged.

        Returns:
            What is wrong with the records that are to be there, a line each.
        """
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
        if last < step:  # There is a record of every step that is saved.
            problems.append(
                f"{path.name}: has no records after step {last}, and training goes on "
                f"from step {step}: those in between are lost"
            )
        if damaged:
            with path.with_name(f"{path.name}.damaged").open("ab") as aside:
                aside.writelines(damaged)
        if path.exists():
            # Put in place whole: killed in between, there would be no records at all.
            shortened = path.with_name(f"{path.name}.shortened")
            shortened.write_bytes(b"".join(lines))
            shortened.replace(path)
        return problems


def _decode(line: bytes, *, where: str) -> Json:
    remedy = f"the line is damaged, and put aside into {METRICS_FILE}.damaged"
    record = load_object(line, where=where, remedy=remedy)
    if type(record.get("step")) is not int:
        raise DataFormatError(
            f"{where}: step: expected a number, got {record.get('step')!r:.80}; "
            f"{remedy}"
        )
    return record
