"""Networks: their layers, and how their parameters are drawn."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.agents import baseline_cases as cases
from trainer.nn import networks
from trainer.nn.networks import MLP, Params


def test_the_network_is_dense_gelu_norm() -> None:
    net = MLP(3, width=8, depth=2, activation="gelu")
    shapes = jax.eval_shape(lambda key: networks.init(net, key, 4), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    inputs = rng.normal(size=(5, 4)).astype(np.float32)
    got = networks.apply(net, params, jnp.asarray(inputs))
    np.testing.assert_allclose(got, cases.mlp(params, inputs), rtol=1e-4, atol=1e-4)


def test_copies_see_the_rows_of_their_group_alone() -> None:
    net = MLP(3, width=8, depth=2)
    params = networks.init(net, jax.random.key(0), 4, 1)
    x, time = (
        jax.random.normal(jax.random.key(n), (2, 6, size))
        for n, size in enumerate((4, 1))
    )

    def rows(params: Params) -> jax.Array:
        return networks.apply(net, params, x, time)

    def summed(params: Params) -> jax.Array:
        # Each row weighs something else.
        return jnp.square(rows(params) * jnp.arange(1.0, 7)[None, :, None]).sum()

    copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
    np.testing.assert_allclose(rows(copies), rows(params), rtol=1e-5, atol=1e-6)
    whole, apart = jax.jit(jax.grad(summed))(params), jax.jit(jax.grad(summed))(copies)
    bias = apart["output"]["bias"]
    assert len({float(each) for each in bias[:, 0]}) == 3
    jax.tree.map(
        lambda one, three: np.testing.assert_allclose(
            three.sum(axis=0), one, rtol=1e-4, atol=1e-4
        ),
        whole,
        apart,
    )


def test_kernels_are_drawn_xavier_uniform() -> None:
    net = MLP(2, width=64, depth=1, activation="gelu")
    params = cases.run(lambda key: networks.init(net, key, 32), jax.random.key(0))
    # sqrt(6 / (32 + 64)) = 0.25
    kernel = np.abs(params["hidden_0"]["kernel"])
    assert 0.24 < kernel.max() <= 0.25
    # Half the bound on average, as a uniform distribution has it.
    assert kernel.mean() == pytest.approx(0.125, rel=0.05)
    assert (params["hidden_0"]["bias"] == 0).all()


def test_layer_norm_is_flax_s_under_every_transformation() -> None:
    net = MLP(3, width=8, depth=2)
    rng = np.random.default_rng(0)
    params = networks.init(net, jax.random.key(0), 4)
    params = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype("f"), params)
    inputs = jnp.asarray(rng.normal(size=(6, 5, 4)).astype(np.float32))

    def reference(params: Params, inputs: jax.Array) -> jax.Array:
        x = inputs
        for layer in range(2):
            dense, norm = params[f"hidden_{layer}"], params[f"norm_{layer}"]
            x = jnp.tanh(nn.Dense(8).apply({"params": dense}, x))
            x = nn.LayerNorm(use_fast_variance=False).apply({"params": norm}, x)
        return nn.Dense(3).apply({"params": params["output"]}, x)

    def slopes(apply: Callable[..., jax.Array]) -> Callable[..., Any]:
        # Mapped over, within a loop, and differentiated, all at once.
        def loss(params: Params) -> jax.Array:
            def step(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
                return total + jax.vmap(lambda x: apply(params, x[None]))(rows), None

            total, _ = jax.lax.scan(step, jnp.zeros((5, 1, 3)), inputs)
            return jnp.square(total).sum()

        return jax.jit(jax.value_and_grad(loss))

    ours, theirs = (
        slopes(apply)(params) for apply in (partial(networks.apply, net), reference)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_layer_norm_on_tpus_takes_both_means_in_one_pass() -> None:
    norm = networks.LayerNorm()
    x = jax.random.normal(jax.random.key(0), (5, 8)) + 1
    params = norm.init(jax.random.key(1), x)
    exported = jax.export.export(jax.jit(norm.apply), platforms=("cpu", "tpu"))(
        params, x
    )
    # One program for both, which takes the way of the platform that it runs on.
    np.testing.assert_allclose(exported.call(params, x), norm.apply(params, x))

    def takes_one_pass(norm: nn.Module, platform: str) -> bool:
        traced = jax.jit(lambda params, x: norm.apply(params, x)).trace(params, x)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        # A difference of two means may be below 0 by rounding, and is kept above.
        return "stablehlo.maximum" in text

    assert takes_one_pass(nn.LayerNorm(use_fast_variance=True), "cpu")
    assert not takes_one_pass(nn.LayerNorm(use_fast_variance=False), "tpu")
    assert takes_one_pass(norm, "tpu")
    assert not takes_one_pass(norm, "cpu")
    assert not takes_one_pass(norm, "cuda")
