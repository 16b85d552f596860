"""The state of a training run: how it is drawn, and its layout on a mesh.

"Step" is the number of updates done: the state at step n has seen batches 0 to n - 1.

Dimensions: Q seeds.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from trainer.agents.base import Agent, AgentState
from trainer.parallel.mesh import state_shardings


class TrainState(NamedTuple):
    """Everything that a run carries from step to step besides its place in the data.

    Attributes:
        agent: State of every seed, stacked on a leading axis ``Q``.
        keys: ``u32[Q, 2]``, raw key of each seed's updates; constant over training.
    """

    agent: AgentState
    keys: jax.Array


def init_state(agent: Agent[Any], mesh: Mesh, seeds: Sequence[int]) -> TrainState:
    """Draws the state of every seed before its first update.

    Args:
        agent: The algorithm.
        mesh: Mesh that the state is laid out on.
        seeds: Seed of each run. The state of a seed does not depend on the others.

    Returns:
        The state, laid out on the mesh.
    """
    # Root keys are made on the host, from each seed's number alone: splitting one key
    # would make a seed's key depend on how many seeds are trained beside it.
    roots = np.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
    drawn: TrainState = jax.jit(
        partial(_draw, agent),
        out_shardings=layout(agent, mesh, seeds=len(seeds)),
    )(roots)
    return drawn


def abstract_state(agent: Agent[Any], *, seeds: int) -> TrainState:
    """Returns abstract shapes of the state of Q seeds; nothing is computed."""
    roots = jax.ShapeDtypeStruct((seeds, 2), jnp.uint32)
    shapes: TrainState = jax.eval_shape(partial(_draw, agent), roots)
    return shapes


def layout(agent: Agent[Any], mesh: Mesh, *, seeds: int) -> TrainState:
    """Returns the shardings of the state of Q seeds."""
    placed: TrainState = state_shardings(abstract_state(agent, seeds=seeds), mesh)
    return placed


# Jitted, so that the shapes, the layouts and the drawing itself share one trace, which
# takes a second of a start. Agents are frozen and compare by their settings.
@partial(jax.jit, static_argnums=0)
def _draw(agent: Agent[Any], roots: jax.Array) -> TrainState:
    def draw_one(root: jax.Array) -> TrainState:
        init_key, update_key = jax.random.split(jax.random.wrap_key_data(root))
        # Raw key data, because checkpoints hold arrays of plain dtypes.
        return TrainState(init_agent(agent, init_key), jax.random.key_data(update_key))

    return jax.vmap(draw_one)(roots)


def init_agent(agent: Agent[Any], key: jax.Array) -> AgentState:
    """Draws one seed's state of an agent, with the average if it acts with one."""
    state = agent.init(key)
    if not agent.config.ema_decay:
        return state
    return state._replace(average=state.params)


def read_step(state: TrainState) -> int:
    """Returns the updates done, equal for all seeds; waits for the devices."""
    # The first shard of this process: the whole array may lie on several hosts.
    return int(np.asarray(state.agent.step.addressable_data(0))[0])
