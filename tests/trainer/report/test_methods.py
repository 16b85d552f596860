"""Methods of a report: variants apart, seeds together, nothing left out."""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.evaluated import RUN, evaluation
from tests.runs import make_run
from tests.trainer.sweep.made_up_cells import made_up_evaluation
from trainer.data.fingerprint import WINDOW
from trainer.report.methods import EvaluatedRun, pool_methods

MAZE = "pointmaze-medium-navigate"


def evaluated(
    name: str, *, task: int = 1, seed: int = 3, seeds: int = 2, **agent: Any
) -> EvaluatedRun:
    run = make_run()
    config = replace(
        run.config,
        agent=replace(run.config.agent, **agent),
        trainer=replace(run.config.trainer, seed=seed, seeds=seeds),
    )
    run = replace(run, config=config, task=replace(run.task, task=task))
    evaluations = [
        made_up_evaluation(20, each, (1, 0), task=task)
        for each in config.trainer.seed_range
    ]
    return EvaluatedRun(name, run, evaluations)


def seeds_of(runs: list[EvaluatedRun]) -> dict[tuple[str, str], list[int]]:
    return {
        (found.method, " ".join(map(str, found.place))): [
            each.seed for each in found.evaluations
        ]
        for found in pool_methods(runs)
    }


def test_variants_of_one_agent_are_called_as_their_sweep_calls_them() -> None:
    runs = [
        evaluated(f"{MAZE}-{task}-{method}-seeds-3-4", task=task, **agent)
        for task in (1, 2)
        for method, agent in (("vast", {}), ("cloning", {"temperature": 0.0}))
    ]
    assert seeds_of(runs) == {
        (method, f"{MAZE} {task}"): [3, 4]
        for task in (1, 2)
        for method in ("vast", "cloning")
    }


def test_variants_of_any_name_are_told_apart_by_what_differs() -> None:
    runs = [
        evaluated("a", temperature=0.5),
        evaluated("b", temperature=0.0, aggregation="mean"),
        evaluated("c", task=2, temperature=0.5, width=4),  # Set so for its task.
    ]
    assert list(seeds_of(runs)) == [
        ("vast (aggregation=min, temperature=0.5)", f"{MAZE} 1"),
        ("vast (aggregation=mean, temperature=0)", f"{MAZE} 1"),
        ("vast (aggregation=min, temperature=0.5)", f"{MAZE} 2"),
    ]


def test_seeds_of_one_setting_are_pooled() -> None:
    runs = [
        evaluated(f"{MAZE}-1-vast-seeds-0-1", seed=0),
        evaluated(f"{MAZE}-1-vast-seed-2", seed=2, seeds=1),
    ]
    assert seeds_of(runs) == {("vast", f"{MAZE} 1"): [0, 1, 2]}


def test_the_same_seeds_twice_are_not_one_setting_with_more_seeds() -> None:
    assert list(seeds_of([evaluated("a"), evaluated("b")])) == [
        ("vast", f"{MAZE} 1"),
        ("vast (b)", f"{MAZE} 1"),
    ]


def test_runs_on_other_data_are_told_apart() -> None:
    other = evaluated("b", seed=5)
    other = replace(other, run=replace(other.run, fingerprint="another"))
    names = [found.method for found in pool_methods([evaluated("a"), other])]
    ours = make_run().fingerprint[:6]
    assert names == [f"vast (data {ours})", "vast (data anothe)"]


def test_seeds_that_see_the_same_rows_in_another_order_are_one_method() -> None:
    runs = [evaluated(str(seed), seed=seed, seeds=1) for seed in range(2)]
    runs = [
        replace(run, run=replace(run.run, fingerprint=f"rows{WINDOW}seed={run.name}"))
        for run in runs
    ]
    assert seeds_of(runs) == {("vast", f"{MAZE} 1"): [0, 1]}


