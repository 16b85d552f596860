"""The export of a policy: a StableHLO program with the parameters inside.

To run the program takes ``jax.export`` and NumPy, but nothing of this package.

Dimensions: B rows, C actions of a call, S observation, A action.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from pipeline.store.action_scale import ActionScale
from trainer.agents.base import Agent
from trainer.evaluation.rollouts import make_acting_function
from trainer.nn.networks import Params

PLATFORMS = ("cpu", "cuda", "tpu")


def export_acting(
    agent: Agent[Any],
    params: Params,
    *,
    observation_dim: int,
    action_scale: ActionScale | None,
) -> bytes:
    """Exports acting as a program that all of ``PLATFORMS`` can run.

    The program's arguments are observations ``f32[B, S]`` in the units of the data, of
    any B; a seed ``u32[]``; and, for each row, the number of its episode ``u32[B]`` and
    the steps taken in that episode ``u32[B]``. Their result is the next C actions of
    each row ``f32[B, C, A]``, in the environment's units. Equal arguments give equal
    actions.

    Args:
        agent: Agent whose ``act`` is exported.
        params: Parameters of one training seed.
        observation_dim: Components S of an observation.
        action_scale: Environment's actions that -1 and 1 of the agent's stand for; None
            if they are -1 and 1.

    Returns:
        The program, which ``jax.export.deserialize`` reads.
    """
    # The same function as in evaluations: the noise that acting draws is keyed by seed,
    # episode and step, so the program needs no state.
    act_rows = make_acting_function(agent)

    def act(
        observations: jax.Array, seed: jax.Array, episodes: jax.Array, steps: jax.Array
    ) -> jax.Array:
        actions = act_rows(params, seed, observations, episodes, steps)
        if action_scale is None:
            return actions
        low = jnp.asarray(action_scale.low, jnp.float32)[None, None]
        high = jnp.asarray(action_scale.high, jnp.float32)[None, None]
        return low + (actions + 1.0) / 2.0 * (high - low)

    # One program for any number of rows.
    (rows,) = export.symbolic_shape("rows")
    numbers = jax.ShapeDtypeStruct((rows,), jnp.uint32)
    exported = export.export(jax.jit(act), platforms=PLATFORMS)(
        jax.ShapeDtypeStruct((rows, observation_dim), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.uint32),
        numbers,
        numbers,
    )
    return bytes(exported.serialize())
