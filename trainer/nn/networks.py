"""The one network every agent is made of: a plain perceptron, and copies of it.

Parameters are nested dicts of arrays; nothing here knows what a network is for.

Dimensions: B batch, E ensemble.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from trainer.nn.choices import Precision

Params = dict[str, Any]
Activation = Literal["tanh", "gelu"]

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "gelu": nn.gelu,
}


def _kernel_init(scale: float) -> nn.initializers.Initializer:
    # Xavier uniform, as the code bases the methods come from.
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform")


class LayerNorm(nn.Module):
    """Flax's LayerNorm over the last axis, its variance the way the platform likes.

    GPUs and CPUs take the variance about the mean: of the difference of two means XLA
    makes three kernels for a GPU, of this one. A TPU reads the row twice for it, one
    reduction after the other: with the difference of two means, taken in one pass, the
    estimated cycles of a whole update are 1.7 times fewer on a v5e.

    Attributes:
        dtype: Of the result; None for the input's. Statistics are float32.
    """

    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises ``f32[..., D]`` to mean 0 and variance 1, scaled and shifted."""
        params = {
            "scale": self.param("scale", nn.initializers.ones, x.shape[-1:]),
            "bias": self.param("bias", nn.initializers.zeros, x.shape[-1:]),
        }

        def normalise(params: Params, x: jax.Array, *, fast: bool) -> jax.Array:
            norm = nn.LayerNorm(dtype=self.dtype, use_fast_variance=fast, parent=None)
            out: jax.Array = norm.apply({"params": params}, x)
            return out

        out: jax.Array = jax.lax.platform_dependent(
            params,
            x,
            tpu=partial(normalise, fast=True),
            default=partial(normalise, fast=False),
        )
        return out


class MLP(nn.Module):
    """Dense, activation, LayerNorm for every hidden layer, then a linear output.

    Attributes:
        outputs: Width of the output.
        width: Width of every hidden layer.
        depth: Number of hidden layers.
        activation: ``"tanh"`` or ``"gelu"`` (its tanh approximation).
        layer_norm: Whether LayerNorm follows each activation.
        output_scale: Of the variance the output's kernel is drawn with.
        precision: Of what the hidden layers compute with. Parameters, their
            gradients, LayerNorm's statistics and the output stay in float32, and so
            does the product with the inputs: raw states reach 50, where bfloat16 has
            steps of a quarter, and it is the smallest product but the output's.
        rematerialise: Whether a gradient evaluates the network once more, from its
            inputs, rather than keep what its layers gave: of a sampled flow only the
            points are kept, a layer's outputs of one evaluation at a time.
    """

    outputs: int
    width: int = 512
    depth: int = 4
    activation: Activation = "tanh"
    layer_norm: bool = True
    output_scale: float = 1.0
    precision: Precision = "float32"
    rematerialise: bool = False

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Applies the network to its inputs, joined along the last axis.

        Args:
            *inputs: ``f32[..., D_j]`` each, with equal leading axes.

        Returns:
            ``f32[..., outputs]``.
        """
        x = jnp.concatenate(inputs, axis=-1)
        # None is the wider of parameters' and input's: float32, and so after bfloat16.
        dtype = jnp.bfloat16 if self.precision == "bfloat16" else None
        for layer in range(self.depth):
            x = nn.Dense(
                self.width,
                kernel_init=_kernel_init(1.0),
                dtype=dtype if layer else None,
                name=f"hidden_{layer}",
            )(x)
            x = _ACTIVATIONS[self.activation](x if dtype is None else x.astype(dtype))
            if self.layer_norm:
                x = LayerNorm(name=f"norm_{layer}", dtype=dtype)(x)
        return nn.Dense(
            self.outputs, kernel_init=_kernel_init(self.output_scale), name="output"
        )(x)


def init(net: MLP, key: jax.Array, *widths: int) -> Params:
    """Draws parameters of one network.

    Args:
        net: The network.
        key: PRNG key.
        *widths: Last-axis size of each input.

    Returns:
        Its parameters.
    """
    inputs = [jnp.zeros((1, width)) for width in widths]
    variables: Params = net.init(key, *inputs)
    params: Params = variables["params"]
    return params


def init_ensemble(net: MLP, key: jax.Array, size: int, *widths: int) -> Params:
    """Draws parameters of independent copies, stacked on a leading axis ``E``."""
    keys = jax.random.split(key, size)
    return jax.vmap(lambda one: init(net, one, *widths))(keys)


def apply(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates one network.

    Args:
        net: The network.
        params: Of it; or of G copies, stacked on a leading axis, for as many groups of
            rows: what one device holds of a batch, evaluated with what it holds of
            them.
        *inputs: ``f32[..., B, D_j]``; with one set of parameters B is not needed.

    Returns:
        ``f32[..., B, outputs]``.
    """
    evaluate = jax.checkpoint(net.apply) if net.rematerialise else net.apply
    kernel = params["output"]["kernel"]
    if kernel.ndim == 2:
        one: jax.Array = evaluate({"params": params}, *inputs)
        return one
    grouped = [x.reshape(*x.shape[:-2], len(kernel), -1, x.shape[-1]) for x in inputs]
    out: jax.Array = jax.vmap(
        lambda own, *rows: evaluate({"params": own}, *rows),
        in_axes=(0, *[-3] * len(grouped)),
        out_axes=-3,
    )(params, *grouped)
    return out.reshape(*out.shape[:-3], -1, out.shape[-1])


def apply_scalar(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates a network of one output, without the last axis: ``f32[...]``."""
    return apply(net, params, *inputs)[..., 0]


def apply_ensemble(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates copies of a scalar network on the same inputs: ``f32[E, ...]``."""
    return jax.vmap(lambda one: apply_scalar(net, one, *inputs))(params)


def cast_hidden(params: Params, precision: Precision) -> Params:
    """Casts hidden layers to what they compute with: once, for many evaluations.

    Args:
        params: Of any number of ``MLP``, nested.
        precision: Theirs.

    Returns:
        Parameters that give the very same results.
    """
    if precision == "float32":
        return params

    def cast(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        layer = path[-2].key
        hidden = layer.startswith("hidden_") and layer != "hidden_0"
        return leaf.astype(jnp.bfloat16) if hidden else leaf

    cast_params: Params = jax.tree_util.tree_map_with_path(cast, params)
    return cast_params


def count_parameters(params: Params) -> int:
    """Number of scalar parameters of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
