"""Every method trains and acts on every data set of the paper, with shipped settings.

The commands run five updates of narrow networks on made-up rows, then a short episode.
Other tests check that the networks learn.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest

from tests.domain_stores import write_domain_store
from trainer import cli, config
from trainer.agents.registry import AGENTS
from trainer.report.paper import paper_datasets
from trainer.runs.evaluations import read_evaluations
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import read_run

TASK = 2
STEPS = 5
EPISODE_LIMIT = 20
# Small values of settings, of which a method has some.
SMALL = {
    "width": 8,
    "depth": 1,
    "flow_steps": 2,
    "critic_depth": 1,
    "critic_steps": 2,
    "noises": 2,
}
ONE_ENVIRONMENT = ("--environments", 1, "--workers", 1)


@functools.cache
def configuration(dataset: str, method: str) -> config.Config:
    return config.load(Path("configs") / f"{dataset}.toml", task=TASK, agent=method)


@pytest.fixture(scope="module", params=paper_datasets())
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    dataset = request.param
    discounts = {configuration(dataset, method).agent.discount for method in AGENTS}
    return write_domain_store(
        tmp_path_factory.mktemp("data"),
        dataset,
        discounts=sorted(discounts),
        episode_limit=EPISODE_LIMIT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", AGENTS)
def test_trains_and_acts(store: Path, method: str, tmp_path: Path) -> None:
    dataset, out = store.name, tmp_path / "run"
    agent = configuration(dataset, method).agent
    small = {name: value for name, value in SMALL.items() if hasattr(agent, name)}
    overrides = {f"agent.{name}": value for name, value in small.items()} | {
        "trainer.steps": STEPS,
        "trainer.batch_size": 8,
        "trainer.updates_per_call": STEPS,
        "trainer.log_every": STEPS,
        "trainer.checkpoint_every": STEPS,
    }
    given = [part for name, value in overrides.items() for part in (f"--{name}", value)]
    train = ["train", f"configs/{dataset}.toml", "--store", store, "--task", TASK]
    assert run(*train, "--agent", method, "--out", out, *given) == 0
    assert run("evaluate", out, "--episodes", 1, *ONE_ENVIRONMENT) == 0

    assert read_run(RunFolder.open(out)).config.agent == dataclasses.replace(
        agent, **small
    )
    (line,) = RunFolder.open(out).read_lines(METRICS_FILE)
    assert line["step"] == STEPS
    assert np.isfinite(line["loss"])
    (evaluation,) = read_evaluations(RunFolder.open(out))
    assert (evaluation.step, evaluation.task) == (STEPS, TASK)
    assert 1 <= evaluation.lengths[0] <= EPISODE_LIMIT


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])
