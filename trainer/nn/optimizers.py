"""The optimiser of all agents, and the soft update of target parameters."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

Tree = TypeVar("Tree")
# Numbers of a parameter up to which joining it with others costs less than a kernel.
_SMALL = 2**19


def adam(
    learning_rate: float, *, clip_norm: float | None
) -> optax.GradientTransformation:
    """Adam, after clipping the gradient of all networks to a global norm.

    Args:
        learning_rate: Step size.
        clip_norm: Largest global norm of the gradient, or None not to clip.

    Returns:
        The gradient transformation; its update may be told the gradient's ``norm``.
    """
    if clip_norm is None:
        return optax.adam(learning_rate)
    return optax.chain(_clip(clip_norm), optax.adam(learning_rate))


def _clip(largest: float) -> optax.GradientTransformationExtraArgs:
    """``optax.clip_by_global_norm`` for whoever may know the norm already."""

    def update(
        gradient: Tree, state: Any, params: Any = None, *, norm: Any = None
    ) -> tuple[Tree, Any]:
        norm = global_norm(gradient) if norm is None else norm
        scale = jnp.minimum(1.0, largest / norm)
        # Twice, in memory: XLA's GPU compiler makes one kernel of the steps of equally
        # shaped parameters if they read an array in common, which a scalar is not.
        scale = jax.lax.optimization_barrier(jnp.stack([scale, scale]))[0]
        return jax.tree.map(lambda x: x * scale, gradient), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def global_norm(tree: Any) -> jax.Array:
    """Norm of all numbers of a tree: ``f32[]``.

    Small leaves are joined first, for one reduction instead of one each.
    """
    leaves = jax.tree.leaves(tree)
    small = [leaf for leaf in leaves if leaf.size <= _SMALL]
    large = [leaf for leaf in leaves if leaf.size > _SMALL]
    norm: jax.Array = optax.tree.norm([ravel_pytree(small)[0], *large])
    return norm


def soft_update(target: Tree, source: Tree, *, rate: float) -> Tree:
    """Moves targets a fraction of the way: ``rate * source + (1 - rate) * target``."""
    return jax.tree.map(lambda t, s: t + rate * (s - t), target, source)
