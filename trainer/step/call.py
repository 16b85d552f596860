"""The compiled training call: many updates of all seeds, on a mesh, with donated state.

A call fuses M updates: at width 64, dispatching each of them alone takes a tenth more
time (tests/benchmarks/README.md).

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.tree_util import Partial

from trainer.agents.base import Agent, AgentState, Metrics
from trainer.parallel.mesh import (
    batch_sharding,
    gather_params,
    global_norm,
    replicated,
    scatter_params,
)
from trainer.parallel.mesh_shape import SEED
from trainer.step.state import TrainState, layout
from trainer.step.update import Update, make_update

# Calls whose batches may wait on the devices: enough to keep them busy while the host
# draws, and more would only fill their memory.
CALLS_AHEAD = 2

# (state, rows to gather from or None, batches [M, Q, B, ...]) -> (state, metrics [Q])
TrainCall = Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]


# The last calls are kept: another run of the same agent in this process, as in a
# notebook, need not trace its updates again.
@lru_cache(maxsize=8)
def make_train_call(
    agent: Agent[Any], mesh: Mesh, *, seeds: int, microbatches: int = 1
) -> TrainCall:
    """Builds the call that does M updates of all seeds; it compiles when first called.

    Args:
        agent: The algorithm.
        mesh: Mesh that state and batches lie on.
        seeds: Number Q of seeds.
        microbatches: Parts of a batch whose gradients are averaged one after another.

    Returns:
        ``call(state, rows, batches)``; the state is donated. With ``rows``, a pair
        ``(observations, actions)`` on the devices, ``batches`` are index batches and
        their rows are looked up on the devices; with None they are whole batches.
        Metrics are reduced over the M updates, arrays ``[Q, ...]``.
    """
    placed = layout(agent, mesh, seeds=seeds)
    one_update = make_update(
        agent,
        microbatches=microbatches,
        gather=partial(gather_params, mesh=mesh, precision=agent.config.precision),
        scatter=partial(scatter_params, mesh=mesh),
        norm=partial(global_norm, mesh=mesh),
    )

    def update(rows: Any, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        if rows is not None:
            observations, actions = rows
            batch = agent.sampler.gather(observations, actions, batch)
        state, metrics = update_seeds(one_update, state, batch, axis=SEED)
        # Without this constraint the compiler may lay out the state between two updates
        # as it likes: at worst whole on every device.
        return jax.lax.with_sharding_constraint(state, placed), metrics

    @partial(
        jax.jit,
        donate_argnums=0,
        in_shardings=(
            placed,
            replicated(mesh),
            batch_sharding(mesh),
        ),
        out_shardings=(placed, replicated(mesh)),
    )
    def call(state: TrainState, rows: Any, batches: Any) -> tuple[TrainState, Metrics]:
        return fold_updates(partial(update, rows), state, batches)

    compiled: TrainCall = call
    return compiled


def fold_updates(
    update: Callable[[TrainState, Any], tuple[TrainState, Metrics]],
    state: TrainState,
    batches: Any,
) -> tuple[TrainState, Metrics]:
    """Does an update with each of M batches.

    Args:
        update: Update of all Q seeds.
        state: State before the first update.
        batches: Batches, arrays ``[M, Q, B, ...]``.

    Returns:
        The state after the last update, and metrics reduced over M.
    """

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        state, metrics = update(state, batch)
        # The loop stores the metrics of each update. Packed into one array that takes
        # one kernel; apart, it would take one for each figure.
        packed = jax.vmap(lambda of_seed: ravel_pytree(of_seed)[0])(metrics)
        _, unpack = ravel_pytree(jax.tree.map(lambda x: x[0], metrics))
        return state, (packed, Partial(unpack))

    state, (packed, unpack) = jax.lax.scan(step, state, batches)
    metrics: Metrics = jax.vmap(jax.vmap(unpack))(packed)
    return state, metrics.reduce()


def update_seeds(
    one_update: Update, state: TrainState, batch: Any, *, axis: str | None = None
) -> tuple[TrainState, Metrics]:
    """Does one update of every seed, each with its own key for that step.

    Args:
        one_update: Update of one seed.
        state: State of Q seeds.
        batch: Batch of all seeds, arrays ``[Q, B, ...]``.
        axis: Mesh axis that the seeds are spread over; None for none.

    Returns:
        The state after the update, and metrics, arrays ``[Q, ...]``.
    """

    def update_one(
        agent_state: AgentState, raw_key: jax.Array, batch: Any
    ) -> tuple[AgentState, Metrics]:
        # The key is a function of seed and step, so that a resumed run draws what an
        # uninterrupted one would have drawn.
        key = jax.random.fold_in(jax.random.wrap_key_data(raw_key), agent_state.step)
        return one_update(agent_state, batch, key)

    def update_alone(*arguments: Any) -> Any:
        out = update_one(*jax.tree.map(partial(jnp.squeeze, axis=0), arguments))
        return jax.tree.map(partial(jnp.expand_dims, axis=0), out)

    # A single seed is not mapped over: XLA's GPU compiler fuses less where arrays have
    # an axis of size one.
    if len(state.keys) == 1:
        update_all = update_alone
    else:
        update_all = jax.vmap(update_one, spmd_axis_name=axis)
    agent_state, metrics = update_all(state.agent, state.keys, batch)
    return TrainState(agent_state, state.keys), metrics
