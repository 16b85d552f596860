"""VAST's values on a chain that passes through its goal, exact and by networks.

The agent is the one that trains on MuJoCo, unchanged.
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
# The chain is short on both sides of the goal, so that windows of up to 25 steps lead
# across it from every state.
CHAIN = Chain(before=12, solved=1, after=3, still=30, discount=DISCOUNT)
# `state_scaling` is "standard" because states lie one step apart and one step beyond
# the goal costs a hundred: a sub-goal that is half a step off is another sub-goal.
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
# Updates at each learning rate. At the first one, values come close and then keep
# moving; the second lets them settle.
PHASES = ((2_000, 1e-3), (1_000, 1e-4))
BATCH_SIZE = 128
# Noisy copies of the episode, because a flow's sub-goals lie beside the states, and
# networks must have been trained at such points, too.
RECORDINGS, NOISE = 64, 0.03
SUCCESSES: tuple[Success, ...] = get_args(Success)
# Steps before the goal at which values are compared with the true values.
COMPARED = (0, 1, 2, 5, 10)


@dataclass(frozen=True)
class ChainResult:
    """Values of the states of the chain, arrays ``f64[Z]``.

    Attributes:
        truth: True values, if the goal ends the task.
        exact: Fixed points of the value loss, by the agent's option ``success``.
        networks: V of the trained networks.
    """

    truth: Float64
    exact: dict[Success, Float64]
    networks: Float64

    @property
    def value_error(self) -> float:
        """Largest error of the networks' V at the states of ``COMPARED``."""
        # States after the goal are left out: a task ends at its goal, and the error
        # that the chain shows is what their values do to those before it.
        compared = CHAIN.before - np.array(COMPARED)
        return float(np.abs(self.networks - self.truth)[compared].max())


def exact_values(
    chain: Chain, *, success: Success, max_horizon: int, min_horizon: int = 2
) -> Float64:
    """Computes the V that VAST would learn on a chain with exact networks.

    Args:
        chain: The chain.
        success: Option ``success`` of the agent.
        max_horizon: Longest window K.
        min_horizon: Shortest window.

    Returns:
        ``f64[Z]``, the fixed point of the backup of the value loss.
    """
    data = chain.make_episodes()
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
        seeds: Consecutive seeds of the runs.
        config: Configuration of the agents; learning rates are those of ``PHASES``.
        progress: Function that is called with the number of updates since its last
            call.

    Returns:
        One result for each seed.
    """
    table = CHAIN.make_table(recordings=RECORDINGS, noise=NOISE)
    facts = recording.compute_facts(table)
    phased = [
        (VAST(dataclasses.replace(config, learning_rate=learning_rate), facts), updates)
        for updates, learning_rate in PHASES
    ]
    trained = train(phased, table, seeds, batch_size=BATCH_SIZE, progress=progress)
    # Agents of all phases compute the same V: they differ in their learning rate only.
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
