"""Training on the grid: the product's own feed and call, on one device.

Dimensions: Q seeds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from trainer.agents.base import Agent
from trainer.data.feed import BatchSource, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.data.table import RowTable
from trainer.nn.networks import Params
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import init_state

_UPDATES_PER_CALL = 250


def train(
    phases: Sequence[tuple[Agent[Any], int]],
    table: RowTable,
    seeds: tuple[int, ...],
    *,
    batch_size: int,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Params]:
    """Trains one agent per seed, side by side.

    Args:
        phases: Agents of one kind and shape, such as of falling learning rates, and the
            updates each does, one after another.
        table: Of the grid.
        seeds: Of the runs.
        batch_size: B of each.
        progress: Called with the updates done since it was last called.

    Returns:
        Parameters of each seed.
    """
    first, _ = phases[0]
    # Too small to spread.
    mesh = make_mesh(
        MeshConfig(),
        seeds=len(seeds),
        batch_size=batch_size,
        devices=jax.devices()[:1],
    )
    source = BatchSource(
        table,
        first.sampler,
        seeds=seeds,
        batch_size=batch_size,
        steps=sum(updates for _, updates in phases),
        gather=False,
    )
    feed = make_feed(source, FeedConfig(), updates_per_call=_UPDATES_PER_CALL)
    rows = (table.observations, table.actions)
    state = init_state(first, mesh, seeds)
    for agent, updates in phases:
        call = make_train_call(agent, mesh, seeds=len(seeds))
        for _ in range(updates // _UPDATES_PER_CALL):
            state, _ = call(state, rows, next(feed))
            progress(_UPDATES_PER_CALL)
    params = jax.device_get(state.agent.params)
    return [jax.tree.map(lambda leaf, q=q: leaf[q], params) for q in range(len(seeds))]
