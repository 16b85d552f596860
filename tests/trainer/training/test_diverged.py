"""Figures that end a run: which, and where the line is."""

import math

import jax.numpy as jnp
import pytest

from tests.stores import make_facts, make_table
from trainer.agents.base import DataFacts, Metrics
from trainer.config import TrainerConfig
from trainer.training.metrics import nonfinite, over_estimated


def facts(low: float, high: float) -> DataFacts:
    made = make_facts(make_table([10]))
    return DataFacts(**(vars(made) | {"reward_min": low, "reward_max": high}))


@pytest.mark.parametrize(
    ("rewards", "returns"),
    [((-1, 0), (-100, 0)), ((-1, -1), (-100, 0)), ((0, 2), (0, 200)), ((0, 0), (0, 0))],
)
def test_returns_lie_between_bounds(
    rewards: tuple[float, float], returns: tuple[float, float]
) -> None:
    assert facts(*rewards).return_range(0.99) == pytest.approx(returns)


def test_without_a_discount_there_is_no_bound_but_of_rewards_of_one_sign() -> None:
    assert facts(-1, 0).return_range(1.0) == (-math.inf, 0)


def test_one_seed_too_high_or_not_a_number_is_enough() -> None:
    metrics = Metrics(
        {
            "critic": jnp.array([-3.0, 5.0]),
            "value": jnp.array([-3.0, -4.0]),
            "loss": jnp.array([900.0, jnp.nan]),
        },
        {"critic_max": jnp.array([900.0, 900.0])},
        {},
    )
    assert over_estimated(metrics, limit=4.0) == {"critic": 5.0}
    assert over_estimated(metrics, limit=5.0) == {}
    assert nonfinite(metrics) == ["loss"]


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="max_over_estimation: expected at least"):
            TrainerConfig(max_over_estimation=wrong)
