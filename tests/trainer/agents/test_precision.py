"""Products in bfloat16: the same parameters, and losses near those of float32."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stores import make_facts, make_table, numbers_of
from tests.trainer.agents.baseline_cases import run
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn import flow, networks
from trainer.nn.networks import MLP

TABLE = make_table([30, 40], discount=0.9, S=4, A=2)
SMALL = VASTConfig(discount=0.9, max_horizon=5, width=16, depth=2, flow_steps=2)
HALF = dataclasses.replace(SMALL, precision="bfloat16")
# bfloat16 keeps 8 bits: an error of up to 0.2 % for each rounding, and some tens of
# them from input to output, most of which average out. Seen: up to 0.73 %.
TOLERANCE = 0.02


def relative(one: Any, other: Any) -> float:
    """Norm of the difference of two trees, relative to the second's."""
    flat = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in jax.device_get((one, other))
    ]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]))


def batch() -> HorizonBatch:
    sampler = VAST(SMALL, make_facts(TABLE)).sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, 32))
    gathered: HorizonBatch = sampler.gather(TABLE.observations, TABLE.actions, index)
    return gathered


@pytest.fixture(scope="module")
def evaluated() -> dict[str, Any]:
    """State, gradient and figures of one agent, in each precision."""
    found = {}
    for config in (SMALL, HALF):
        agent = VAST(config, make_facts(TABLE))
        state = run(agent.init, jax.random.key(0))
        gradient, metrics = run(
            jax.grad(agent.total_loss, has_aux=True),
            *(state.params, state.targets, batch(), jax.random.key(1)),
        )
        found[config.precision] = (state, gradient, metrics)
    return found


def test_parameters_are_the_same_and_all_of_them_float32(
    evaluated: dict[str, Any],
) -> None:
    single, half = evaluated["float32"], evaluated["bfloat16"]
    assert jax.tree.structure(single[0]) == jax.tree.structure(half[0])
    jax.tree.map(np.testing.assert_array_equal, single[0], half[0])
    for tree in (half[0].params, half[0].opt_state, half[1], half[2]):
        kinds = {leaf.dtype for leaf in jax.tree.leaves(tree)}
        assert kinds <= {jnp.dtype("float32"), jnp.dtype("int32")}


def test_losses_and_gradients_are_near(evaluated: dict[str, Any]) -> None:
    _, gradient, metrics = evaluated["float32"]
    _, gradient_half, metrics_half = evaluated["bfloat16"]
    losses = [name for name in metrics.mean if name.endswith("loss")]
    assert len(losses) == 6
    for name in losses:
        assert float(metrics.mean[name]) != float(metrics_half.mean[name]), name
        assert float(metrics_half.mean[name]) == pytest.approx(
            float(metrics.mean[name]), rel=TOLERANCE
        ), name
    for name in gradient:
        assert 0 < relative(gradient_half[name], gradient[name]) < TOLERANCE, name


@pytest.mark.parametrize(
    ("activation", "layer_norm"), [("tanh", True), ("gelu", False)]
)
def test_outputs_and_flows_are_near(activation: Any, layer_norm: bool) -> None:
    half = MLP(
        3, 32, 3, activation=activation, layer_norm=layer_norm, precision="bfloat16"
    )
    single = half.clone(precision="float32")
    params = run(lambda key: networks.init(half, key, 3, 1), jax.random.key(0))
    noise = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)

    def evaluate(net: MLP, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        def field(x: jax.Array, time: jax.Array) -> jax.Array:
            return networks.apply(net, params, x, time)

        return field(noise, noise[:, :1]), flow.integrate(field, noise, steps=5)

    rounded, exact = (
        run(functools.partial(evaluate, net), noise) for net in (half, single)
    )
    for one, other in zip(rounded, exact, strict=True):
        assert one.dtype == jnp.float32
        assert 0 < relative(one, other) < TOLERANCE


def test_inputs_are_not_rounded() -> None:
    # 50 and 50.1 are one number in bfloat16: a policy must tell them apart.
    net = MLP(1, 32, 2, layer_norm=False, precision="bfloat16")
    params = run(lambda key: networks.init(net, key, 1), jax.random.key(0))
    params["hidden_0"]["kernel"] *= 10.0
    params["hidden_0"]["bias"] -= 50 * params["hidden_0"]["kernel"][0]
    assert jnp.bfloat16(50.0) == jnp.bfloat16(50.1)
    states = np.array([[50.0], [50.1]], np.float32)
    near, far = run(functools.partial(networks.apply, net), params, states)
    assert abs(float(near[0] - far[0])) > 0.01


def test_products_are_in_bfloat16() -> None:
    net = MLP(1, 32, 3, precision="bfloat16")
    params = jax.eval_shape(lambda key: networks.init(net, key, 2), jax.random.key(0))
    lowered = jax.jit(lambda p, x: networks.apply(net, p, x)).lower(
        params, jnp.zeros((8, 2))
    )
    products = [
        line for line in lowered.as_text().splitlines() if "dot_general" in line
    ]
    assert ["bf16" in line for line in products] == [False, True, True, False]


def test_layers_cast_beforehand_give_the_very_same() -> None:
    net = MLP(3, width=32, depth=3, precision="bfloat16")
    params = run(lambda key: networks.init(net, key, 5), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (16, 5))
    cast = networks.cast_hidden({"net": params}, "bfloat16")["net"]
    halved = [
        "/".join(key.key for key in path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(cast)
        if leaf.dtype == jnp.bfloat16
    ]
    assert halved == [
        f"hidden_{layer}/{name}" for layer in (1, 2) for name in ("bias", "kernel")
    ]
    apply = functools.partial(run, functools.partial(networks.apply, net))
    np.testing.assert_array_equal(apply(cast, x), apply(params, x))
    assert networks.cast_hidden(params, "float32") is params
