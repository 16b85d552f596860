"""The state of a training run, and the compiled call that advances it.

"Step" is the number of updates done: state at step n has seen batches 0 to n - 1.

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.tree_util import Partial

from trainer import sharding
from trainer.agents.base import Agent, AgentState, Metrics
from trainer.update import Update, make_update


class TrainState(NamedTuple):
    """Everything a run carries from step to step besides its place in the data.

    Attributes:
        agent: State of every seed, stacked on a leading axis ``Q``.
        keys: ``u32[Q, 2]``, raw key of each seed's updates; constant.
    """

    agent: AgentState
    keys: jax.Array


# Calls whose batches may wait on the devices; more would only fill their memory.
CALLS_AHEAD = 2
# (state, rows to gather from or None, batches [M, Q, B, ...]) -> (state, metrics [Q])
TrainCall = Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]


def init_state(agent: Agent, mesh: Mesh, seeds: Sequence[int]) -> TrainState:
    """Draws the state of every seed before its first update.

    Args:
        agent: The algorithm.
        mesh: Where the state lies.
        seeds: Seed of each run. A seed's state does not depend on its neighbours.

    Returns:
        The state, laid out on the mesh.
    """
    # Made on the host: a seed is its number whatever lies beside it.
    roots = np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
    drawn: TrainState = jax.jit(
        partial(_draw, agent),
        out_shardings=layout(agent, mesh, seeds=len(seeds)),
    )(roots)
    return drawn


def abstract_state(agent: Agent, *, seeds: int) -> TrainState:
    """Shapes of the state of Q seeds, drawn by nobody."""
    roots = jax.ShapeDtypeStruct((seeds, 2), jnp.uint32)
    shapes: TrainState = jax.eval_shape(partial(_draw, agent), roots)
    return shapes


def layout(agent: Agent, mesh: Mesh, *, seeds: int) -> TrainState:
    """Shardings of the state of Q seeds."""
    placed: TrainState = sharding.state_shardings(
        abstract_state(agent, seeds=seeds), mesh
    )
    return placed


def _draw(agent: Agent, roots: jax.Array) -> TrainState:
    def one(root: jax.Array) -> TrainState:
        init_key, update_key = jax.random.split(jax.random.wrap_key_data(root))
        return TrainState(agent.init(init_key), jax.random.key_data(update_key))

    return jax.vmap(one)(roots)


def make_train_call(
    agent: Agent, mesh: Mesh, *, seeds: int, microbatches: int = 1
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
        gather=partial(sharding.gather_params, mesh=mesh),
        scatter=partial(sharding.scatter_params, mesh=mesh),
        norm=partial(sharding.global_norm, mesh=mesh),
    )

    def update(rows: Any, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        if rows is not None:
            batch = agent.sampler.gather(*rows, batch)
        state, metrics = update_seeds(one_update, state, batch, axis=sharding.SEED)
        # Left alone, the compiler may lay out what one update hands to the next as it
        # likes: whole, at worst.
        return jax.lax.with_sharding_constraint(state, placed), metrics

    @partial(
        jax.jit,
        donate_argnums=0,
        in_shardings=(
            placed,
            sharding.replicated(mesh),
            sharding.batch_sharding(mesh),
        ),
        out_shardings=(placed, sharding.replicated(mesh)),
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


def step_of(state: TrainState) -> int:
    """Updates done; equal for all seeds. Waits for the devices."""
    return int(np.asarray(state.agent.step.addressable_data(0))[0])
