"""Profiles and probabilities of improvement, against loops over all pairs."""

import numpy as np
import pytest

from trainer.report.comparisons import (
    enough,
    improvement_interval,
    performance_profile,
    probability_of_improvement,
    profile_band,
)

RNG = np.random.default_rng(0)
OURS = [RNG.integers(0, 11, 4) / 10 for _ in range(3)]
THEIRS = [RNG.integers(0, 11, 5) / 10 for _ in range(3)]


def test_a_profile_is_the_share_of_runs_above() -> None:
    thresholds = np.array([0.0, 0.35, 0.5, 1.0])
    runs = [score for task in OURS for score in task]
    expected = [
        sum(score > threshold for score in runs) / 12 for threshold in thresholds
    ]
    assert 0 < expected[2] < expected[0]
    assert performance_profile(OURS, thresholds).tolist() == pytest.approx(expected)
    low, high = profile_band(OURS, thresholds)
    assert (low <= expected).all()
    assert (high >= expected).all()
    assert (low < high).any()


def test_improvement_counts_pairs_and_halves_ties() -> None:
    expected = np.mean(
        [
            np.mean([(a > b) + (a == b) / 2 for a in ours for b in theirs])
            for ours, theirs in zip(OURS, THEIRS, strict=True)
        ]
    )
    found = probability_of_improvement(OURS, THEIRS)
    assert found == pytest.approx(expected)
    assert found + probability_of_improvement(THEIRS, OURS) == pytest.approx(1)
    low, high = improvement_interval(OURS, THEIRS)
    assert low < found < high
    assert improvement_interval(OURS, THEIRS) == (low, high)


def test_clear_cases() -> None:
    better, worse = [np.array([0.8, 0.9])] * 3, [np.array([0.1, 0.2])] * 3
    assert probability_of_improvement(better, worse) == 1
    assert improvement_interval(better, worse) == (1, 1)
    assert probability_of_improvement(better, better) == 0.5


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((3, 3, 4), True),
        ((3, 3, 3), False),
        ((2, 9), False),
        ((10,), True),
        ((), False),
    ],
)
def test_when_an_interval_is_given(counts: tuple[int, ...], expected: bool) -> None:
    assert enough([np.zeros(count) for count in counts]) is expected
