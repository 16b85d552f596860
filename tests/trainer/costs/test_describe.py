"""What a configuration comes to: by hand, by XLA, and as the command prints it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trainer import config
from trainer.agents import AGENTS, make_agent
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.cli import main
from trainer.costs import flops
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.describe import Description, describe, read_networks, shape_facts
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn import networks
from trainer.nn.networks import MLP
from trainer.step.update import make_update

S, A, B = 6, 3, 1024
# Nothing of this size is ever computed. Rows and units are many, so that products
# outweigh what XLA counts besides: some tens of operations for each unit and parameter.
LARGE = VASTConfig(width=2048, depth=2, flow_steps=1, max_horizon=6)
# Seen: 0.6 %. The least call of an update is 2.8 % of it, and would be missed.
UNCOUNTED = 0.01


def described(dataset: str, observation_dim: int) -> Description:
    loaded = config.load(Path("configs") / f"{dataset}.toml", task=1)
    return describe(loaded, observation_dim=observation_dim, action_dim=5)


def test_networks_of_vast_are_those_of_the_paper() -> None:
    description = described("cube-double-play", 37)
    hidden = (512,) * 4
    assert [
        (network.name, network.role, network.chain, network.copies)
        for network in description.networks
    ] == [
        # s, a
        ("critic", "optimised", (42, *hidden, 1), 2),
        # s, goal, x, time
        ("exec", "optimised", (80, *hidden, 5), 1),
        # s, s+, k / K
        ("segment", "optimised", (75, *hidden, 1), 1),
        # s, x = (k / K, s_k), time
        ("stitch", "optimised", (76, *hidden, 38), 1),
        ("value", "optimised", (37, *hidden, 1), 1),
        ("critic", "target", (42, *hidden, 1), 2),
    ]
    # Weights and biases, and LayerNorm's scale and shift.
    value = description.networks[4]
    assert value.parameters == (
        37 * 512 + 3 * 512 * 512 + 512 + 4 * 512 + 1 + 4 * 2 * 512
    )


@pytest.mark.parametrize(
    ("dataset", "observation_dim", "total"),
    [("cube-double-play", 37, 6_588_977), ("puzzle-4x4-play", 83, 6_871_647)],
)
def test_parameters_with_targets_are_about_the_papers(
    dataset: str, observation_dim: int, total: int
) -> None:
    # Appendix, "Total parameters required", gives about 6.9 M.
    description = described(dataset, observation_dim)
    assert description.parameters() == total
    optimised = description.parameters("optimised")
    assert optimised + description.parameters("target") == total
    # Adam keeps two moments of each; float32, and the counts of three steps.
    counters = description.state_bytes - 4 * (total + 2 * optimised)
    assert 0 < counters <= 16


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agents_parameters_are_accounted_for(name: str) -> None:
    agent = make_agent(AGENTS[name].config(), shape_facts(S, A))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    found = read_networks(state)
    assert sum(network.parameters for network in found) == (
        networks.count_parameters(state.params)
        + networks.count_parameters(state.targets)
    )
    assert all(network.chain for network in found if network.name == "critic")


def test_layers_are_in_order_beyond_ten() -> None:
    deep = dataclasses.replace(LARGE, width=8, depth=12)
    state = jax.eval_shape(VAST(deep, shape_facts(S, A)).init, jax.random.key(0))
    (value,) = (network for network in read_networks(state) if network.name == "value")
    assert value.chain == (S, *(8,) * 12, 1)


def test_operations_by_hand() -> None:
    layers = ((3, 4), (4, 2))
    # 2 * (3 * 4 + 4 * 2)
    assert flops.forward_flops(layers) == 40
    # Of the parameters 40, of the second layer's inputs 2 * 4 * 2.
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
    """What XLA counts, before it optimises."""
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
    agent = VAST(agent_config, shape_facts(S, A))
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
        flops.vast_calls(agent_config, B),
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
    # Nine more steps: one sub-goal, and a goal and an action at each of two states.
    W = LARGE.width
    stitch = 2 * W * ((1 + 2 * S + 1) + W + (1 + S))
    execute = 2 * W * ((2 * S + A + 1) + W + A)
    assert counted_ten - counted == 9 * B * (3 * stitch + 2 * execute)


def test_bounds_on_a_device() -> None:
    # 1 ms of products in bfloat16 and 0.5 ms of traffic an update.
    h100 = ACCELERATORS["h100"]
    found = flops.bounds(int(989.5e9), int(3.35e12 * 0.25e-3), h100, updates=3_600_000)
    by_precision = {bound.precision: bound for bound in found}
    half = by_precision["bfloat16"]
    assert half.compute_hours == pytest.approx(1)
    assert half.memory_hours == pytest.approx(0.5)
    assert (half.rules, half.hours) == ("compute", half.compute_hours)
    assert by_precision["float32"].compute_hours == pytest.approx(989.5 / 67)
    (narrow, *_) = flops.bounds(1, 10**9, h100, updates=1)
    assert (narrow.rules, narrow.hours) == ("memory", narrow.memory_hours)


def test_seeds_multiply_the_cost_and_not_the_networks() -> None:
    loaded = config.load("configs/demo.toml", task=1)
    eight = dataclasses.replace(
        loaded, trainer=dataclasses.replace(loaded.trainer, seeds=8)
    )
    one, many = (
        describe(each, observation_dim=28, action_dim=5) for each in (loaded, eight)
    )
    assert one.networks == many.networks
    assert one.cost
    assert many.cost
    assert many.cost.flops_per_update == 8 * one.cost.flops_per_update
    assert many.cost.bounds[0].memory_hours == pytest.approx(
        8 * one.cost.bounds[0].memory_hours
    )


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["describe", "configs/puzzle-4x4-play.toml", "--task", "2", "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["config"]["agent"]["temperature"] == 0.05
    assert printed["parameters"]["total"] == 6_871_647
    assert printed["networks"][0]["chain"] == [88, 512, 512, 512, 512, 1]
    cost = printed["cost"]
    assert sum(call["times"] for call in cost["calls"]) == 38
    assert [bound["precision"] for bound in cost["hours_per_million_updates"]] == [
        *("bfloat16", "tensorfloat32", "float32")
    ]


def test_the_command_prints_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["describe", "configs/cube-double-play.toml"]) == 0
    printed = capsys.readouterr().out
    assert "6.59 M in all" in printed
    assert "1,000,000 transitions in 1,000 episodes of 1,000" in printed
    assert "each transition starts 512 windows" in printed
    assert "512 512 512 512" in printed
    assert "max_horizon = 25" in printed
    assert "critic (target)" in printed
    assert "NVIDIA H100 data sheet" in printed


def test_data_of_your_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('dataset = "my-robot"\n[agent]\nwidth = 8\nname = "vast"\n')
    assert main(["describe", str(path)]) == 2
    said = capsys.readouterr().err
    assert "unknown data set 'my-robot'" in said
    assert "give --observation-dim and --action-dim" in said
    dims = ["--observation-dim", "12", "--action-dim", "7"]
    assert main(["describe", str(path), *dims, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["networks"][0]["chain"] == [19, 8, 8, 8, 8, 1]
