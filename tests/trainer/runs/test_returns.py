"""Mean returns: against SciPy and the normal approximation, and by hand."""

import numpy as np
import pytest

from trainer.runs.returns import Returns, bootstrap_interval, show_score


def test_the_interval_is_about_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(5, 2, 400)
    low, high = bootstrap_interval(values) or (0.0, 0.0)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_of_two_values_the_bootstrap_is_known() -> None:
    # Means are 0, 0.5 and 1 with chances of a quarter, a half and a quarter.
    assert bootstrap_interval([0, 1]) == (0.0, 1.0)


def test_equal_episodes_give_equal_intervals_in_any_order() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    found = bootstrap_interval(values)
    assert found is not None
    assert found[0] < 2.8 < found[1]
    assert bootstrap_interval(values[::-1]) == found


def test_a_single_episode_has_no_interval() -> None:
    alone = Returns.of([7.0], (0.0, 14.0))
    assert (alone.interval, alone.normalised_interval) == (None, None)
    assert str(alone) == "return 7.00, normalised score 50.0"
    assert show_score(alone, "none") == "50.0"


def test_scores_are_d4rls() -> None:
    # hopper-medium-v2: 100 * (1600 + 20.272305) / (3234.3 + 20.272305)
    returns = Returns.of([1500.0, 1700.0], (-20.272305, 3234.3))
    assert returns.normalised == pytest.approx(49.7845, abs=1e-4)
    low, high = returns.normalised_interval or (0.0, 0.0)
    assert low < 49.8 < high
    assert Returns.of([1.0, 2.0]).normalised is None
