import dataclasses
import random
from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline.domains.datasets import TASKS
from tests.fuzz import MUTATIONS, drill, mutate_bytes
from trainer import config, errors, shipped

TOML = """
dataset = "cube-single-play"
[agent]
name = "vast"
max_horizon = 10
[trainer]
steps = 100
batch_size = 8
updates_per_call = 10
log_every = 50
checkpoint_every = 100
[tasks.2.agent]
temperature = 0.3
candidates = 9
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return path


def test_tasks_override_the_agent(tmp_path: Path) -> None:
    path = write(tmp_path, TOML)
    plain, changed = config.load(path, task=1), config.load(path, task=2)
    assert (plain.agent.temperature, plain.agent.candidates) == (0.05, 4)
    assert (changed.agent.temperature, changed.agent.candidates) == (0.3, 9)
    assert plain.agent.max_horizon == changed.agent.max_horizon == 10


def test_encoding_reads_back(tmp_path: Path) -> None:
    value = config.load(write(tmp_path, TOML), task=2)
    assert config.decode(config.encode(value), where="memory") == value


def test_success_ends_an_episode_unless_said_otherwise(tmp_path: Path) -> None:
    assert config.load(write(tmp_path, TOML), task=1).agent.success == "ends"
    text = TOML.replace("[agent]", '[agent]\nsuccess = "mixed"')
    assert config.load(write(tmp_path, text), task=1).agent.success == "mixed"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "max_horizon",
            "max_horizn",
            r"some\.toml: unknown key 'agent\.max_horizn'; "
            r"did you mean 'agent\.max_horizon'",
        ),
        (
            "candidates = 9",
            "window_rule = 9",
            r"'agent\.window_rule'; vast has no such setting, but fql, .*; remove it",
        ),
        (
            "candidates = 9",
            "success = 'end'",
            r"agent\.success: expected 'ends' or 'mixed' \(got 'end'\)",
        ),
        ("[trainer]", "[trainr]", r"unknown key 'trainr'; did you mean 'trainer'"),
        ("candidates = 9", "canddates = 9", r"did you mean 'agent\.candidates'"),
        ("steps = 100", 'steps = "many"', r"trainer\.steps: .*integer.*'many'"),
        ("steps = 100", "steps = 95", r"trainer\.steps: expected a multiple of .*95"),
        (
            "[tasks.2.agent]",
            "[tasks.x.agent]",
            r"tasks\.x: expected a task number from 1",
        ),
        ('"vast"', '"vats"', r"agent\.name"),
        ("dataset =", "dataset ", r"not TOML"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TOML
    with pytest.raises(errors.ConfigError, match=message) as error:
        config.load(write(tmp_path, TOML.replace(old, new)), task=1)
    assert "\n" not in str(error.value)


def test_task_and_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"--task: .* from 1, got 0"):
        config.load(write(tmp_path, TOML), task=0)
    # A user's own data may have any number of tasks.
    assert config.load(write(tmp_path, TOML), task=6).agent.temperature == 0.05
    with pytest.raises(errors.ConfigError, match="no such configuration file"):
        config.load(tmp_path, task=1)
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(errors.ConfigError, match=r"binary\.toml: not TOML"):
        config.load(tmp_path / "binary.toml", task=1)
    with pytest.raises(errors.ConfigError, match="no such configuration file"):
        config.load(tmp_path / "none.toml", task=1)


def test_every_shipped_configuration_loads_for_every_task() -> None:
    paths = [
        path
        for path in sorted(Path("configs").rglob("*.toml"))
        if path.parent.name not in ("baselines", "sweeps")
    ]
    assert paths
    for path in paths:
        for task in TASKS:
            config.load(path, task=task)


def test_a_run_keeps_a_checkpoint() -> None:
    with pytest.raises(ValueError, match=r"keep_checkpoints: expected at least 1, got"):
        config.TrainerConfig(keep_checkpoints=0)


def test_seeds_are_those_that_give_networks_of_their_own() -> None:
    # Why: JAX keeps the low 32 bits of a seed.
    keys = [jax.random.key_data(jax.random.key(seed)) for seed in (0, 2**32)]
    np.testing.assert_array_equal(*keys)

    assert config.TrainerConfig(seed=2**32 - 2, seeds=2).seed_range[-1] == 2**32 - 1
    for seed, seeds in ((-1, 4), (2**32 - 1, 2), (2**70, 1)):
        with pytest.raises(ValueError, match=rf"trainer.seed: .*, got {seed} to"):
            config.TrainerConfig(seed=seed, seeds=seeds)


def test_checkpoints_that_are_kept_need_checkpoints() -> None:
    with pytest.raises(ValueError, match=r"trainer.checkpoint_every: .*, got 0"):
        config.TrainerConfig(checkpoint_every=0, keep_every=100)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("reuse", "nan"),
        ("reuse", "inf"),
        ("reuse", "0"),
        ("device_share", "nan"),
        ("device_share", "-0.5"),
        ("device_share", "1.5"),
    ],
)
def test_numbers_of_the_feed_have_ranges(name: str, number: str) -> None:
    raw = {"dataset": "some", "feed": {name: float(number)}}
    with pytest.raises(ValueError, match=rf"feed.{name}: expected .* {float(number)}"):
        config.decode(raw, where="some.toml")


def test_a_command_is_resolved_from_file_agent_and_overrides() -> None:
    file = Path("configs/cube-single-play.toml")
    plain = config.resolve(file, task=3, prog="test")
    assert plain == config.Resolved(config.load(file, task=3), 3, file)
    # The file's own agent, asked for by name, needs no other file.
    assert config.resolve(file, task=3, agent="vast", prog="test") == plain
    fql = config.resolve(
        file,
        task=3,
        agent="fql",
        overrides=["--agent.width", "64", "--mesh.seed", "2"],
        prog="test",
    )
    assert fql.baseline == Path("configs/baselines/fql.toml")
    loaded = config.load(file, task=3, agent="fql")
    assert fql.config.agent == dataclasses.replace(loaded.agent, width=64)
    assert fql.config.trainer == loaded.trainer
    assert fql.config.mesh.seed == 2


def test_an_override_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["--agent.widht", "64"]
    with pytest.raises(SystemExit) as stop:
        config.resolve("configs/demo.toml", task=1, overrides=overrides, prog="a test")
    assert stop.value.code == 2
    assert "--agent.width" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('dataset = "x"\n[agent]\nname = [1, 2]', r"agent\.name: expected one of"),
        ('dataset = "x"\nagent = 3', "agent: "),
        ("tasks = 3", "tasks: expected a table, got 3"),
        ("[tasks]\n1 = 3", r"tasks\.1: expected a table, got 3"),
        ("a = " + "[" * 10_000, "not TOML"),
        ("a = " + "1" * 10_000, "not TOML"),
    ],
)
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config.load(write(tmp_path, text), task=1)


@pytest.mark.parametrize("text", ["datasets = 3", "[datasets]\nx = 3"])
def test_settings_that_are_no_tables_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(errors.ConfigError, match="expected a table, got 3"):
        shipped.read_baseline(write(tmp_path, text), dataset="x", task=1)


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path: Path, count: int) -> None:
    path = write(tmp_path, TOML)
    values = ('""', "[1, 2]", "-1", "inf", "nan", "true", "{a = 1}", "1979-05-27")

    def mutate(draw: random.Random) -> bytes:
        if draw.random() < 0.5:
            return mutate_bytes(TOML.encode(), draw)
        lines = TOML.splitlines()
        chosen = draw.randrange(len(lines))
        key, is_value, _ = lines[chosen].partition(" = ")
        lines[chosen] = f"{key or 'x'}{is_value or ' = '}{draw.choice(values)}"
        return "\n".join(lines).encode()

    def read(spoilt: bytes) -> None:
        path.write_bytes(spoilt)
        config.load(path, task=2)

    found = drill(mutate, read, count=count)
    assert found.read > 0 < found.refused
