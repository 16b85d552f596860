"""The baselines' shipped settings, against a table of what is published or chosen."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tyro

from trainer import config, errors
from trainer.agents.fql_config import FQLConfig
from trainer.agents.registry import AGENTS
from trainer.shipped import CONFIGS

BASELINES = Path("configs/baselines")
DATASETS = (
    "scene-play",
    "cube-single-play",
    "cube-double-play",
    "puzzle-4x4-play",
    "antmaze-large-navigate",
    "antmaze-giant-navigate",
    "cube-triple-play",
    "cube-quadruple-play",
    "puzzle-4x5-play",
    "puzzle-4x6-play",
)

# Columns in the order of DATASETS; what is one value holds for all of them.
_GIANT = [0.99] * 5 + [0.995] + [0.99] * 4
_GIANT_AND_TRIPLE = [0.99] * 5 + [0.995] * 2 + [0.99] * 3
_MIN_IN_MAZES = ["mean"] * 4 + ["min"] * 2 + ["mean"] * 4
_FQL_ALPHA = [300.0, 300.0, 300.0, 1000.0, 10.0, 10.0, 300.0, 300.0, 1000.0, 1000.0]
FACTS: dict[str, dict[str, Any]] = {
    "iql": {
        "discount": _GIANT_AND_TRIPLE,
        "alpha": [10.0, 1.0, 0.3, 3.0, 10.0, 10.0, 10.0, 0.3, 3.0, 3.0],
        "width": [256] * 4 + [512] * 2 + [256] * 4,
        "expectile": 0.9,
        "max_weight": 100.0,
    },
    "fql": {
        "n_step": 1,
        "discount": _GIANT_AND_TRIPLE,
        "alpha": _FQL_ALPHA,
        "aggregation": _MIN_IN_MAZES,
        "width": 512,
        "flow_steps": 10,
    },
    "ifql": {
        "n_step": 1,
        "discount": _GIANT_AND_TRIPLE,
        "candidates": 32,
        "expectile": 0.9,
        "width": 512,
    },
    "fql-n": {
        "n_step": 5,
        "discount": _GIANT,
        "alpha": [100.0] * 4 + [10.0] * 2 + [100.0] * 4,
        "aggregation": _MIN_IN_MAZES,
        "window_rule": "published",
        "width": 512,
    },
    "ifql-n": {
        "n_step": 5,
        "discount": _GIANT,
        "candidates": 32,
        "expectile": 0.9,
        "window_rule": "published",
        "width": 512,
    },
    "qc": {
        "n_step": 5,
        "discount": _GIANT,
        "candidates": 32,
        "aggregation": "mean",
        "window_rule": "published",
        "width": 512,
    },
    "value-flows": {
        "discount": [0.99, 0.995, 0.995, 0.99, 0.99, 0.995, 0.995, 0.995, 0.99, 0.99],
        "end_weight": [1.0, 1.0, 1.0, 3.0, 10.0, 10.0, 3.0, 3.0, 3.0, 3.0],
        "confidence": [0.3, 3.0, 3.0, 100.0, 0.01, 0.01, 0.03, 0.03, 100.0, 100.0],
        "return_aggregation": ["min"] + ["mean"] * 9,
        "aggregation": ["mean"] * 3 + ["min"] * 3 + ["mean"] * 2 + ["min"] * 2,
        "path_weight": 1.0,
        "candidates": 16,
        "width": 512,
    },
    "floq": {
        "discount": _GIANT,
        "alpha": _FQL_ALPHA,
        "aggregation": ["mean"] * 5 + ["min"] + ["mean"] * 4,
        "critic_depth": [4, 2, 2, 4, 4, 4, 2, 2, 4, 4],
        "critic_steps": 8,
        "noises": 8,
        "noise_share": 0.1,
        "width": 512,
    },
}
BATCH = {("floq", "antmaze-giant-navigate"): 512}


def beside_baselines(tmp_path: Path, text: str) -> Path:
    """A configuration with the shipped baselines beside it."""
    shutil.copytree(BASELINES, tmp_path / "baselines")
    path = tmp_path / "some.toml"
    path.write_text(text)
    return path


def test_every_agent_has_its_file_and_every_file_its_data_sets() -> None:
    assert set(FACTS) | {"vast"} == set(AGENTS)
    names = {path.stem.replace("_", "-") for path in BASELINES.glob("*.toml")}
    assert names == set(FACTS)


@pytest.mark.parametrize("agent", FACTS)
def test_settings_of_every_data_set(tmp_path: Path, agent: str) -> None:
    for column, dataset in enumerate(DATASETS):
        path = tmp_path / f"{dataset}.toml"
        # A batch and an agent of VAST's, with settings no other agent has.
        path.write_text(
            f'dataset = "{dataset}"\n'
            '[agent]\nname = "vast"\nmax_horizon = 25\nwidth = 1024\n'
            "[trainer]\nbatch_size = 1024\nsteps = 500_000\n"
            "[tasks.3.agent]\ncandidates = 1\n"
        )
        if column == 0:
            shutil.copytree(BASELINES, tmp_path / "baselines")
        for task in (1, 3):
            loaded = config.load(path, task=task, agent=agent)
            assert loaded.dataset == dataset
            assert loaded.trainer.steps == 500_000
            assert loaded.trainer.batch_size == BATCH.get((agent, dataset), 256)
            settings = config.encode(loaded)["agent"]
            expected = {"name": agent, "learning_rate": 3e-4, "target_rate": 0.005}
            for name, facts in FACTS[agent].items():
                expected[name] = facts[column] if isinstance(facts, list) else facts
            assert {name: settings[name] for name in expected} == expected
            assert config.decode(config.encode(loaded), where="memory") == loaded


def test_tasks_override_a_data_sets_settings(tmp_path: Path) -> None:
    path = beside_baselines(tmp_path, 'dataset = "mine"\n')
    file = tmp_path / "baselines/fql.toml"
    extra = "[datasets.mine.agent]\nalpha = 7.0\n[datasets.mine.tasks.2.agent]\n"
    file.write_text(file.read_text() + extra + "alpha = 8.0\n")
    alphas = [config.load(path, task=t, agent="fql").agent.alpha for t in (1, 2)]
    assert alphas == [7.0, 8.0]
    file.write_text(file.read_text() + "[datasets.mine.tasks.x.agent]\n")
    with pytest.raises(errors.ConfigError, match=r"mine: tasks\.x: expected a task"):
        config.load(path, task=1, agent="fql")


def test_a_files_own_agent_is_left_as_it_is(tmp_path: Path) -> None:
    path = beside_baselines(
        tmp_path, 'dataset = "scene-play"\n[agent]\nname = "fql"\nalpha = 7.0\n'
    )
    for agent in (None, "fql"):
        assert config.load(path, task=1, agent=agent).agent == FQLConfig(alpha=7.0)
    assert config.load(path, task=1, agent="qc").agent.name == "qc"
    # VAST's settings are a configuration's own: there is no file to take them from.
    with pytest.raises(
        errors.ConfigError, match=r"baselines/vast\.toml: no such .* configs/baselines"
    ):
        config.load(path, task=1, agent="vast")


def test_mistakes_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text('dataset = "mine"\n')
    with pytest.raises(errors.ConfigError, match=r"--agent: expected one of vast, iql"):
        config.load(path, task=1, agent="fqln")
    # Without baselines beside the configuration, the shipped ones are read.
    found = config.resolve(path, agent="fql-n", prog="test")
    assert found.baseline == CONFIGS / "baselines/fql_n.toml"
    shutil.copytree(BASELINES, tmp_path / "baselines")
    with pytest.raises(errors.ConfigError, match=r"many data sets; .* --agent"):
        config.load(tmp_path / "baselines/fql.toml", task=1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            'name = "fql"\nalhpa = 1.0',
            r"unknown key 'agent\.alhpa'; did you mean 'agent\.alpha'",
        ),
        ('name = "fqll"', r"agent\.name: expected one of .*'fqll'; did you mean 'fql'"),
        ('name = "fql"\nn_step = 5', r"agent\.n_step: expected 1 for fql, got 5"),
        ('name = "floq"\nbins = "many"', r"agent\.bins: .*integer.*'many'"),
        # A setting of another agent is none of this one's.
        ('name = "iql"\nmax_horizon = 5', r"unknown key 'agent\.max_horizon'"),
        ("max_horizn = 5", r"did you mean 'agent\.max_horizon'"),
    ],
)
def test_errors_name_the_agents_keys(table: str, message: str) -> None:
    raw = {"dataset": "some", "agent": tomllib.loads(table)}
    with pytest.raises(errors.ConfigError, match=message) as error:
        config.decode(raw, where="some.toml")
    assert "\n" not in str(error.value)


def test_the_command_line_overrides_any_agent(tmp_path: Path) -> None:
    path = beside_baselines(tmp_path, 'dataset = "scene-play"\n')
    for agent, flag, value in (("qc", "candidates", 7), ("floq", "noises", 3)):
        loaded = config.load(path, task=1, agent=agent)
        changed = tyro.cli(
            tyro.conf.AvoidSubcommands[config.Config],
            default=loaded,
            args=[f"--agent.{flag}", str(value), "--trainer.steps", "100000"],
        )
        assert changed.agent.name == agent
        assert getattr(changed.agent, flag) == value
        assert changed.trainer.steps == 100_000


@pytest.mark.parametrize("agent", [*FACTS, "vast"])
def test_data_that_nobody_published_get_an_agents_defaults(
    tmp_path: Path, agent: str
) -> None:
    path = tmp_path / "own.toml"
    other = "iql" if agent == "vast" else "vast"
    path.write_text(f'dataset = "own"\n[agent]\nname = "{other}"\n')
    beside = config.resolve(path, agent=agent, prog="test")
    alone = config.resolve(None, dataset="own", agent=agent, prog="test")
    for found in (beside, alone):
        assert found.remark.startswith(f"{agent} has no settings for own: its defaults")
        assert "\n" not in found.remark
        assert (found.config.dataset, found.config.agent.name) == ("own", agent)
    assert beside.config.agent == alone.config.agent
    assert (beside.file, alone.file) == (path, None)


def test_a_data_set_that_may_be_mistyped_is_named() -> None:
    found = config.resolve(None, dataset="scene-pley", agent="iql", prog="test")
    assert "iql has no settings for scene-pley; it has some for scene-play:" in (
        found.remark
    )
    # What there are settings for is not remarked upon.
    found = config.resolve(None, dataset="scene-play", agent="iql", prog="test")
    assert (found.remark, found.file) == ("", CONFIGS / "scene-play.toml")
