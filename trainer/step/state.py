"""The state of a training run, and the compiled call that advances it.

"Step" is the number of updates done: state at step n has seen batches 0 to n - 1.

Dimensions: M updates per call, Q seeds, B batch.
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
    """Everything a run carries from step to step besides its place in the data.

    Attributes:
        agent: State of every seed, stacked on a leading axis ``Q``.
        keys: ``u32[Q, 2]``, raw key of each seed's updates; constant.
    """

    agent: AgentState
    keys: jax.Array


def init_state(agent: Agent[Any], mesh: Mesh, seeds: Sequence[int]) -> TrainState:
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


def abstract_state(agent: Agent[Any], *, seeds: int) -> TrainState:
    """Shapes of the state of Q seeds, drawn by nobody."""
    roots = jax.ShapeDtypeStruct((seeds, 2), jnp.uint32)
    shapes: TrainState = jax.eval_shape(partial(_draw, agent), roots)
    return shapes


def layout(agent: Agent[Any], mesh: Mesh, *, seeds: int) -> TrainState:
    """Shardings of the state of Q seeds."""
    placed: TrainState = state_shardings(abstract_state(agent, seeds=seeds), mesh)
    return placed


def _draw(agent: Agent[Any], roots: jax.Array) -> TrainState:
    def one(root: jax.Array) -> TrainState:
        init_key, update_key = jax.random.split(jax.random.wrap_key_data(root))
        return TrainState(agent.init(init_key), jax.random.key_data(update_key))

    return jax.vmap(one)(roots)


def step_of(state: TrainState) -> int:
    """Updates done; equal for all seeds. Waits for the devices."""
    return int(np.asarray(state.agent.step.addressable_data(0))[0])
