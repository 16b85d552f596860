"""Operations of an update: by hand, by brute force over its program, and by XLA."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.costs import flops
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.network_shapes import optimised_layers, read_networks
from trainer.costs.random_data import make_shape_facts
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn import networks
from trainer.nn.networks import MLP
from trainer.step.update import make_update

S, A, B = 6, 3, 1024
# Nothing of this size is ever computed. Rows and units are many, so that products
# outweigh what XLA counts besides: some tens of operations for each unit and parameter.
LARGE = VASTConfig(width=2048, depth=2, flow_steps=1, max_horizon=6)
# The counts differ by 0.6 %. The smallest call of an update has 2.8 % of it, so that a
# missing call would be noticed.
UNCOUNTED = 0.01


def multiplied(jaxpr: Any) -> int:
    """Operations of all matrix products of a program, loops unrolled."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * multiplied(inner)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval
            inner_size = 1
            for axis in contracted:
                inner_size *= left.shape[axis]
            total += 2 * equation.outvars[0].aval.size * inner_size
    return total


def batch_shapes() -> HorizonBatch:
    widths = {
        "actions": (B, A),
        **dict.fromkeys(
            ("observations", "next_observations", "states_k", "states_i", "goals"),
            (B, S),
        ),
    }
    return HorizonBatch(
        **{
            name: jax.ShapeDtypeStruct(widths.get(name, (B,)), jnp.float32)
            for name in HorizonBatch._fields
        }
    )


@pytest.mark.parametrize(
    ("success", "windows"),
    [("ends", "drawn"), ("ends", "recorded"), ("mixed", "drawn")],
)
@pytest.mark.parametrize("depth", [1, 3])
def test_an_update_holds_exactly_these_products(
    depth: int, success: Any, windows: Any
) -> None:
    """Counted in the traced program, whose loops are unrolled: not one is missed."""
    config = VASTConfig(
        width=64, depth=depth, flow_steps=4, success=success, value_windows=windows
    )
    agent = VAST(config, make_shape_facts(S, A))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    traced = jax.make_jaxpr(jax.grad(agent.total_loss, has_aux=True))(
        state.params, state.targets, batch_shapes(), jax.random.key(0)
    )
    counted = flops.update_flops(
        flops.list_vast_calls(config, B), optimised_layers(read_networks(state))
    )
    assert counted == multiplied(traced.jaxpr)


def test_operations_by_hand() -> None:
    layers = ((3, 4), (4, 2))
    # 2 * (3 * 4 + 4 * 2)
    assert flops.forward_flops(layers) == 40
    # Gradients of the parameters take 40, of the second layer's inputs 2 * 4 * 2.
    assert flops.backward_flops(layers) == 56
    call = flops.Call("net", 5, "test", times=10)
    assert flops.call_flops(call, layers, copies=2) == 40 * 5 * 10 * 2
    trained = dataclasses.replace(call, times=1, trained=True)
    assert flops.call_flops(trained, layers, copies=1) == (40 + 56) * 5
    shapes = {"net": (layers, 1), "other": (layers[:1], 3)}
    assert flops.update_flops([trained, flops.Call("other", 7, "test")], shapes) == (
        480 + 24 * 7 * 3
    )


def xla_flops(function: Any, *arguments: Any) -> float:
    """Counts the operations with XLA, before it optimises."""
    analysis = jax.jit(function).lower(*arguments).cost_analysis()
    return float(analysis["flops"])


@pytest.mark.parametrize("trained", [False, True])
def test_one_network_is_counted_as_xla_does(trained: bool) -> None:
    net = MLP(4, LARGE.width, depth=2)
    params = jax.eval_shape(lambda key: networks.init(net, key, S), jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((B, S), jnp.float32)

    def loss(params: Any, inputs: jax.Array) -> jax.Array:
        return jnp.square(networks.apply(net, params, inputs)).sum()

    call = flops.Call("net", B, "test", trained=trained)
    layers = ((S, LARGE.width), (LARGE.width, LARGE.width), (LARGE.width, 4))
    counted = flops.call_flops(call, layers, copies=1)
    by_xla = xla_flops(jax.grad(loss) if trained else loss, params, inputs)
    assert counted < by_xla < counted * (1 + UNCOUNTED)


def update_counts(agent_config: VASTConfig) -> tuple[int, float]:
    """Operations of one update, as counted here and as XLA does."""
    agent = VAST(agent_config, make_shape_facts(S, A))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    f32 = jnp.float32
    widths = {
        "actions": (B, A),
        **dict.fromkeys(
            ("observations", "next_observations", "states_k", "states_i", "goals"),
            (B, S),
        ),
    }
    batch = HorizonBatch(
        **{
            name: jax.ShapeDtypeStruct(widths.get(name, (B,)), f32)
            for name in HorizonBatch._fields
        }
    )
    counted = flops.update_flops(
        flops.list_vast_calls(agent_config, B),
        {
            network.name: (network.layers, network.copies)
            for network in read_networks(state)
            if network.role == "optimised"
        },
    )
    return counted, xla_flops(make_update(agent), state, batch, jax.random.key(0))


def test_an_update_is_counted_as_xla_does() -> None:
    counted, by_xla = update_counts(LARGE)
    assert counted < by_xla < counted * (1 + UNCOUNTED)
    # XLA counts a loop's body once, so it sees no difference in more flow steps: with
    # one step the counts can be compared, and with ten only ours is right.
    counted_ten, by_xla_ten = update_counts(dataclasses.replace(LARGE, flow_steps=10))
    assert by_xla_ten == pytest.approx(by_xla, rel=1e-3)
    # Nine more steps sample a sub-goal, and a goal and an action at each of two states.
    W = LARGE.width
    stitch = 2 * W * ((1 + 2 * S + 1) + W + (1 + S))
    execute = 2 * W * ((2 * S + A + 1) + W + A)
    assert counted_ten - counted == 9 * B * (3 * stitch + 2 * execute)


def test_bounds_on_a_device() -> None:
    # 1 ms of products in bfloat16 and 0.5 ms of traffic an update.
    h100 = ACCELERATORS["h100"]
    found = flops.compute_bounds(
        int(989.5e9), int(3.35e12 * 0.25e-3), h100, updates=3_600_000
    )
    by_precision = {bound.precision: bound for bound in found}
    half = by_precision["bfloat16"]
    assert half.compute_hours == pytest.approx(1)
    assert half.memory_hours == pytest.approx(0.5)
    assert (half.rules, half.hours) == ("compute", half.compute_hours)
    assert by_precision["float32"].compute_hours == pytest.approx(989.5 / 67)
    (narrow, *_) = flops.compute_bounds(1, 10**9, h100, updates=1)
    assert (narrow.rules, narrow.hours) == ("memory", narrow.memory_hours)
