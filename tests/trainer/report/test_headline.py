"""First sentences: ranks, ties, nothing solved, and what is not to be compared."""

import dataclasses
from typing import Any

import pytest

from tests.evaluated import RUN, evaluation
from trainer.agents.fql_config import FQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.report.headline import describe_places, describe_run, write_lead
from trainer.report.methods import pool_methods
from trainer.report.sources import Source
from trainer.runs.folder import RunFolder

AGENTS: dict[str, Any] = {
    "vast": RUN.config.agent,
    "iql": IQLConfig(),
    "fql": FQLConfig(),
    "qc": QCConfig(),
}


def make_source(
    agent: str, solved: int | None, *, task: int = 1, seeds: int = 1, name: str = ""
) -> Any:
    """A run of ten episodes a seed; None: a run that was not evaluated."""
    trainer = dataclasses.replace(RUN.config.trainer, seeds=seeds)
    config = dataclasses.replace(RUN.config, agent=AGENTS[agent], trainer=trainer)
    run = dataclasses.replace(
        RUN, config=config, task=dataclasses.replace(RUN.task, task=task)
    )
    unused: Any = None
    rates = [] if solved is None else [min(10, solved + seed) for seed in range(seeds)]
    evaluations = [
        evaluation(4000, seed, rate, task=task) for seed, rate in enumerate(rates)
    ]
    folder = RunFolder.open(name or f"{agent} {task}")
    return Source(folder.name, folder, run, unused, evaluations)


def lead(*sources: Source) -> str:
    return write_lead(sources, pool_methods([source.evaluated for source in sources]))


@pytest.mark.parametrize(
    ("solved", "expected"),
    [
        (
            {"vast": 7, "iql": 0, "fql": 0, "qc": 4},
            "4 runs of 4 methods in 1 task, after 4,000 updates: none of the runs "
            "solves every episode; vast is ahead with an interquartile mean of 70 %, "
            "followed by qc with 40 %, which may be luck with so few training seeds.",
        ),
        (
            {"vast": 8, "iql": 0, "fql": 0, "qc": 8},
            "none of the runs solves every episode; qc and vast are level and ahead "
            "with an interquartile mean of 80 %, followed by fql and iql with 0 %, "
            "which may be luck with so few training seeds.",
        ),
        ({"vast": 0, "iql": 0, "qc": 0}, "updates: no episode was solved."),
        (
            {"vast": 10, "iql": 10},
            "every run solves every episode; both methods have an interquartile mean "
            "of 100 %.",
        ),
        (
            {"vast": 10, "iql": 10, "fql": 3, "qc": None},
            "2 of the runs solve every episode; 1 more run not evaluated yet; iql and "
            "vast are level and ahead",
        ),
    ],
)
def test_methods_are_ranked_and_ties_are_said(
    solved: dict[str, int | None], expected: str
) -> None:
    assert expected in lead(*(make_source(*pair) for pair in solved.items()))


def test_seeds_that_were_not_evaluated_are_not_taken_for_solved() -> None:
    vast, iql = make_source("vast", 10, seeds=3), make_source("iql", 10)
    assert "every run solves every episode; " in lead(vast, iql)
    assert "20 of 20 episodes" not in describe_run(vast)
    vast = dataclasses.replace(vast, evaluations=vast.evaluations[:2])
    assert "every run solves every episode so far; " in lead(vast, iql)
    assert "1 of the runs solves every episode so far" in lead(
        vast, make_source("iql", 2)
    )
    assert (
        "VAST solves cube-single-play task 1 in 20 of 20 episodes (100 %) after 4,000 "
        "updates, over 2 of 3 training seeds; " in describe_run(vast)
    )


