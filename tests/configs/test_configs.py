"""The shipped configurations, against the paper's tables."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.domains.datasets import TASKS
from trainer import config
from trainer.report.paper import find_paper_result, paper_datasets

CONFIGS = Path("configs")

# Appendix, "Domain-specific hyperparameters": K, β and N_rej of tasks 1 to 5, γ.
DOMAINS: dict[str, tuple[int, list[float], list[int], float]] = {
    "scene-play": (25, [0.05] * 5, [4, 4, 1, 4, 1], 0.995),
    "cube-single-play": (25, [0.05] * 5, [4] * 5, 0.99),
    "cube-double-play": (25, [0.05] * 5, [4] * 5, 0.995),
    "puzzle-4x4-play": (10, [0.01, 0.05, 0.01, 0.01, 0.01], [16] * 4 + [8], 0.995),
    "antmaze-large-navigate": (50, [0.05] * 5, [4] * 5, 0.995),
    "antmaze-giant-navigate": (50, [0.01, 0.01, 0.05, 0.01, 0.05], [4] * 5, 0.995),
    "cube-triple-play": (25, [0.08] * 5, [4] * 5, 0.999),
    "cube-quadruple-play": (10, [0.005] * 5, [16] * 5, 0.999),
    "puzzle-4x5-play": (10, [0.005] * 5, [32] * 5, 0.995),
    "puzzle-4x6-play": (10, [0.005] * 5, [16] * 5, 0.999),
}

# Appendix, "General hyperparameters".
GENERAL = {
    "learning_rate": 3e-4,
    "target_rate": 0.005,
    "flow_steps": 10,
    "clip_norm": 1.0,
    "expectile": 0.9,
    "composition": 0.5,
    "goal_current": 0.1,
    "goal_future": 0.8,
    "goal_random": 0.1,
    "depth": 4,
}


def test_every_domain_of_the_paper_has_its_file() -> None:
    assert set(DOMAINS) == set(paper_datasets())
    names = {path.stem for path in CONFIGS.glob("*.toml")}
    assert names == {
        *DOMAINS,
        "demo",
        "cpu-evidence",
        "pointmaze-medium-navigate",
    }


@pytest.mark.parametrize("dataset", DOMAINS)
@pytest.mark.parametrize("task", TASKS)
def test_settings_are_the_papers(dataset: str, task: int) -> None:
    horizon, temperatures, candidates, discount = DOMAINS[dataset]
    large = dataset == "cube-triple-play"
    loaded = config.load(CONFIGS / f"{dataset}.toml", task=task)
    assert loaded.dataset == dataset
    expected = GENERAL | {
        "name": "vast",
        "max_horizon": horizon,
        "temperature": temperatures[task - 1],
        "candidates": candidates[task - 1],
        "discount": discount,
        "width": 1024 if large else 512,
    }
    agent = config.encode(loaded)["agent"]
    assert {name: agent[name] for name in expected} == expected
    assert loaded.trainer.steps == 1_000_000
    assert loaded.trainer.batch_size == (1024 if large else 512)


@pytest.mark.parametrize("dataset", DOMAINS)
def test_headers_quote_the_papers_results(dataset: str) -> None:
    text = (CONFIGS / f"{dataset}.toml").read_text()
    results = [find_paper_result(dataset, task, "VAST") for task in TASKS]
    assert f"transitions: {', '.join(map(str, results))}.\n" in text
    assert f"--discounts {DOMAINS[dataset][3]}\n" in text


@pytest.mark.parametrize(
    "path",
    [
        *sorted(path for path in CONFIGS.glob("*.toml") if path.stem != "demo"),
        *sorted((CONFIGS / "ablations").iterdir()),
        *sorted((CONFIGS / "wide").iterdir()),
    ],
    ids=str,
)
def test_headers_name_their_own_file(path: Path) -> None:
    assert f"python -m trainer train {path} " in path.read_text()


ABLATED = {
    "horizon": ("max_horizon", 5),
    "composition": ("composition", 0.0),
    "candidates": ("candidates", 1),
    "temperature": ("temperature", 0.0),
}


@pytest.mark.parametrize("dataset", ["cube-double-play", "puzzle-4x4-play"])
@pytest.mark.parametrize("what", ABLATED)
def test_ablations_change_one_setting_of_every_task(dataset: str, what: str) -> None:
    name, value = ABLATED[what]
    path = CONFIGS / "ablations" / f"{dataset}-{what}.toml"
    for task in TASKS:
        published = config.encode(
            config.load(CONFIGS / f"{dataset}.toml", task=task),
        )
        ablated = config.encode(config.load(path, task=task))
        assert ablated["agent"][name] == value
        assert published["agent"][name] != value
        assert _with_agent(ablated, name, published["agent"][name]) == published


@pytest.mark.parametrize("path", sorted((CONFIGS / "ablations").iterdir()), ids=str)
def test_swept_values_are_valid_and_include_the_published_one(path: Path) -> None:
    dataset, _, what = path.stem.rpartition("-")
    name, smallest = ABLATED[what]
    text = path.read_text()
    (listed,) = re.findall(r"for value in (.*); do", text)
    (task,) = re.findall(r"--task (\d)", text)
    assert f"--agent.{name.replace('_', '-')} $value\n" in text
    values = [type(smallest)(value) for value in listed.split()]
    published = config.load(CONFIGS / f"{dataset}.toml", task=int(task))
    assert {smallest, getattr(published.agent, name)} <= set(values)
    for value in values:
        raw = _with_agent(config.encode(published), name, value)
        assert getattr(config.decode(raw, where=str(path)).agent, name) == value


@pytest.mark.parametrize("width", [2048, 4096, 8192])
def test_wide_files_change_nothing_but_the_width(width: int) -> None:
    path = CONFIGS / "wide" / f"cube-triple-play-{width}.toml"
    for task in TASKS:
        published = config.load(CONFIGS / "cube-triple-play.toml", task=task)
        wide = config.load(path, task=task)
        expected = _with_agent(config.encode(published), "width", width)
        assert config.encode(wide) == expected


def _with_agent(encoded: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    return {**encoded, "agent": {**encoded["agent"], name: value}}
