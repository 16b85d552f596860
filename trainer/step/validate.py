"""The compiled call that measures a state on held-out windows without changing it.

Dimensions: M batches, Q seeds, B batch.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainer.agents.base import Agent, AgentState, Metrics
from trainer.data.held_out import HeldOutBatches
from trainer.parallel.mesh import batch_sharding, gather_params, replicated
from trainer.parallel.mesh_shape import SEED
from trainer.step.state import TrainState, layout

# Folded into a seed's key before the step. Updates fold in the step alone, an int32
# that is never as large, so no update draws from this stream.
_STREAM = 2**32 - 1

# (state, [M, Q, B, ...]) -> metrics [Q]
ValidationCall = Callable[[TrainState, HeldOutBatches], Metrics]


@lru_cache(maxsize=8)  # As training's call.
def make_validation_call(
    agent: Agent[Any], mesh: Mesh, *, seeds: int
) -> ValidationCall:
    """Builds the call that measures all seeds; it compiles when first called.

    The noise of flows is drawn from a key that is a function of seed and step alone, so
    that a resumed run measures what an uninterrupted one would.

    Args:
        agent: The algorithm.
        mesh: Mesh that the state lies on.
        seeds: Number Q of seeds.

    Returns:
        ``call(state, held_out)``, which gives metrics reduced over the M batches,
        arrays ``[Q, ...]``: the metrics of the agent's losses; ``return``, the mean
        stored return of the windows' first rows; and ``return_error``, the mean
        absolute difference between that return and the agent's value of the recorded
        action.
    """
    gather = partial(gather_params, mesh=mesh)

    def measure(
        state: AgentState, raw_key: jax.Array, number: jax.Array, held: HeldOutBatches
    ) -> Metrics:
        key = jax.random.wrap_key_data(raw_key)
        for data in (jnp.uint32(_STREAM), state.step, number):
            key = jax.random.fold_in(key, data)
        loss_key, value_key = jax.random.split(key)
        params, targets = gather(state.params), gather(state.targets)
        _, metrics = agent.total_loss(params, targets, held.batches, loss_key)
        values = agent.action_values(params, held.batches, value_key)
        metrics.mean["return"] = held.returns.mean()
        metrics.mean["return_error"] = jnp.abs(values - held.returns).mean()
        return metrics

    measure_all = jax.vmap(measure, in_axes=(0, 0, None, 0), spmd_axis_name=SEED)

    @partial(
        jax.jit,
        in_shardings=(layout(agent, mesh, seeds=seeds), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    def call(state: TrainState, held_out: HeldOutBatches) -> Metrics:
        def measure_batch(
            _: None, item: tuple[jax.Array, HeldOutBatches]
        ) -> tuple[None, Metrics]:
            return None, measure_all(state.agent, state.keys, *item)

        # One batch after another: the memory of activations is that of one batch.
        numbers = jnp.arange(len(held_out.returns))
        _, metrics = jax.lax.scan(measure_batch, None, (numbers, held_out))
        return metrics.reduce()

    compiled: ValidationCall = call
    return compiled
