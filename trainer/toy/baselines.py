"""The baselines' networks on the grid, where a horizon of three errs at the first move.

FQL-n and QC back up three recorded steps, and the window from the start through (1, 0)
contains the penalty as well, so both turn away from the best first move. IQL backs up
one step and takes that move. So does FQL, which differs from FQL-n here in the horizon
only; its later moves are less certain, because a policy that has saturated at a wrong
move gets no gradient away from it. The agents are those that train on MuJoCo,
unchanged.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.agents.base import Agent
from trainer.agents.fql_config import FQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.agents.registry import AgentConfig, make_agent
from trainer.nn.networks import Params
from trainer.toy import grid, recording
from trainer.toy.neural import DISCOUNT, NOISE, RECORDINGS
from trainer.toy.training import train

HORIZON = 3
# Options that differ from those on MuJoCo, and why:
# - `window_rule` is "exact", so that windows stop at the goal.
# - `alpha` is small, so that the distance to recorded actions weighs little: rewards
#   are 1 to 2 apart here, and both moves from the start were recorded equally often.
# - `flow_steps` and `candidates` are few, because at most two ways were recorded.
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
# Policies are stochastic: the move that most of this many draws agree on is made.
_VOTES = 64


@dataclass(frozen=True)
class BaselineResult:
    """The policy that one seed's networks have learned.

    Attributes:
        right: Share of the actions drawn at the start whose first move goes right,
            which is the best move.
        path: Cells of the rollout of the most frequent moves.
    """

    right: float
    path: grid.Path


def train_baseline(name: str, seeds: tuple[int, ...]) -> list[BaselineResult]:
    """Trains one agent per seed, side by side, and rolls each policy out.

    Args:
        name: Name of the agent, a key of ``CONFIGS``.
        seeds: Consecutive seeds of the runs.

    Returns:
        One result for each seed.
    """
    table = grid.make_table(DISCOUNT, recordings=RECORDINGS, noise=NOISE)
    agent = make_agent(CONFIGS[name], recording.compute_facts(table))
    trained = train([(agent, UPDATES)], table, seeds, batch_size=BATCH_SIZE)
    return [_roll_out(agent, params) for params in trained]


def _roll_out(agent: Agent[Any], params: Params) -> BaselineResult:
    """Rolls out the move, or chunk of moves, that is drawn most often at each cell."""
    cells = [(x, y) for x in range(grid.SIZE) for y in range(grid.SIZE)]
    keys = jax.random.split(jax.random.key(0), _VOTES)

    @jax.jit
    def act(params: Params, observations: jax.Array) -> jax.Array:
        def draw(observation: jax.Array) -> jax.Array:
            return jax.vmap(lambda key: agent.act(params, observation, key))(keys)

        return jax.vmap(draw)(observations)

    actions = np.asarray(act(params, jnp.asarray(grid.observe(cells))))
    # Each cell's draws, as `[votes, chunk]` moves.
    draws = dict(zip(cells, grid.decode_actions(actions).tolist(), strict=True))
    # Chunks are compared whole: the majority of single moves could be a sequence that
    # no draw contains.
    chunks = {
        cell: Counter(map(tuple, drawn)).most_common(1)[0][0]
        for cell, drawn in draws.items()
    }
    first_moves = [chunk[0] for chunk in draws[grid.START]]
    return BaselineResult(
        right=first_moves.count(grid.RIGHT) / _VOTES,
        path=grid.roll_out(lambda cell: chunks[cell]),
    )
