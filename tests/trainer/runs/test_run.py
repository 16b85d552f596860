"""What a run's folder says it is, and what it said before there was a choice."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.errors import DataFormatError
from tests.fuzz import drill, mutate_json
from tests.runs import FakeTrainer, make_run
from trainer.agents.floq_config import FloqConfig
from trainer.agents.fql_config import FQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.data.fingerprint import WINDOW
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RUN_FILE, RunFolder
from trainer.runs.resumption import check_same_run
from trainer.runs.run import Run, read_run


def with_agent(run: Run, **changes: Any) -> Run:
    """The run with other hyperparameters."""
    agent = dataclasses.replace(run.config.agent, **changes)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, agent=agent))


def forget_success(path: Path) -> None:
    """Makes a run's file one that was written before there was ``agent.success``."""
    value = json.loads(path.read_text())
    assert value["config"]["agent"].pop("success") == "mixed"
    value.pop("seal", None)  # Nor was there any.
    path.write_text(json.dumps(value))


def test_a_run_reads_back() -> None:
    for success in ("ends", "mixed"):
        run = with_agent(make_run(), success=success)
        value = json.loads(json.dumps(run.to_json()))
        assert Run.from_json(value, where="memory") == run


@pytest.mark.parametrize(
    ("agent", "options", "other"),
    [
        (IQLConfig(), {"advantage_critics": "online"}, "target"),
        (FQLConfig(), {"normalize_q": False, "distance": "mean"}, "sum"),
        (FloqConfig(), {"time_zero": False, "time_features": "cosine"}, "fourier"),
    ],
)
def test_a_run_with_a_dropped_option_opens_if_it_had_the_default(
    agent: Any, options: dict[str, Any], other: str
) -> None:
    made = make_run()
    run = dataclasses.replace(
        made, config=dataclasses.replace(made.config, agent=agent)
    )
    value = json.loads(json.dumps(run.to_json()))
    value["config"]["agent"] |= options
    assert Run.from_json(value, where="memory") == run
    name = list(options)[-1]
    value["config"]["agent"][name] = other
    with pytest.raises(DataFormatError, match=rf"memory: .*{name}"):
        Run.from_json(value, where="memory")


def test_runs_of_before_went_past_success_and_go_on_so(tmp_path: Path) -> None:
    assert make_run().config.agent.success == "ends"
    mixed = with_agent(make_run(), success="mixed")
    trainer = FakeTrainer(tmp_path, run=mixed)
    trainer.commit(10)
    trainer.close()
    forget_success(tmp_path / RUN_FILE)
    forget_success(tmp_path / "checkpoints" / "10" / "run" / "metadata")
    shutil.rmtree(tmp_path / "checkpoints" / "10" / "digests")
    assert read_run(RunFolder.open(tmp_path)) == mixed
    with CheckpointReader(RunFolder.open(tmp_path)) as checkpoints:
        saved = checkpoints.read_run(10)
    assert saved == mixed
    check_same_run(saved, mixed, where="10")
    with pytest.raises(
        DataFormatError, match=r"agent\.success: 'mixed' before, 'ends' now"
    ):
        check_same_run(saved, make_run(), where="10")


def test_settings_are_named_before_data_whose_fingerprint_depends_on_them() -> None:
    run = make_run()

    def refuse(expected: str, **changes: Any) -> None:
        changes = {"fingerprint": "other", **changes}
        with pytest.raises(DataFormatError, match=f"10: is of another run.*{expected}"):
            check_same_run(run, dataclasses.replace(run, **changes), where="10")

    slower = with_agent(run, discount=0.9)
    refuse(r"agent\.discount: 0\.99 before, 0\.9 now", config=slower.config)
    refuse(
        rf"task: {run.task.task} before, 5 now",
        task=dataclasses.replace(run.task, task=5),
    )
    feed = dataclasses.replace(run.config.feed, memory_limit_bytes=9, reuse=2.0)
    windowed = dataclasses.replace(run.config, feed=feed)
    refuse(
        r"feed\.memory_limit_bytes: None before, 9 now; feed\.reuse: 8\.0 before, 2",
        config=windowed,
        fingerprint=f"{run.fingerprint}{WINDOW}of blocks",
    )
    # If the rows differ as well, they are the reason.
    other = dataclasses.replace(run, config=windowed, fingerprint="other")
    with pytest.raises(DataFormatError, match="was trained on data"):
        check_same_run(run, other, where="10")
    # Without a change of data, the settings of the feed may differ.
    check_same_run(run, dataclasses.replace(run, config=windowed), where="10")


def test_other_agents_have_no_such_choice() -> None:
    run = make_run()
    config = dataclasses.replace(run.config, agent=IQLConfig())
    run = dataclasses.replace(run, config=config)
    value = run.to_json()
    assert "success" not in value["config"]["agent"]
    assert Run.from_json(value, where="memory") == run


@pytest.mark.parametrize("value", [None, [], {}, {"config": 1}, {"config": {}}])
def test_what_is_no_run_is_refused(value: Any) -> None:
    with pytest.raises(DataFormatError, match=r"there/run\.json: .*not written by"):
        Run.from_json(value, where="there/run.json")


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff", b"[]", b'{"a": '])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RUN_FILE).write_bytes(data)
    with pytest.raises(DataFormatError, match=r"run\.json: .*copy it from"):
        read_run(RunFolder.open(tmp_path))


# Several times what others cost: an agent's settings are checked one by one.
@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_damage_ends_in_a_traceback(tmp_path: Path, count: int) -> None:
    data = json.dumps(make_run().to_json()).encode()

    def read(spoilt: bytes) -> None:
        (tmp_path / RUN_FILE).write_bytes(spoilt)
        read_run(RunFolder.open(tmp_path))

    found = drill(lambda draw: mutate_json(data, draw), read, count=count)
    assert found.read > 0 < found.refused
