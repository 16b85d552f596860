"""Configurations by name: those that are shipped, and OGBench's names of tasks."""

from pathlib import Path

import pytest

from trainer import config
from trainer.errors import ConfigError
from trainer.shipped import CONFIGS, find_configuration, list_configurations


@pytest.mark.parametrize(
    ("name", "file", "task"),
    [
        ("cube-single-play", "cube-single-play", None),
        ("cube-single-play-v0", "cube-single-play", None),
        ("cube-single-play-singletask-task1-v0", "cube-single-play", 1),
        # Default tasks of OGBench, see its environments.
        ("cube-single-play-singletask-v0", "cube-single-play", 2),
        ("puzzle-4x4-play-singletask-v0", "puzzle-4x4-play", 4),
        ("puzzle-4x6-play-singletask-v0", "puzzle-4x6-play", 2),
        ("antmaze-large-navigate-singletask-v0", "antmaze-large-navigate", 1),
        ("wide/cube-triple-play-2048", "wide/cube-triple-play-2048", None),
        ("demo", "demo", None),
    ],
)
def test_names_are_understood(name: str, file: str, task: int | None) -> None:
    assert find_configuration(name) == (CONFIGS / f"{file}.toml", task)


def test_paths_stay_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("configs/demo.toml", "nowhere.toml", tmp_path):
        assert find_configuration(path) == (Path(path), None)
    # A file of one's own goes before one that is shipped, a folder does not.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("")
    (tmp_path / "scene-play").mkdir()
    assert find_configuration("demo") == (Path("demo"), None)
    assert find_configuration("scene-play")[0] == CONFIGS / "scene-play.toml"


def test_unknown_names_have_neighbours() -> None:
    with pytest.raises(ConfigError, match="nearest: cube-single-play,") as error:
        find_configuration("cube-singl-play-singletask-task1-v0")
    assert "\n" not in str(error.value)
    with pytest.raises(
        ConfigError, match=r"shipped: ablations/.* Leave it out and give"
    ):
        find_configuration("xyzzy")
    # What is listed can be read; what holds no data set's settings is not listed.
    names = list_configurations()
    assert {"scene-play", "wide/cube-triple-play-4096"} <= set(names)
    assert not [name for name in names if "baselines" in name or "sweeps" in name]


def test_the_task_of_a_name_is_that_of_the_run() -> None:
    name = "puzzle-4x4-play-singletask-task2-v0"
    found = config.resolve(name, prog="test")
    assert found.task == 2
    assert found.config == config.load("puzzle-4x4-play", task=2)
    assert found.config != config.load("puzzle-4x4-play", task=1)
    assert config.resolve(name, task=2, prog="test") == found
    with pytest.raises(ConfigError, match=r"--task: expected 2, which .* got 3; leave"):
        config.resolve(name, task=3, prog="test")
