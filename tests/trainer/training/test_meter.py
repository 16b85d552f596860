"""What a log point holds, by a clock of the test's own, and which figures end a run."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from tests.stores import make_facts, make_table
from trainer.agents.base import DataFacts, Metrics
from trainer.config import TrainerConfig
from trainer.training.meter import Meter, find_divergence


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: float) -> None:
        self.now += seconds


def make_metrics(loss: float, **means: float) -> Metrics:
    """Metrics of one call of two seeds."""
    mean = {name: jnp.array([value, value]) for name, value in means.items()}
    return Metrics({"loss": jnp.array([loss, loss + 1]), **mean}, {}, {})


def make_facts_of_rewards(low: float, high: float) -> DataFacts:
    made = make_facts(make_table([10]))
    return DataFacts(**(vars(made) | {"reward_min": low, "reward_max": high}))


def test_a_log_point_averages_its_calls_and_counts_its_time() -> None:
    clock = Clock()
    meter = Meter(40, clock=clock)
    assert meter.take() is None
    for step, loss in ((45, 1.0), (50, 3.0)):
        with meter.waiting_for_input():
            clock.run(0.5)
        clock.run(1.5)
        meter.add(step, make_metrics(loss))
    taken = meter.take()
    assert taken is not None
    metrics, facts = taken
    np.testing.assert_allclose(metrics.mean["loss"], [2.0, 3.0])
    # 10 updates in 4 s, of which twice half a second was spent on waiting.
    assert facts == {
        "step": 50,
        "time_s": 4.0,
        "updates_per_s": 2.5,
        "input_blocked_share": 0.25,
    }
    assert meter.logged == 50
    assert meter.take() is None


def test_a_log_point_starts_where_the_last_one_ended() -> None:
    clock = Clock()
    meter = Meter(0, clock=clock)
    clock.run(7)
    meter.add(5, make_metrics(1.0))
    assert meter.take() is not None
    with meter.waiting_for_input():
        clock.run(2)
    meter.add(10, make_metrics(5.0))
    taken = meter.take()
    assert taken is not None
    metrics, facts = taken
    assert float(metrics.mean["loss"][0]) == 5.0
    assert facts["updates_per_s"] == 2.5
    assert facts["input_blocked_share"] == 1.0
    assert facts["time_s"] == 9.0  # Of the whole session.


def test_compiling_counts_neither_as_work_nor_as_waiting() -> None:
    clock = Clock()
    meter = Meter(0, clock=clock)
    with meter.waiting_for_input():
        clock.run(3)
    clock.run(60)
    meter.restart()
    clock.run(1)
    meter.add(5, make_metrics(1.0))
    taken = meter.take()
    assert taken is not None
    assert taken[1]["updates_per_s"] == 5.0
    assert taken[1]["input_blocked_share"] == 0.0


@pytest.mark.parametrize(
    ("rewards", "returns"),
    [((-1, 0), (-100, 0)), ((-1, -1), (-100, 0)), ((0, 2), (0, 200)), ((0, 0), (0, 0))],
)
def test_returns_lie_between_bounds(
    rewards: tuple[float, float], returns: tuple[float, float]
) -> None:
    facts = make_facts_of_rewards(*rewards)
    assert facts.return_range(0.99) == pytest.approx(returns)


def test_without_a_discount_there_is_no_bound_but_of_rewards_of_one_sign() -> None:
    assert make_facts_of_rewards(-1, 0).return_range(1.0) == (-math.inf, 0)


def test_one_seed_too_high_or_not_a_number_is_enough() -> None:
    values = {
        "critic": jnp.array([-3.0, 104.0]),
        "value": jnp.array([-3.0, -4.0]),
        "loss": jnp.array([900.0, 1.0]),
    }
    # Returns span 100, so that values may be up to 0 + 1 * 100.
    diverged = find_divergence(
        Metrics(values, {"critic_max": jnp.array([900.0, 900.0])}, {}),
        (-100.0, 0.0),
        max_over_estimation=1.0,
    )
    assert diverged is not None
    assert diverged[0] == "critic 104 is far above any return, 0 at most"
    assert "trainer.max_over_estimation" in diverged[1]
    assert (
        find_divergence(
            Metrics(values, {}, {}), (-100.0, 0.0), max_over_estimation=1.05
        )
        is None
    )
    values["loss"] = jnp.array([900.0, jnp.nan])
    assert find_divergence(
        Metrics(values, {}, {}), (-100.0, 0.0), max_over_estimation=1.05
    ) == ("loss became NaN or infinite", "")


def test_values_may_run_away_downwards_as_well() -> None:
    # Possible returns are -100 to 0, and values may be down to -100 - 1 * 100.
    def find(lowest: float) -> tuple[str, str] | None:
        critics = jnp.array([lowest, -3.0])
        metrics = Metrics({"critic": critics, "value": jnp.zeros(2)}, {}, {})
        return find_divergence(metrics, (-100.0, 0.0), max_over_estimation=1.0)

    assert find(-199.0) is None
    diverged = find(-201.0)
    assert diverged is not None
    assert diverged[0] == "critic -201 is far below any return, -100 at least"


def test_untrained_values_are_above_small_returns_and_end_nothing() -> None:
    # Rewards of 0.001: a range of 0.1 at most, and untrained values of size 1.
    metrics = make_metrics(1.0, value=9.9)
    assert find_divergence(metrics, (0.0, 0.1), max_over_estimation=1.0) is None
    higher = make_metrics(1.0, value=10.2)
    assert find_divergence(higher, (0.0, 0.1), max_over_estimation=1.0) is not None


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="max_over_estimation: expected at least"):
            TrainerConfig(max_over_estimation=wrong)
