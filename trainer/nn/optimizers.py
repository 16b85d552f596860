"""The optimiser of all agents, and the soft update of target parameters."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

Tree = TypeVar("Tree")
# Parameters of at most this many elements are concatenated for the gradient's norm:
# copying them costs less than a reduction kernel for each.
_SMALL = 2**19


def adam(
    learning_rate: float, *, clip_norm: float | None
) -> optax.GradientTransformation:
    """Builds Adam, with the gradient of all networks clipped to a global norm.

    Args:
        learning_rate: Step size.
        clip_norm: Largest global norm of the gradient; None for no clipping.

    Returns:
        The gradient transformation. Its update takes the gradient's ``norm`` as an
        extra argument, where the caller has computed it.
    """
    if clip_norm is None:
        return optax.adam(learning_rate)
    return optax.chain(_clip(clip_norm), optax.adam(learning_rate))


def _clip(largest: float) -> optax.GradientTransformationExtraArgs:
    """Clips by global norm, as Optax does, but takes a norm that is known already."""
    # The norm is logged in any case, and measuring it twice would cost kernels. On a
    # mesh the caller also measures it without joining leaves that lie in parts.

    def update(
        gradient: Tree, state: Any, params: Any = None, *, norm: Any = None
    ) -> tuple[Tree, Any]:
        norm = global_norm(gradient) if norm is None else norm
        scale = jnp.minimum(1.0, largest / norm)
        # XLA's GPU compiler fuses the steps of equally shaped parameters into one
        # kernel if they read a common array. A scalar does not count as one, so the
        # scale is stored twice.
        scale = jax.lax.optimization_barrier(jnp.stack([scale, scale]))[0]
        return jax.tree.map(lambda x: x * scale, gradient), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def global_norm(tree: Any) -> jax.Array:
    """Computes the norm of all elements of a tree: ``f32[]``."""
    # At the paper's width, launching a kernel costs more than reducing a small leaf,
    # so small leaves are joined for a single reduction.
    leaves = jax.tree.leaves(tree)
    small = [leaf for leaf in leaves if leaf.size <= _SMALL]
    large = [leaf for leaf in leaves if leaf.size > _SMALL]
    norm: jax.Array = optax.tree.norm([ravel_pytree(small)[0], *large])
    return norm


def soft_update(target: Tree, source: Tree, *, rate: float | jax.Array) -> Tree:
    """Moves targets a fraction of the way: ``rate * source + (1 - rate) * target``."""
    # In this form a target that equals its source stays bitwise equal to it.
    return jax.tree.map(lambda t, s: t + rate * (s - t), target, source)
