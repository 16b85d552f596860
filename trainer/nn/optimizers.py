"""The optimiser of all agents, and the soft update of target parameters."""

from typing import TypeVar

import jax
import optax

Tree = TypeVar("Tree")


def adam(
    learning_rate: float, *, clip_norm: float | None
) -> optax.GradientTransformation:
    """Adam, after clipping the gradient of all networks to a global norm.

    Args:
        learning_rate: Step size.
        clip_norm: Largest global norm of the gradient, or None not to clip.

    Returns:
        The gradient transformation.
    """
    if clip_norm is None:
        return optax.adam(learning_rate)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(learning_rate))


def soft_update(target: Tree, source: Tree, *, rate: float) -> Tree:
    """Moves targets a fraction of the way: ``rate * source + (1 - rate) * target``."""
    return jax.tree.map(lambda t, s: t + rate * (s - t), target, source)