def evaluated_in(
    name: str,
    seed: int,
    *,
    trained_for: str = "Walk-v0",
    conditions: dict[str, Any] | None = None,
    **arguments: Any,
) -> EvaluatedRun:
    """A run for an environment, evaluated there or under other conditions."""
    run = evaluated(name, seed=seed, seeds=1)
    task = replace(
        run.run.task, environment_id=trained_for, environment_kwargs=arguments
    )
    changes = {"environment_id": trained_for} | (conditions or {})
    evaluations = [replace(each, **changes) for each in run.evaluations]
    return replace(run, run=replace(run.run, task=task), evaluations=evaluations)


def test_seeds_in_different_environments_are_not_one_method() -> None:
    runs = [
        evaluated_in("a", 0),
        evaluated_in("b", 1, conditions={"candidates": 1}),
        evaluated_in("c", 2, trained_for="Hard-v0"),
        evaluated_in("d", 3),
    ]
    assert {method: seeds for (method, _), seeds in seeds_of(runs).items()} == {
        "vast (environment Walk-v0)": [0, 3],
        "vast (environment Walk-v0, evaluated with 1 candidate)": [1],
        "vast (environment Hard-v0)": [2],
    }


def test_seeds_under_different_conditions_are_not_one_method() -> None:
    elsewhere = {"environment_id": "Hard-v0", "candidates": 4}
    runs = [
        # What was not evaluated, or not here, makes no difference.
        replace(evaluated_in("a", 0), evaluations=[]),
        evaluated_in("b", 1, conditions=elsewhere),
        evaluated_in("c", 2, conditions=elsewhere),
    ]
    assert [found.method for found in pool_methods(runs)] == ["vast"]
    runs.append(evaluated_in("d", 3))
    assert {method: seeds for (method, _), seeds in seeds_of(runs).items()} == {
        "vast": [3],
        "vast (evaluated in Hard-v0 with 4 candidates)": [1, 2],
    }


def test_seeds_with_other_arguments_of_the_environment_are_not_one_method() -> None:
    runs = [
        evaluated_in("a", 0, size=3, noise=0.1),
        evaluated_in("b", 1, size=5, noise=0.1),
        evaluated_in("c", 2, noise=0.1),
    ]
    assert [found.method for found in pool_methods(runs)] == [
        *("vast (size=3)", "vast (size=5)", "vast (size=default)")
    ]


def test_a_curve_has_the_steps_at_which_all_seeds_were_evaluated() -> None:
    late = [evaluation(1000, 0, 1), evaluation(2000, 0, 2), evaluation(2000, 1, 4)]
    (found,) = pool_methods([EvaluatedRun("a", RUN, late), EvaluatedRun("b", RUN, [])])
    steps, rates = found.curve()
    assert steps.tolist() == [2000]
    np.testing.assert_array_equal(rates, [[0.2], [0.4]])
    assert (found.updates, found.episodes, found.runs) == (2000, 10, ["a"])


def test_evaluations_with_other_starts_add_to_a_seeds_episodes() -> None:
    played = [
        *(evaluation(2000, 0, 2, evaluation_seed=starts) for starts in range(3)),
        evaluation(2000, 1, 4, episodes=50),
    ]
    (pooled,) = pool_methods([EvaluatedRun("a", RUN, played)])
    assert [len(each.returns) for each in pooled.evaluations] == [10, 10, 10, 50]
    assert pooled.episodes == 30
    assert pool_methods([EvaluatedRun("a", RUN, played[3:])])[0].episodes == 50


def test_seeds_without_a_common_step_are_unknown_at_each_others() -> None:
    apart = [evaluation(1000, 0, 1), evaluation(2000, 1, 4)]
    (found,) = pool_methods([EvaluatedRun("a", RUN, apart)])
    steps, rates = found.curve()
    assert steps.tolist() == [1000, 2000]
    np.testing.assert_array_equal(rates, [[0.1, np.nan], [np.nan, 0.4]])
