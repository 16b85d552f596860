"""Successes over seeds and checkpoints: shares, and how sure they are."""

import pytest
from scipy.stats import binomtest

from tests.evaluated import RUN, evaluation
from trainer.runs.success_rates import (
    describe_outcome,
    select_largest,
    select_own,
    summarize,
    wilson_interval,
)

PLACE = "cube-single-play task 1"


@pytest.mark.parametrize("episodes", [1, 2, 7, 20, 50])
def test_wilson_intervals_are_scipys(episodes: int) -> None:
    for successes in range(episodes + 1):
        ours = wilson_interval(successes, episodes)
        theirs = binomtest(successes, episodes).proportion_ci(method="wilson")
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_intervals_of_no_success_and_only_successes_end_there() -> None:
    numbers = range(1, 501)
    assert {wilson_interval(0, episodes)[0] for episodes in numbers} == {0.0}
    assert {wilson_interval(episodes, episodes)[1] for episodes in numbers} == {1.0}


def test_wilson_intervals_need_episodes() -> None:
    for successes, episodes in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="expected 0 to"):
            wilson_interval(successes, episodes)


def test_statistics_pool_what_they_say() -> None:
    evaluations = [
        evaluation(step, seed, solved + seed)
        for step, solved in ((1000, 1), (2000, 6), (3000, 2), (4000, 3))
        for seed in (0, 1)
    ]
    last, mean, best = summarize(evaluations)
    assert (last.statistic, last.steps, last.seeds) == ("last", (4000,), (0, 1))
    assert (last.score.successes, last.score.episodes) == (3 + 4, 20)
    # Rates of the seeds are .3 and .4.
    assert last.seed_std == pytest.approx(0.1 / 2**0.5)
    assert mean.steps == (2000, 3000, 4000)
    assert (mean.score.successes, mean.score.episodes) == (13 + 5 + 7, 60)
    assert (best.steps, best.score.successes) == ((2000,), 13)
    assert summarize([]) == []


def test_the_earliest_of_equals_is_best() -> None:
    best = summarize([evaluation(step, 0, 5) for step in (1000, 2000)])[2]
    assert best.steps == (1000,)
    assert best.seed_std is None


def test_episodes_of_one_evaluation_seed_count_once() -> None:
    """Those of a small evaluation are among those of a large one."""
    shared = [evaluation(1000, 0, 5), evaluation(1000, 0, 20, episodes=50)]
    other_seed = evaluation(1000, 0, 7, evaluation_seed=1)
    assert summarize(shared)[0].score.episodes == 50
    assert summarize([*shared, other_seed])[0].score.episodes == 60


@pytest.mark.parametrize(
    ("successes", "text"),
    [
        ((10, 10), "solved: {}, 20 of 20 episodes after 3,000 updates"),
        ((10, 9), "solved in part: {}, 19 of 20 episodes after 3,000 updates"),
        ((0, 0), "not solved: {}, 0 of 20 episodes after 3,000 updates"),
        # The second of the run's two seeds was not evaluated at the last checkpoint.
        (
            (10,),
            "solved so far: {}, 10 of 10 episodes of 1 of 2 training seeds after 3,000 "
            "updates",
        ),
        (
            (0,),
            "not solved: {}, 0 of 10 episodes of 1 of 2 training seeds after 3,000 "
            "updates",
        ),
    ],
)
def test_solved_is_said_of_the_last_checkpoint(
    successes: tuple[int, ...], text: str
) -> None:
    # Ten episodes of each of two training seeds; what was before does not count.
    earlier = [evaluation(2000, seed, 5) for seed in (0, 1)]
    last = [evaluation(3000, seed, count) for seed, count in enumerate(successes)]
    assert RUN.config.trainer.seeds == 2
    assert describe_outcome(RUN, [*last, *earlier]) == text.format(PLACE)


def test_what_was_not_evaluated_is_not_called_unsolved() -> None:
    assert describe_outcome(RUN, []) == f"not evaluated yet: {PLACE}"


def test_an_outcome_names_conditions_that_are_not_the_run_s_own() -> None:
    own = RUN.task.environment_id
    for conditions, text in (
        ({"environment_id": "Icy-v0"}, "evaluated in Icy-v0"),
        ({"candidates": 1}, "evaluated with 1 candidate"),
        ({"environment_arguments": {"size": 3}}, f'evaluated in {own} {{"size": 3}}'),
    ):
        played = [evaluation(1000, seed, 10, **conditions) for seed in (0, 1)]
        assert describe_outcome(RUN, played) == (
            f"solved: {PLACE} ({text}), 20 of 20 episodes after 1,000 updates"
        )


def test_what_reports_no_success_is_not_called_unsolved() -> None:
    silent = [evaluation(step, 0, 0, successes=None) for step in (1000, 2000)]
    assert [each.score for each in summarize(silent)] == [None] * 3
    assert describe_outcome(RUN, silent) == (
        f"success not reported: {PLACE}, return -200.00 (95 % interval -200.00 to "
        "-200.00) of 10 episodes of 1 of 2 training seeds after 2,000 updates"
    )


def test_without_success_the_best_has_the_highest_return() -> None:
    silent = [
        evaluation(step, 0, 0, successes=None, returns=(mean - 1.0, mean + 1.0) * 5)
        for step, mean in ((1000, 3.0), (2000, 7.0), (3000, 5.0))
    ]
    last, _, best = summarize(silent)
    assert (last.returns.mean, best.returns.mean) == (5.0, 7.0)
    assert best.steps == (2000,)
    assert last.seed_std is None


def test_evaluations_in_another_environment_are_not_pooled() -> None:
    own = [evaluation(1000, 0, 5)]
    elsewhere = [evaluation(1000, 0, 9, environment_id="Line-v0")]
    other_task = [evaluation(1000, 0, 9, task=2)]
    assert select_own(RUN, [*elsewhere, *own, *other_task]) == own
    assert select_own(RUN, [*elsewhere, *other_task]) == elsewhere
    assert select_own(RUN, other_task) == []


def test_evaluations_with_other_candidates_are_not_pooled() -> None:
    own, fewer = evaluation(1000, 0, 5), evaluation(1000, 0, 9, candidates=1)
    assert select_own(RUN, [fewer, own]) == [own]
    assert select_own(RUN, [fewer]) == [fewer]
    # Neither replaces the other, although the episodes are the same.
    assert select_largest([own, fewer]) == [own, fewer]
