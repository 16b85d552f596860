"""VAST's networks on the grid: trained on the recorded paths, then rolled out greedily.

The agent is the one that trains on MuJoCo, unchanged.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.nn.networks import Params
from trainer.toy import grid, recording
from trainer.toy.training import train

DISCOUNT = 0.99
# Options that differ from those on MuJoCo, and why:
# - `min_horizon` is 1, because both paths reach the cell where they meet in two moves,
#   with different rewards: of windows of two steps, G can only learn the mean.
# - `max_horizon` is 3, because over four steps the two ways from that cell to the goal
#   have the same ends as well.
# - `composed_gradient` is off: where the two paths cannot be told apart, the gradient
#   would draw G of the first step, which is exact, towards the mean of both.
# - `expectile` is near the mean, because the weights of the stitching policy already
#   maximise, and a high expectile picks the luckiest of its imprecise sub-goals: 0.65
#   left V too high by 0.3 on some seeds.
# - `temperature` is high enough to tell good windows from bad ones (rewards are 1 to 2
#   apart here, not fractions of a return of 100), and low enough that states whose
#   value is still too high keep some weight, without which it could never fall.
CONFIG = VASTConfig(
    discount=DISCOUNT,
    max_horizon=3,
    min_horizon=1,
    temperature=4.0,
    expectile=0.58,
    composed_gradient=False,
    candidates=16,
    width=64,
    depth=3,
    clip_norm=10.0,
    target_rate=0.02,
    max_weight=10.0,
    goal_current=0.0,
    goal_future=1.0,
    goal_random=0.0,
    goal_rule="horizon",
)
# Updates at each learning rate. At the first one, values come close and then keep
# moving; the second lets them settle.
PHASES = ((2_000, 1e-3), (2_500, 1e-4))
BATCH_SIZE = 128
# Noisy copies of each path: a flow's sub-goals are never exact but lie about 0.1 beside
# a cell, and G and V must have been trained at such points, too.
RECORDINGS, NOISE = 64, 0.1
# The policy is stochastic: the move that most of this many draws agree on is made.
_VOTES = 64


@dataclass(frozen=True)
class NeuralResult:
    """The values and the policy that one seed's networks have learned.

    Attributes:
        values: V of each cell that the data visit.
        path: Cells of the greedy rollout.
    """

    values: dict[grid.Cell, float]
    path: grid.Path


def train_networks(
    seeds: tuple[int, ...],
    *,
    phases: tuple[tuple[int, float], ...] = PHASES,
    progress: Callable[[int], None] = lambda _: None,
) -> list[NeuralResult]:
    """Trains one agent per seed, side by side, and rolls each policy out.

    Args:
        seeds: Consecutive seeds of the runs.
        phases: Number of updates and learning rate of the consecutive phases.
        progress: Function that is called with the number of updates since its last
            call.

    Returns:
        One result for each seed.
    """
    table = grid.make_table(DISCOUNT, recordings=RECORDINGS, noise=NOISE)
    facts = recording.compute_facts(table)
    phased = [
        (VAST(dataclasses.replace(CONFIG, learning_rate=learning_rate), facts), updates)
        for updates, learning_rate in phases
    ]
    trained = train(phased, table, seeds, batch_size=BATCH_SIZE, progress=progress)
    # Agents of all phases act alike: they differ in their learning rate only.
    agent, _ = phased[-1]
    return [_roll_out(agent, params) for params in trained]


def _roll_out(agent: VAST, params: Params) -> NeuralResult:
    """Evaluates V at the visited cells, and rolls out the most frequent moves."""
    cells = [(x, y) for x in range(grid.SIZE) for y in range(grid.SIZE)]
    observations = jnp.asarray(grid.observe(cells))
    keys = jax.random.split(jax.random.key(0), _VOTES)

    @jax.jit
    def evaluate(params: Params) -> tuple[jax.Array, jax.Array]:
        def draw(observation: jax.Array) -> jax.Array:
            return jax.vmap(lambda key: agent.act(params, observation, key)[0])(keys)

        return agent.value(params, observations), jax.vmap(draw)(observations)

    values, actions = map(np.asarray, evaluate(params))
    draws: npt.NDArray[np.int64] = grid.decode_actions(actions)
    # Moves are 0 or 1, so a mean above a half says that most draws are 1.
    moves = dict(
        zip(cells, (draws.mean(axis=1) > 0.5).astype(int).tolist(), strict=True)
    )
    by_cell = dict(zip(cells, values.tolist(), strict=True))
    return NeuralResult(
        values={cell: by_cell[cell] for cell in grid.VISITED},
        path=grid.roll_out(lambda cell: (moves[cell],)),
    )
