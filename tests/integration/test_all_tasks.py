"""Every task of the paper trains and acts, with its configuration and its simulator.

The commands run twenty updates of narrow networks on made-up rows of the task's shape,
then a short episode. Other tests check that the networks learn.
"""

import dataclasses
import functools
from pathlib import Path

import pytest

from pipeline.domains.datasets import TASKS, parse_dataset
from tests.domain_stores import write_domain_store
from trainer import cli, config
from trainer.report.paper import paper_datasets
from trainer.runs.evaluations import read_evaluations
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import read_run

STEPS = 20
EPISODE_LIMIT = 60
SMALL = {"width": 8, "depth": 1, "flow_steps": 2}


@pytest.fixture(scope="module", params=paper_datasets())
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    dataset = request.param
    return write_domain_store(
        tmp_path_factory.mktemp("data"),
        dataset,
        discounts=(configuration(dataset, 1).agent.discount,),
        episode_limit=EPISODE_LIMIT,
    )


@functools.cache
def configuration(dataset: str, task: int) -> config.Config:
    return config.load(Path("configs") / f"{dataset}.toml", task=task)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_trains_and_acts(store: Path, task: int, tmp_path: Path) -> None:
    dataset, out = store.name, tmp_path / "run"
    train = ["train", f"configs/{dataset}.toml", "--store", store, "--task", task]
    overrides = {f"agent.{name}": value for name, value in SMALL.items()} | {
        "trainer.steps": STEPS,
        "trainer.batch_size": 16,
        "trainer.updates_per_call": 10,
        "trainer.log_every": 10,
        "trainer.checkpoint_every": STEPS,
    }
    given = [part for name, value in overrides.items() for part in (f"--{name}", value)]
    assert run(*train, "--out", out, *given) == 0
    assert run("evaluate", out, "--episodes", 1, *ONE_ENVIRONMENT) == 0

    trained = read_run(RunFolder.open(out))
    agent = configuration(dataset, task).agent
    assert trained.config.agent == dataclasses.replace(agent, **SMALL)
    # All five tasks have equal facts, so one compiled program serves them.
    assert (trained.facts.reward_min, trained.facts.return_max) == (-1, 0)
    assert [line["step"] for line in RunFolder.open(out).read_lines(METRICS_FILE)] == [
        10,
        STEPS,
    ]
    (evaluation,) = read_evaluations(RunFolder.open(out))
    assert (evaluation.step, evaluation.task) == (STEPS, task)
    expected = parse_dataset(dataset).task_environment(task)
    assert evaluation.environment_id == expected.environment_id
    assert evaluation.success_timing == evaluation.store_success_timing
    assert 1 <= evaluation.lengths[0] <= EPISODE_LIMIT


ONE_ENVIRONMENT = ("--environments", 1, "--workers", 1)


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])
