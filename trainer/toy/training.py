"""Training on a toy, with the feed and the training call of real runs, on one device.

Dimensions: Q seeds, B batch.
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

# A toy logs nothing, so calls are long: a call's own overhead is larger than the
# updates of such small networks. Every number of updates must be a multiple of it.
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
        phases: Agents and their numbers of updates, in order. They continue one state,
            so they may differ in their learning rate only.
        table: Rows to train on.
        seeds: Consecutive seeds of the runs, Q of them.
        batch_size: Rows B of each seed's batch.
        progress: Function that is called with the number of updates since its last
            call.

    Returns:
        Parameters that act, of each seed.
    """
    first, _ = phases[0]
    # One device: networks are too small for several to pay off, and results do not
    # depend on the machine.
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
        # Index batches: the table goes to the device once, with the rows below.
        gather=False,
    )
    feed = make_feed(source, FeedConfig(), updates_per_call=_UPDATES_PER_CALL)
    rows = (table.observations, table.actions)
    state = init_state(first, mesh, seeds)
    for agent, updates in phases:
        # The learning rate is a constant of the compiled call, so each phase has one.
        call = make_train_call(agent, mesh, seeds=len(seeds))
        for _ in range(updates // _UPDATES_PER_CALL):
            state, _ = call(state, rows, next(feed))
            progress(_UPDATES_PER_CALL)
    params = jax.device_get(state.agent.acting)
    return [jax.tree.map(lambda leaf, q=q: leaf[q], params) for q in range(len(seeds))]
