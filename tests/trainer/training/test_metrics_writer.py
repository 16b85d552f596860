"""Records on disk: none lost to a kill, and an error where one cannot be written."""

import json
import math
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from pipeline.store.errors import DataFormatError
from trainer.runs.folder import METRICS_FILE, TENSORBOARD, RunFolder
from trainer.training.metrics_writer import MetricsWriter

ROOM = 4096


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
    writer = MetricsWriter(RunFolder.open(tmp_path), resume_step=4)
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
    writer = MetricsWriter(RunFolder.open(tmp_path), resume_step=0)
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
    MetricsWriter(folder, resume_step=4).close()
    assert [line["step"] for line in folder.read_lines(METRICS_FILE)] == [2, 4]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        METRICS_FILE,
        TENSORBOARD,
    ]


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff", b"3", b'{"step": "x"}'])
def test_training_does_not_go_on_from_records_that_are_damaged(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / METRICS_FILE
    path.write_bytes(b'{"step": 2}\n' + line + b"\n")
    before = path.read_bytes()
    with pytest.raises(DataFormatError, match=r"jsonl, line 2: .*remove the line"):
        MetricsWriter(RunFolder.open(tmp_path), resume_step=4)
    assert path.read_bytes() == before
