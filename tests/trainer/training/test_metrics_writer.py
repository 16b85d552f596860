"""Records on disk: none lost to a kill, and an error where one cannot be written."""

import io
import json
import math
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog

from trainer.runs.folder import METRICS_FILE, TENSORBOARD, RunFolder
from trainer.training.metrics_writer import MetricsWriter

ROOM = 4096

QUIET = Console(quiet=True)


def record(step: int, **figures: float) -> dict[str, float]:
    return {"step": step, "seed": 0, "loss": 0.5} | figures


def fill(writer: MetricsWriter) -> None:
    for step in range(ROOM):
        writer.write([record(step)])


def events(folder: Path) -> Iterator[Event]:
    """Of all files: length, checksum, content and its checksum, again and again."""
    for file in sorted((folder / TENSORBOARD).iterdir()):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            yield Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


def test_tensorboard_is_given_what_is_finite(tmp_path: Path) -> None:
    writer = MetricsWriter(RunFolder.open(tmp_path), resume_step=4, console=QUIET)
    writer.write([record(6, time_s=2, bad=math.nan)])
    # There at once, should the process be killed.
    _, start, scalars = events(tmp_path)
    assert (start.step, start.session_log.status) == (4, SessionLog.START)
    assert scalars.step == 6
    assert {value.tag: value.simple_value for value in scalars.summary.value} == {
        "seed0/step": 6,
        "seed0/seed": 0,
        "seed0/loss": 0.5,
        "seed0/time_s": 2,
    }
    writer.close()


def test_a_full_disk_is_an_error_whatever_it_hits_first(tmp_path: Path) -> None:
    writer = MetricsWriter(RunFolder.open(tmp_path), resume_step=0, console=QUIET)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            fill(writer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.close()
    # TensorBoard's file takes more; of the lines there would have been room.
    assert (tmp_path / METRICS_FILE).stat().st_size < ROOM


def test_records_of_updates_done_again_go_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = RunFolder.open(tmp_path), tmp_path / METRICS_FILE
    path.write_text("".join(json.dumps(record(step)) + "\n" for step in (2, 4, 6)))
    replace = Path.replace

    def seen_before(shortened: Path, target: Path) -> Path:
        assert [line["step"] for line in folder.read_lines(METRICS_FILE)] == [2, 4, 6]
        return replace(shortened, target)

    monkeypatch.setattr(Path, "replace", seen_before)
    MetricsWriter(folder, resume_step=4, console=QUIET).close()
    assert [line["step"] for line in folder.read_lines(METRICS_FILE)] == [2, 4]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        METRICS_FILE,
        TENSORBOARD,
    ]


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"\xff", b"3", b'{"step": "x"}', b'{"step": true}', b"{}"]
)
def test_damaged_records_are_named_and_put_aside(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / METRICS_FILE
    for time in (1, 2):  # What was put aside before stays.
        path.write_bytes(b'{"step": 2}\n' + line + b'\n{"step": 4}\n{"step": 6}\n')
        said = io.StringIO()
        console = Console(file=said, width=1000)
        writer = MetricsWriter(RunFolder.open(tmp_path), resume_step=4, console=console)
        writer.write([record(6)])
        writer.close()
        lines = said.getvalue().splitlines()
        assert len(lines) == 1
        assert f"warning: {tmp_path}/{METRICS_FILE}, line 2: " in lines[0]
        assert "put aside into metrics.jsonl.damaged" in lines[0]
        read = RunFolder.open(tmp_path).read_lines(METRICS_FILE)
        assert [each["step"] for each in read] == [2, 4, 6]
        damaged = tmp_path / f"{METRICS_FILE}.damaged"
        assert damaged.read_bytes() == (line + b"\n") * time


@pytest.mark.parametrize("left", [b"", b'{"step": 2}\n', b'{"step": 2}\n{"step": 4'])
def test_records_that_end_before_the_checkpoint_are_missed(
    tmp_path: Path, left: bytes
) -> None:
    path = tmp_path / METRICS_FILE
    path.write_bytes(left)
    said = io.StringIO()
    console = Console(file=said, width=1000)
    MetricsWriter(RunFolder.open(tmp_path), resume_step=4, console=console).close()
    assert f"has no records after step {2 if left else 0}" in said.getvalue()
    assert "training goes on from step 4" in said.getvalue()


def test_a_start_misses_no_records(tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=1000)
    MetricsWriter(RunFolder.open(tmp_path), resume_step=0, console=console).close()
    assert said.getvalue() == ""
