"""Records of a run: none lost to a kill, none twice, an error where disks are full."""

import io
import json
import math
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from pipeline.store.errors import MissingPackageError
from tests.runs import make_run
from tests.trainer.sweep.made_up_cells import made_up_evaluation
from trainer.config import TrackingConfig
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import METRICS_FILE, TENSORBOARD, RunFolder
from trainer.runs.run import Run
from trainer.tracking.tensorboard import write_evaluations
from trainer.tracking.trackers import Trackers

ROOM = 4096

QUIET = Console(quiet=True)


RUN = make_run()  # Of the seeds 3 and 4.


def record(step: int, *, seed: int = 3, **figures: object) -> dict[str, object]:
    return {"step": step, "seed": seed, "loss": 0.5} | figures


def track(
    folder: Path, *, resume_step: int = 0, console: Console = QUIET, run: Run = RUN
) -> Trackers:
    return Trackers(
        RunFolder.open(folder), run, resume_step=resume_step, console=console
    )


def fill(trackers: Trackers) -> None:
    for step in range(ROOM):
        trackers.write([record(step)])


def events(folder: Path, sub_run: str) -> Iterator[Event]:
    """Of the one file: length, checksum, content and its checksum, again and again."""
    (file,) = (f for f in (folder / TENSORBOARD / sub_run).iterdir() if f.is_file())
    data = file.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]


def points(folder: Path, sub_run: str) -> list[tuple[int, str, float]]:
    """Step, tag and number of every scalar."""
    return [
        (event.step, value.tag, value.simple_value)
        for event in events(folder, sub_run)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def test_tensorboard_is_given_groups_of_what_is_finite(tmp_path: Path) -> None:
    trackers = track(tmp_path)
    counts = [0, 2, 1]
    figures = {"time_s": 2, "bad": math.nan, "value_max": 1, "validation_loss": 4}
    trackers.write([record(6, **figures, drawn_by_horizon=counts), record(6, seed=4)])
    # There at once, should the process be killed.
    version, opening, _, begun, logged = events(tmp_path, "seed-3")
    assert version.file_version == "brain.Event:2"
    assert opening.session_log.status == SessionLog.START
    assert points(tmp_path, "seed-3") == [
        (6, "losses/loss", 0.5),
        (6, "time/time_s", 2),
        (6, "values/value_max", 1),
        (6, "validation/loss", 4),
    ]
    assert points(tmp_path, "seed-4") == [(6, "losses/loss", 0.5)]
    (drawn,) = (v for v in logged.summary.value if v.HasField("histo"))
    assert drawn.tag == "horizons/drawn"
    assert list(drawn.histo.bucket) == counts
    assert (drawn.histo.num, drawn.histo.sum, drawn.histo.max) == (3, 1 * 2 + 2, 2)
    (settings,) = begun.summary.value
    content = HParamsPluginData.FromString(settings.metadata.plugin_data.content)
    hyperparameters = content.session_start_info.hparams
    assert hyperparameters["agent.width"].number_value == 8
    assert hyperparameters["seed"].number_value == 3
    trackers.close()


def test_a_restart_shows_no_point_twice(tmp_path: Path) -> None:
    old = tmp_path / TENSORBOARD / "events.out.tfevents.1.of-before-there-were-sub-runs"
    old.parent.mkdir()
    old.write_bytes(b"")
    trace = tmp_path / TENSORBOARD / "plugins/profile/a-trace"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"")
    first = track(tmp_path)
    for step in (2, 4, 6):
        first.write([record(step), record(step, seed=4)])
    first.close()
    second = track(tmp_path, resume_step=4)
    second.write([record(6, loss=1.5), record(6, seed=4)])
    second.close()
    assert points(tmp_path, "seed-3") == [
        (2, "losses/loss", 0.5),
        (4, "losses/loss", 0.5),
        (6, "losses/loss", 1.5),
    ]
    assert len(points(tmp_path, "seed-4")) == 3
    assert not old.exists()
    assert trace.exists()
    lines = RunFolder.open(tmp_path).read_lines(METRICS_FILE)
    assert [line["step"] for line in lines] == [2, 2, 4, 4, 6, 6]


def test_evaluations_are_points_of_a_sub_run(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    training = track(tmp_path)
    training.write([record(30)])
    for step, successes in ((20, (1, 0)), (10, (0, 0)), (20, (1, 1))):
        append_evaluation(folder, made_up_evaluation(step, 3, successes))
        write_evaluations(folder, RUN)
    append_evaluation(folder, made_up_evaluation(20, 3, (1,), task=2))
    one = replace(made_up_evaluation(20, 3, (0,)), candidates=1)
    append_evaluation(folder, one)
    elsewhere = replace(
        made_up_evaluation(20, 3, (0, 0, 0)),
        environment_id="Icy-v0",
        environment_arguments={"size": 3},
    )
    append_evaluation(folder, elsewhere)
    write_evaluations(folder, RUN)
    training.close()
    track(tmp_path, resume_step=30).close()  # Leaves them alone.
    own = [
        point
        for point in points(tmp_path, "seed-3/evaluation")
        if not re.search("task|candidates|Icy", point[1])
    ]
    assert own == [
        (10, "evaluation/success", 0),
        (10, "evaluation/return", -9),
        (10, "evaluation/length", 9),
        (20, "evaluation/success", 1),
        (20, "evaluation/return", -9),
        (20, "evaluation/length", 9),
    ]
    others = points(tmp_path, "seed-3/evaluation")
    assert (20, "evaluation_task_2/success", 1) in others
    assert (20, "evaluation_candidates_1/success", 0) in others
    assert (20, "evaluation_Icy-v0-size-3/success", 0) in others


def test_trackers_are_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    track(tmp_path, run=asking(TrackingConfig(tensorboard=False))).close()
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'vast-rl\[wandb\]'"):
        track(tmp_path, run=asking(TrackingConfig(wandb="offline")))


def asking(tracking: TrackingConfig) -> Run:
    return replace(RUN, config=replace(RUN.config, tracking=tracking))


def test_a_full_disk_is_an_error_whatever_it_hits_first(tmp_path: Path) -> None:
    trackers = track(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            fill(trackers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    trackers.close()
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
    track(tmp_path, resume_step=4).close()
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
        trackers = track(tmp_path, resume_step=4, console=console)
        trackers.write([record(6)])
        trackers.close()
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
    track(tmp_path, resume_step=4, console=console).close()
    assert f"has no records after step {2 if left else 0}" in said.getvalue()
    assert "training goes on from step 4" in said.getvalue()


def test_a_start_misses_no_records(tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=1000)
    track(tmp_path, console=console).close()
    assert said.getvalue() == ""
