"""VAST's networks on the grid: trained on the recorded paths, then followed greedily.

The agent is the one that trains on MuJoCo, unchanged. What the grid needs of its
options, and why:

- windows of one step (``min_horizon = 1``): both paths reach the cell where they meet
  in two moves, with different rewards, and G can only tell the mean of the two;
- at most three steps: over four, the two ways on from there look alike as well;
- no gradient through the composed side: where the two paths cannot be told apart, it
  would draw the first step's G, which is exact, towards the mean of both;
- an expectile near the mean: the stitching policy's weights do the maximising, and a
  high one picks the luckiest of its imprecise sub-goals (0.65 left V too high by 0.3 on
  some seeds);
- a temperature that tells good windows from bad (rewards here are 1 to 2 apart, not
  fractions of a return of 100) and yet not so high that states whose value is still
  too high lose all weight, and with it their way down;
- each path recorded many times, at positions a little off: a flow's sub-goals are never
  exact, they lie about 0.1 beside a cell, and there G and V must have been seen.
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
# Updates at each learning rate: the second settles what the first keeps moving.
PHASES = ((2_000, 1e-3), (1_500, 1e-4))
BATCH_SIZE = 128
RECORDINGS, NOISE = 64, 0.1
_VOTES = 64


@dataclass(frozen=True)
class NeuralResult:
    """What one seed's networks ended with.

    Attributes:
        values: V of each visited cell.
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
    """Trains one agent per seed, side by side, and follows each.

    Args:
        seeds: Of the runs.
        phases: Updates and learning rate, one phase after another.
        progress: Called with the updates done since it was last called.

    Returns:
        What each seed ended with.
    """
    table = grid.table(DISCOUNT, recordings=RECORDINGS, noise=NOISE)
    facts = recording.facts(table)
    phased = [
        (VAST(dataclasses.replace(CONFIG, learning_rate=learning_rate), facts), updates)
        for updates, learning_rate in phases
    ]
    trained = train(phased, table, seeds, batch_size=BATCH_SIZE, progress=progress)
    agent, _ = phased[-1]
    return [_follow(agent, params) for params in trained]


def _follow(agent: VAST, params: Params) -> NeuralResult:
    """Values at the visited cells, and the rollout of the likeliest moves.

    Acting draws a sub-goal and actions; the move most of 64 draws agree on is made.
    """
    cells = [(x, y) for x in range(grid.SIZE) for y in range(grid.SIZE)]
    observations = jnp.asarray(grid.observe(cells))
    keys = jax.random.split(jax.random.key(0), _VOTES)

    @jax.jit
    def look(params: Params) -> tuple[jax.Array, jax.Array]:
        def votes(observation: jax.Array) -> jax.Array:
            return jax.vmap(lambda key: agent.act(params, observation, key)[0])(keys)

        return agent.value(params, observations), jax.vmap(votes)(observations)

    values, actions = map(np.asarray, look(params))
    moves: npt.NDArray[np.int64] = grid.decode_actions(actions)
    likeliest = dict(
        zip(cells, (moves.mean(axis=1) > 0.5).astype(int).tolist(), strict=True)
    )
    by_cell = dict(zip(cells, values.tolist(), strict=True))
    return NeuralResult(
        values={cell: by_cell[cell] for cell in grid.VISITED},
        path=grid.rollout(lambda cell: (likeliest[cell],)),
    )