def test_conditions_that_are_not_the_run_s_own_are_named() -> None:
    vast = make_source("vast", 10)
    (played,) = vast.evaluations
    played = dataclasses.replace(played, environment_id="Icy-v0", candidates=8)
    assert describe_run(dataclasses.replace(vast, evaluations=[played])).startswith(
        "VAST solves cube-single-play task 1 (evaluated in Icy-v0 with 8 candidates) "
        "in 10 of 10 episodes (100 %) after 4,000 updates, over 1 training seed; the "
        "paper has no number for these conditions ("
    )


def test_a_variant_is_called_as_its_sweep_calls_it_also_beside_another_sweep() -> None:
    name = "cube-single-play-1-cloning-seed-0"
    ours = make_source("vast", 3, name=name)
    assert describe_run(ours).startswith("VAST (cloning) solves cube-single-play task")
    # A report gives the second of two folders of one name another name.
    theirs = dataclasses.replace(ours, name=f"{name}-2")
    methods = [source.evaluated.method for source in (ours, theirs)]
    assert methods == ["cloning", "cloning"]


def test_a_method_alone_has_no_rank() -> None:
    sources = [make_source("iql", 2), make_source("iql", 4, task=2)]
    assert lead(*sources) == (
        "2 runs of 1 method in 2 tasks, after 4,000 updates: none of the runs solves "
        "every episode; iql has an interquartile mean of 30 %."
    )


def test_intervals_say_how_sure_a_rank_is() -> None:
    close = [make_source("vast", 3, seeds=10), make_source("iql", 2, seeds=10)]
    assert lead(*close).endswith("though their 95 % intervals overlap.")
    apart = [make_source("vast", 9, seeds=10), make_source("iql", 0, seeds=10)]
    assert lead(*apart).endswith(
        "vast is ahead with an interquartile mean of 100 %, followed by iql with 45 %."
    )


def test_methods_without_a_common_task_are_not_ranked() -> None:
    sources = [make_source("vast", 9), make_source("iql", 1, task=2)]
    assert lead(*sources).endswith(
        "; no task was run with all methods, so that none is ahead."
    )


def test_only_common_tasks_rank_methods() -> None:
    # Over all of its tasks, iql would have the larger mean.
    sources = [
        make_source("vast", 4),
        make_source("iql", 1),
        make_source("iql", 9, task=2),
    ]
    rank = lead(*sources)
    assert "; in the task that all methods were run in, vast is ahead with" in rank
    # Tasks 1 and 2 are common, so task 3 does not count.
    sources += [make_source("vast", 9, task=2), make_source("vast", 0, task=3)]
    assert "; in the 2 tasks that all methods were run in, vast is ahead" in lead(
        *sources
    )


def test_methods_without_success_rates_do_not_hinder_a_rank() -> None:
    returns = make_source("iql", 2, task=2)
    own = [dataclasses.replace(each, successes=None) for each in returns.evaluations]
    returns = dataclasses.replace(returns, evaluations=own)
    assert lead(make_source("vast", 4), returns).endswith(
        "; vast has an interquartile mean of 40 %."
    )
    # Nothing was solved, and the tasks differ: only the former is said.
    unsolved = [make_source("vast", 0), make_source("iql", 0, task=2)]
    assert lead(*unsolved).endswith("no episode was solved.")


def test_the_best_run_of_a_task() -> None:
    vast, qc, iql = make_source("vast", 8), make_source("qc", 8), make_source("iql", 1)
    (ahead,) = describe_places([vast, iql])
    assert ahead.startswith("Best of 2 runs: VAST solves cube-single-play task 1 in 8")
    (level,) = describe_places([vast, qc, iql])
    assert level.startswith("Best of 3 runs, level with qc 1: VAST solves")
    (equal,) = describe_places([vast, qc])
    assert equal.startswith("Both runs are level: VAST solves")
    (nothing,) = describe_places([make_source("vast", 0), make_source("iql", 0)])
    assert nothing.startswith(
        "None of 2 runs solves cube-single-play task 1 in any episode; the paper "
        "reports 99 ± 3 % for VAST after 1,000,000 updates and 8 seeds (250 times as"
    )
    assert describe_places([vast]) == []
