"""The multilayer perceptron that every agent is made of, and ensembles of it.

Parameters are nested dicts of arrays; nothing here knows what a network is for.

Dimensions: B batch, D input, E ensemble, G groups of rows.
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
    # Xavier uniform, as in the code bases that the methods come from.
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform")


class LayerNorm(nn.Module):
    """Flax's LayerNorm over the last axis, with its variance computed by platform.

    Attributes:
        dtype: Dtype of the result; None for that of the input. Statistics are float32.
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

        # For a GPU, XLA makes one kernel of the variance about the mean, and three of
        # the difference of two means. A TPU would read the row twice for the former,
        # one reduction after the other; the latter takes one pass, and a whole update
        # of VAST 1.7 times fewer cycles on a v5e (tests/benchmarks/README.md). The
        # program holds both, since it may be lowered for another platform.
        out: jax.Array = jax.lax.platform_dependent(
            params,
            x,
            tpu=partial(normalise, fast=True),
            default=partial(normalise, fast=False),
        )
        return out


class MLP(nn.Module):
    """A multilayer perceptron: Dense, activation and LayerNorm, then a linear output.

    Attributes:
        outputs: Width of the output.
        width: Width of every hidden layer.
        depth: Number of hidden layers.
        activation: ``"tanh"`` or ``"gelu"`` (its tanh approximation).
        layer_norm: Whether LayerNorm follows each activation.
        output_scale: Scale of the variance that the output's kernel is drawn with.
        precision: Precision of the hidden layers' products and activations. Parameters,
            their gradients, LayerNorm's statistics, the first layer's product and the
            output stay in float32.
        rematerialise: Whether a gradient evaluates the network again from its inputs
            instead of keeping the outputs of its layers. Of a sampled flow, memory then
            holds its points and the layers of one evaluation at a time.
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
        # dtype=None lets Flax promote to the wider of parameters and input, which is
        # float32, so that the output layer returns to float32 after bfloat16.
        dtype = jnp.bfloat16 if self.precision == "bfloat16" else None
        # The first product stays in float32: raw states reach 50, where bfloat16 has
        # steps of a quarter, and it is the smallest product but the output's.
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
    """Draws the parameters of one network.

    Args:
        net: The network.
        key: PRNG key.
        *widths: Width of each input.

    Returns:
        The parameters.
    """
    inputs = [jnp.zeros((1, width)) for width in widths]
    variables: Params = net.init(key, *inputs)
    params: Params = variables["params"]
    return params


def init_ensemble(net: MLP, key: jax.Array, size: int, *widths: int) -> Params:
    """Draws the parameters of an ensemble of independent copies of a network.

    Args:
        net: The network.
        key: PRNG key.
        size: Copies E.
        *widths: Width of each input.

    Returns:
        The parameters, with a leading axis ``E``.
    """
    member_keys = jax.random.split(key, size)
    return jax.vmap(lambda member_key: init(net, member_key, *widths))(member_keys)


def apply(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates one network.

    Args:
        net: The network.
        params: Parameters of the network, or of G equal copies of it, stacked on a
            leading axis. Each copy then evaluates its own group of ``B / G``
            consecutive rows.
        *inputs: Inputs ``f32[..., B, D_j]``; the axis B is optional with one set of
            parameters.

    Returns:
        ``f32[..., B, outputs]``.
    """
    # Copies: on a mesh with `data` and `fsdp`, every device is given a copy of its own
    # for the rows it holds. The gradient of a copy is then scattered before it is
    # summed over devices, where the gradient of shared parameters is summed whole.
    evaluate = jax.checkpoint(net.apply) if net.rematerialise else net.apply
    kernel = params["output"]["kernel"]
    if kernel.ndim == 2:
        outputs: jax.Array = evaluate({"params": params}, *inputs)
        return outputs
    grouped = [x.reshape(*x.shape[:-2], len(kernel), -1, x.shape[-1]) for x in inputs]
    out: jax.Array = jax.vmap(
        lambda own, *rows: evaluate({"params": own}, *rows),
        in_axes=(0, *[-3] * len(grouped)),
        out_axes=-3,
    )(params, *grouped)
    return out.reshape(*out.shape[:-3], -1, out.shape[-1])


def apply_scalar(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates a network of one output and drops that axis: ``f32[...]``."""
    return apply(net, params, *inputs)[..., 0]


def apply_ensemble(net: MLP, params: Params, *inputs: jax.Array) -> jax.Array:
    """Evaluates an ensemble of a scalar network on the same inputs: ``f32[E, ...]``."""
    return jax.vmap(lambda member: apply_scalar(net, member, *inputs))(params)


def cast_hidden(params: Params, precision: Precision) -> Params:
    """Casts hidden layers to the precision they compute in.

    Args:
        params: Parameters of any number of ``MLP``, nested.
        precision: Precision of these networks.

    Returns:
        Parameters that give bitwise the same results.
    """
    # Once an update: Flax casts in every evaluation, of which a sampled flow has ten.
    if precision == "float32":
        return params

    def cast(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        layer = path[-2].key
        # The first hidden layer computes in float32, see `MLP`.
        hidden = layer.startswith("hidden_") and layer != "hidden_0"
        return leaf.astype(jnp.bfloat16) if hidden else leaf

    cast_params: Params = jax.tree_util.tree_map_with_path(cast, params)
    return cast_params
