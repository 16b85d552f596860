"""The compiled call that measures a state on held-out windows and changes nothing.

Dimensions: M batches, Q seeds, B batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainer.agents.base import Agent, AgentState, Metrics
from trainer.data.held_out import HeldOutBatches
from trainer.parallel.mesh import batch_sharding, gather_params, replicated
from trainer.parallel.mesh_shape import SEED
from trainer.step.state import TrainState, layout

# Folded into a seed's key before the step is: no update's key is folded like that, as
# a step is an int32 and never as large.
_STREAM = 2**32 - 1

# (state, [M, Q, B, ...]) -> metrics [Q]
ValidationCall = Callable[[TrainState, HeldOutBatches], Metrics]


def make_validation_call(
    agent: Agent[Any], mesh: Mesh, *, seeds: int
) -> ValidationCall:
    """Compiles the call that measures all seeds.

    The noise of flows is drawn anew at each step, by a key that is a function of seed
    and step alone.

    Args:
        agent: The algorithm.
        mesh: Where the state lies.
        seeds: Q.

    Returns:
        ``call(state, held_out)``: what the agent's losses log, without a gradient,
        reduced over the M batches, ``[Q]`` each; ``return``, the mean stored return of
        the windows' first rows; and ``return_error``, the mean distance of the agent's
        values of the recorded actions from it.
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

    every = jax.vmap(measure, in_axes=(0, 0, None, 0), spmd_axis_name=SEED)

    @partial(
        jax.jit,
        in_shardings=(layout(agent, mesh, seeds=seeds), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    def call(state: TrainState, held_out: HeldOutBatches) -> Metrics:
        def one(
            _: None, item: tuple[jax.Array, HeldOutBatches]
        ) -> tuple[None, Metrics]:
            return None, every(state.agent, state.keys, *item)

        numbers = jnp.arange(len(held_out.returns))
        _, metrics = jax.lax.scan(one, None, (numbers, held_out))
        return metrics.reduce()

    compiled: ValidationCall = call
    return compiled
