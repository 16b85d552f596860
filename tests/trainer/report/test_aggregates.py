"""Figures over tasks: against SciPy, by hand, and on cases with a known answer."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import bootstrap, trim_mean

from tests.evaluated import evaluation
from trainer.report.aggregates import (
    aggregate,
    interquartile_mean,
    last_rates,
    stratified_interval,
)
from trainer.report.method_section import compare, tabulate_aggregates
from trainer.report.methods import Results
from trainer.runs.evaluations import Evaluation


def test_the_middle_half_by_hand() -> None:
    # Sorted 0 1 2 3 4 5 6 100: a quarter is left out at either end, (2+3+4+5) / 4.
    scores = np.array([[5.0, 0, 100, 2], [1, 6, 3, 4]])
    assert interquartile_mean(scores) == 3.5
    assert scores.mean() > 15


def test_of_one_task_the_interval_is_scipys() -> None:
    scores = np.random.default_rng(0).uniform(size=16)
    expected = bootstrap(
        (scores,),
        lambda values, axis: trim_mean(values, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = stratified_interval([scores], resamples=20_000)
    assert expected.high - expected.low > 0.1
    assert found == pytest.approx(tuple(expected), abs=0.01)


def test_seeds_are_drawn_within_their_task() -> None:
    # Tasks differ, seeds of a task do not: drawing within tasks changes nothing.
    apart = [np.full(4, 0.1), np.full(4, 0.5), np.full(4, 0.9)]
    assert stratified_interval(apart) == pytest.approx((0.5, 0.5))
    low, high = stratified_interval([np.concatenate(apart)])
    assert high - low > 0.3


def test_the_last_step_by_training_seed() -> None:
    evaluations = [
        evaluation(1000, 0, 9),
        evaluation(2000, 1, 2),
        evaluation(2000, 0, 4),
        # The same episodes and ten more: the larger one counts, once.
        evaluation(2000, 0, 16, episodes=20),
    ]
    assert last_rates(evaluations).tolist() == [0.8, 0.2]


def test_a_seed_that_is_behind_counts_with_its_own_last_step() -> None:
    # Only the seed that went on has the last step; the others solve nothing.
    uneven = result(
        "vast",
        1,
        *(evaluation(10_000, 0, 50, episodes=50), evaluation(9_500, 0, 40)),
        *(evaluation(9_500, seed, 0, episodes=50) for seed in (1, 2)),
        evaluation(9_000, 2, 10),
    )
    (found,) = aggregate([uneven])
    # Of 1 0 0 nothing is left out, as a quarter of three is less than one.
    assert (found.runs, found.iqm, found.mean) == (3, 1 / 3, 1 / 3)
    assert uneven.last_steps == {0: 10_000, 1: 9_500, 2: 9_500}
    assert (uneven.updates, uneven.episodes) == (10_000, 50)
    (table,) = tabulate_aggregates([uneven])
    assert table.notes[-1] == (
        "Training seeds of a method were last evaluated at different steps, and each "
        "counts with its own: vast in some data task 1 at 9,500 (seeds 1, 2) and "
        "10,000 (seed 0)."
    )


def test_unequal_ends_are_noted_once_and_a_few_of_many_named() -> None:
    even = result("iql", 1, evaluation(1000, 0, 1), evaluation(1000, 1, 1))
    uneven = [
        result("vast", task, evaluation(2000, 0, 1), evaluation(1000, 1, 2))
        for task in range(1, 7)
    ]
    (table,) = tabulate_aggregates([even, *uneven])
    compared = compare([even, *uneven])
    assert compared is not None
    (note,) = (note for note in compared.notes if "different steps" in note)
    assert note.count("1,000 (seed 1) and 2,000 (seed 0)") == 4
    assert note.endswith("; and 2 more.")
    assert "iql" not in note
    assert note not in table.notes
    compared = compare([even, dataclasses.replace(even, method="vast")])
    assert compared is not None
    assert not [note for note in compared.notes if "different steps" in note]


def result(method: str, task: int, *evaluations: Evaluation) -> Results:
    return Results(method, ("some data", task), evaluations, [f"{method} {task}"])


def test_methods_over_their_tasks() -> None:
    results = [
        result("vast", 1, evaluation(1000, 0, 8), evaluation(1000, 1, 6)),
        result("vast", 2, evaluation(1000, 0, 2), evaluation(1000, 1, 4)),
        result("iql", 1, evaluation(1000, 0, 1)),
    ]
    iql, vast = aggregate(results)
    assert (iql.agent, iql.tasks, iql.runs, iql.iqm) == ("iql", 1, 1, 0.1)
    assert (vast.agent, vast.tasks, vast.runs) == ("vast", 2, 4)
    # Of 0.2 0.4 0.6 0.8 the middle half is 0.4 and 0.6.
    assert vast.iqm == vast.mean == pytest.approx(0.5)
    assert vast.cells == (
        *("vast", "success", "2", "4", "50.0 %", "too few seeds", "50.0 %"),
    )


def test_an_interval_where_there_are_seeds_enough() -> None:
    seeds = [
        [evaluation(1000, seed, 2 * seed + task) for seed in range(3)]
        for task in range(4)
    ]
    (found,) = aggregate([result("vast", n, *each) for n, each in enumerate(seeds)])
    assert found.interval is not None
    low, high = found.interval
    assert low < found.iqm < high
    # Ten scores in all, or three in a task, are the least.
    (fewer,) = aggregate([result("vast", n, *each) for n, each in enumerate(seeds[:3])])
    assert fewer.interval is None


def test_normalised_scores_are_aggregated_where_there_are_references() -> None:
    def walk(seed: int, value: float) -> Evaluation:
        return evaluation(
            1000,
            seed,
            0,
            successes=None,
            returns=(value,) * 10,
            reference_scores=(0.0, 200.0),
        )

    (found,) = aggregate([result("iql", 1, walk(0, 50.0), walk(1, 150.0))])
    assert (found.measure, found.iqm) == ("normalised score", 50.0)
    assert found.cells[-1] == "50.0"
