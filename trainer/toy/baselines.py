"""The baselines' networks on the grid: a horizon of three goes wrong at once.

FQL-n and QC back up three recorded steps, and the window from the start through (1, 0)
holds the penalty as well, so they turn away from the best first move. IQL backs up one
and does not; neither does FQL, which differs from FQL-n here in the horizon only (what
it does later is less sure: a policy saturated at a wrong move has no gradient back).
The agents are those that train on MuJoCo, unchanged.

What the grid needs of their options, and why:

- windows that stop at the goal (``window_rule = "exact"``);
- little weight on the distance to recorded actions: rewards here are 1 to 2 apart, and
  both moves from the start were recorded equally often;
- few candidates and flow steps, since there are two recorded ways at most.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.agents import AgentConfig, make_agent
from trainer.agents.base import Agent
from trainer.agents.fql_config import FQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.nn.networks import Params
from trainer.toy import grid, recording
from trainer.toy.neural import DISCOUNT, NOISE, RECORDINGS
from trainer.toy.training import train

HORIZON = 3
_FQL = FQLConfig(
    window_rule="exact",
    discount=DISCOUNT,
    alpha=0.3,
    flow_steps=5,
    width=64,
    depth=2,
    learning_rate=1e-3,
    target_rate=0.02,
)
CONFIGS: dict[str, AgentConfig] = {
    "iql": IQLConfig(
        discount=DISCOUNT,
        alpha=2.0,
        width=64,
        depth=2,
        learning_rate=1e-3,
        target_rate=0.02,
    ),
    "fql": _FQL,
    "fql-n": dataclasses.replace(_FQL, name="fql-n", n_step=HORIZON),
    "qc": QCConfig(
        n_step=HORIZON,
        window_rule="exact",
        discount=DISCOUNT,
        candidates=8,
        flow_steps=5,
        width=64,
        depth=2,
        learning_rate=1e-3,
        target_rate=0.02,
    ),
}
UPDATES = 2_000
BATCH_SIZE = 64
_VOTES = 64


@dataclass(frozen=True)
class BaselineResult:
    """What one seed's networks ended with.

    Attributes:
        right: Share of draws at the start whose first move goes right, the best one.
        path: Cells of the rollout of the likeliest moves.
    """

    right: float
    path: grid.Path


def train_baseline(name: str, seeds: tuple[int, ...]) -> list[BaselineResult]:
    """Trains one agent per seed, side by side, and follows each.

    Args:
        name: One of ``CONFIGS``.
        seeds: Of the runs, one after another.

    Returns:
        What each seed ended with.
    """
    table = grid.table(DISCOUNT, recordings=RECORDINGS, noise=NOISE)
    agent = make_agent(CONFIGS[name], recording.facts(table))
    trained = train([(agent, UPDATES)], table, seeds, batch_size=BATCH_SIZE)
    return [_follow(agent, params) for params in trained]


def _follow(agent: Agent[Any], params: Params) -> BaselineResult:
    """The rollout of the moves, or chunks of moves, that most of 64 draws agree on."""
    cells = [(x, y) for x in range(grid.SIZE) for y in range(grid.SIZE)]
    keys = jax.random.split(jax.random.key(0), _VOTES)

    @jax.jit
    def look(params: Params, observations: jax.Array) -> jax.Array:
        def votes(observation: jax.Array) -> jax.Array:
            return jax.vmap(lambda key: agent.act(params, observation, key))(keys)

        return jax.vmap(votes)(observations)

    actions = np.asarray(look(params, jnp.asarray(grid.observe(cells))))
    # [cells, votes, chunk]
    moves = dict(zip(cells, grid.decode_actions(actions).tolist(), strict=True))
    likeliest = {
        cell: Counter(map(tuple, drawn)).most_common(1)[0][0]
        for cell, drawn in moves.items()
    }
    first = [chunk[0] for chunk in moves[grid.START]]
    return BaselineResult(
        right=first.count(grid.RIGHT) / _VOTES,
        path=grid.rollout(lambda cell: likeliest[cell]),
    )
