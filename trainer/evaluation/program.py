"""Acting as a program for others: StableHLO with the parameters inside.

Whoever runs it needs ``jax.export`` and NumPy, and nothing of this package.

Dimensions: B environments side by side, C actions a call, S observation, A action.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from pipeline.store.action_scale import ActionScale
from trainer.agents.base import Agent
from trainer.evaluation.rollouts import acting_function
from trainer.nn.networks import Params

PLATFORMS = ("cpu", "cuda", "tpu")


def export_acting(
    agent: Agent[Any],
    params: Params,
    *,
    observation_dim: int,
    action_scale: ActionScale | None,
) -> bytes:
    """Compiles acting to a program that any of ``PLATFORMS`` runs.

    Its arguments are observations ``f32[B, S]`` in the units of the data, of any B, a
    seed ``u32[]``, and of each row the number of its episode ``u32[B]`` and the steps
    taken in it ``u32[B]``; its result are the next C actions ``f32[B, C, A]``, in the
    units of the data. Nothing else is drawn or kept: equal arguments, equal actions.

    Args:
        agent: Whose ``act`` is called.
        params: Of one training seed.
        observation_dim: S.
        action_scale: What -1 and 1 of the agent's actions are to the environment.

    Returns:
        What ``jax.export.deserialize`` reads.
    """
    act_rows = acting_function(agent)

    def act(
        observations: jax.Array, seed: jax.Array, episodes: jax.Array, steps: jax.Array
    ) -> jax.Array:
        actions = act_rows(params, seed, observations, episodes, steps)
        if action_scale is None:
            return actions
        low = jnp.asarray(action_scale.low, jnp.float32)[None, None]
        high = jnp.asarray(action_scale.high, jnp.float32)[None, None]
        return low + (actions + 1.0) / 2.0 * (high - low)

    (rows,) = export.symbolic_shape("rows")
    numbers = jax.ShapeDtypeStruct((rows,), jnp.uint32)
    exported = export.export(jax.jit(act), platforms=PLATFORMS)(
        jax.ShapeDtypeStruct((rows, observation_dim), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.uint32),
        numbers,
        numbers,
    )
    return bytes(exported.serialize())
