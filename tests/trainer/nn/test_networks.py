"""Networks: their layers, and how their parameters are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.agents import baseline_cases as cases
from trainer.nn import networks
from trainer.nn.networks import MLP


def test_the_network_is_dense_gelu_norm() -> None:
    net = MLP(3, width=8, depth=2, activation="gelu")
    shapes = jax.eval_shape(lambda key: networks.init(net, key, 4), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    inputs = rng.normal(size=(5, 4)).astype(np.float32)
    got = networks.apply(net, params, jnp.asarray(inputs))
    np.testing.assert_allclose(got, cases.mlp(params, inputs), rtol=1e-4, atol=1e-4)


def test_kernels_are_drawn_xavier_uniform() -> None:
    net = MLP(2, width=64, depth=1, activation="gelu")
    params = cases.run(lambda key: networks.init(net, key, 32), jax.random.key(0))
    # sqrt(6 / (32 + 64)) = 0.25
    kernel = np.abs(params["hidden_0"]["kernel"])
    assert 0.24 < kernel.max() <= 0.25
    # Half the bound on average, as a uniform distribution has it.
    assert kernel.mean() == pytest.approx(0.125, rel=0.05)
    assert (params["hidden_0"]["bias"] == 0).all()
