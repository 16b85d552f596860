"""What one compiled call is: many updates of all seeds, on a mesh, with donated state.

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Callable
from functools import partial
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

# Calls whose batches may wait on the devices; more would only fill their memory.
CALLS_AHEAD = 2

# (state, rows to gather from or None, batches [M, Q, B, ...]) -> (state, metrics [Q])
TrainCall = Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]


def make_train_call(
    agent: Agent[Any], mesh: Mesh, *, seeds: int, microbatches: int = 1
) -> TrainCall:
    """Compiles the call that does M updates of all seeds.

    Args:
        agent: The algorithm.
        mesh: Where everything lies.
        seeds: Q.
        microbatches: Parts of a batch whose gradients are averaged one after another.

    Returns:
        ``call(state, rows, batches)``; the state is donated. With ``rows``, a pair
        ``(observations, actions)`` on the devices, ``batches`` are index batches and
        rows are looked up there; with None they are whole batches. Metrics come
        reduced over the M updates, ``[Q]`` each.
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
        # Left alone, the compiler may lay out what one update hands to the next as it
        # likes: whole, at worst.
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
        update: Of all Q seeds.
        state: Before them.
        batches: ``[M, Q, B, ...]``.

    Returns:
        The state after them, and their metrics, reduced over M.
    """

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        state, metrics = update(state, batch)
        # A seed's metrics as one array: apart, each would take a kernel to keep.
        packed = jax.vmap(lambda one: ravel_pytree(one)[0])(metrics)
        _, unpack = ravel_pytree(jax.tree.map(lambda x: x[0], metrics))
        return state, (packed, Partial(unpack))

    state, (packed, unpack) = jax.lax.scan(step, state, batches)
    metrics: Metrics = jax.vmap(jax.vmap(unpack))(packed)
    return state, metrics.reduce()


def update_seeds(
    one_update: Update, state: TrainState, batch: Any, *, axis: str | None = None
) -> tuple[TrainState, Metrics]:
    """Does one update of every seed, each with a key of its own for that step.

    Args:
        one_update: Of one seed.
        state: Of Q seeds.
        batch: ``[Q, B, ...]``.
        axis: Mesh axis the seeds are spread over, if any.

    Returns:
        The state after it, and figures ``[Q]``.
    """

    def one(
        agent_state: AgentState, raw_key: jax.Array, batch: Any
    ) -> tuple[AgentState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(raw_key), agent_state.step)
        return one_update(agent_state, batch, key)

    def alone(*arguments: Any) -> Any:
        out = one(*jax.tree.map(partial(jnp.squeeze, axis=0), arguments))
        return jax.tree.map(partial(jnp.expand_dims, axis=0), out)

    # Across axes of one XLA's GPU compiler merges less.
    every = alone if len(state.keys) == 1 else jax.vmap(one, spmd_axis_name=axis)
    agent_state, metrics = every(state.agent, state.keys, batch)
    return TrainState(agent_state, state.keys), metrics
