"""VAST's values on a chain that passes through its goal: exact ones and networks'.

The agent is the one that trains on MuJoCo. What the chain needs of its options, and
why:

- states in units of their deviation: they lie a step apart, and one step beyond the
  goal costs a hundred, so that a sub-goal half a step off is another sub-goal;
- each episode recorded many times, at positions a little off, as on the grid.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import jax.numpy as jnp
import numpy as np

from trainer.agents.vast import VAST
from trainer.agents.vast_config import Success, VASTConfig
from trainer.toy import recording
from trainer.toy.chain import Chain
from trainer.toy.tabular import Float64, expectile_stitching, fixed_point
from trainer.toy.training import train

DISCOUNT = 0.99
# Windows lead further than there are steps on either side of the goal.
CHAIN = Chain(before=12, solved=1, after=3, still=30, discount=DISCOUNT)
CONFIG = VASTConfig(
    discount=DISCOUNT,
    max_horizon=25,
    candidates=1,
    width=64,
    depth=3,
    clip_norm=10.0,
    target_rate=0.02,
    goal_current=0.0,
    goal_future=1.0,
    goal_random=0.0,
    goal_rule="horizon",
    state_scaling="standard",
)
# Updates at each learning rate: the second settles what the first keeps moving.
PHASES = ((2_000, 1e-3), (1_000, 1e-4))
BATCH_SIZE = 128
RECORDINGS, NOISE = 64, 0.03
SUCCESSES: tuple[Success, ...] = get_args(Success)
# Steps before the goal at which values are compared with the true ones.
COMPARED = (0, 1, 2, 5, 10)


@dataclass(frozen=True)
class ChainResult:
    """Values of each state of the chain, ``f64[Z]`` each.

    Attributes:
        truth: Where the goal is an end.
        exact: Fixed points of the value loss, by ``success``.
        networks: V of the networks.
    """

    truth: Float64
    exact: dict[Success, Float64]
    networks: Float64

    @property
    def value_error(self) -> float:
        """Largest distance of the networks' V from the truth, of those compared."""
        at = CHAIN.before - np.array(COMPARED)
        return float(np.abs(self.networks - self.truth)[at].max())


def exact_values(
    chain: Chain, *, success: Success, max_horizon: int, min_horizon: int = 2
) -> Float64:
    """What V would be on a chain if networks were exact: ``f64[Z]``."""
    data = chain.recorded()
    operator = expectile_stitching(
        data,
        max_horizon=max_horizon,
        min_horizon=min_horizon,
        expectile=CONFIG.expectile,
        success=success,
    )
    return fixed_point(operator, data.state_count)


def solve_chain(
    seeds: tuple[int, ...],
    *,
    config: VASTConfig = CONFIG,
    progress: Callable[[int], None] = lambda _: None,
) -> list[ChainResult]:
    """Solves the chain exactly, and trains one agent per seed on it, side by side.

    Args:
        seeds: Of the runs.
        config: Of the agents.
        progress: Called with the updates done since it was last called.

    Returns:
        What each seed ended with.
    """
    table = CHAIN.table(recordings=RECORDINGS, noise=NOISE)
    facts = recording.facts(table)
    phased = [
        (VAST(dataclasses.replace(config, learning_rate=learning_rate), facts), updates)
        for updates, learning_rate in PHASES
    ]
    trained = train(phased, table, seeds, batch_size=BATCH_SIZE, progress=progress)
    agent, _ = phased[-1]
    exact: dict[Success, Float64] = {
        success: exact_values(CHAIN, success=success, max_horizon=config.max_horizon)
        for success in SUCCESSES
    }
    states = jnp.asarray(CHAIN.observe(np.arange(CHAIN.state_count)))
    return [
        ChainResult(
            CHAIN.truth, exact, np.asarray(agent.value(params, states), np.float64)
        )
        for params in trained
    ]
