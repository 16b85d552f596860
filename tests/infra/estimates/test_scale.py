import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from infra.cli import main
from infra.estimates import scale
from infra.estimates.measured import MEASURED, Measured, UpdateRate, find_update_rate
from infra.estimates.scale import Shape
from trainer.agents import make_agent
from trainer.agents.base import DataFacts
from trainer.agents.vast_config import VASTConfig
from trainer.costs.accelerators import ACCELERATORS
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn.networks import count_parameters

S, A, B = 7, 3, 32
SHAPE = Shape(
    width=64, batch_size=B, depth=3, observation_dim=S, action_dim=A, flow_steps=4
)
CHIP = dataclasses.replace(
    ACCELERATORS["v5e"],
    peaks={"bfloat16": 1e12},
    link_bytes_per_s=2e9,
    memory_bytes=10**9,
)


@pytest.fixture(scope="module")
def agent():
    facts = DataFacts(
        observation_dim=S,
        action_dim=A,
        observation_mean=(0.0,) * S,
        observation_std=(1.0,) * S,
        reward_min=-1.0,
        reward_max=0.0,
        return_max=0.0,
    )
    config = VASTConfig(width=SHAPE.width, depth=SHAPE.depth, flow_steps=4)
    return make_agent(config, facts)


@pytest.fixture(scope="module")
def state(agent):
    return jax.eval_shape(agent.init, jax.random.key(0))


def test_parameters_are_those_of_the_agent(state):
    counted = {name: count_parameters(tree) for name, tree in state.params.items()}
    assert counted == {
        each.name: each.parameters(SHAPE) for each in scale.networks(SHAPE)
    }
    assert scale.parameters(SHAPE) == sum(counted.values())


def test_the_state_is_as_large_as_the_agents(state):
    leaves = jax.tree.leaves((state.params, state.targets, state.opt_state))
    counters = sum(leaf.size for leaf in leaves if leaf.ndim == 0)
    assert 1 <= counters <= 4
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert scale.state_bytes(SHAPE) == total - 4 * counters


def test_flops_are_those_of_the_matrix_products_in_an_update(agent, state):
    states = {"observations", "next_observations", "states_k", "states_i", "goals"}
    batch = HorizonBatch(
        **{
            name: jnp.zeros(
                {"actions": (B, A)}.get(name, (B, S) if name in states else B)
            )
            for name in HorizonBatch._fields
        }
    )
    gradient = jax.grad(agent.total_loss, has_aux=True)
    traced = jax.make_jaxpr(gradient)(
        state.params, state.targets, batch, jax.random.key(0)
    )
    counted = _multiplied(traced.jaxpr)
    # The first layer of a network has no gradient for its input, which the formula
    # counts: at widths like this a few percent.
    assert counted == pytest.approx(scale.update_flops(SHAPE), rel=0.1)
    assert counted <= scale.update_flops(SHAPE)


def _multiplied(jaxpr) -> int:
    """Operations of all matrix products of a program, loops unrolled."""
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * _multiplied(inner)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval
            inner_size = 1
            for axis in contracted:
                inner_size *= left.shape[axis]
            total += 2 * equation.outvars[0].aval.size * inner_size
    return total


def test_a_network_by_hand():
    # Two layers of 3 after 2 inputs: 2*3 + 3*3 + 3*1 = 18 entries; biases and
    # LayerNorm 2 * 3*3, and one bias of the output: 37. Two copies.
    network = scale.Network("x", 2, 1, 2, trained=1, read=0)
    shape = Shape(width=3, depth=2)
    assert network.multiplied(shape) == 36
    assert network.parameters(shape) == 74


def test_memory_and_traffic_by_hand():
    one = scale.train_scale(SHAPE, CHIP, chips=1)
    gradient = 4 * scale.parameters(SHAPE)
    held = scale.state_bytes(SHAPE) + gradient
    # 8 B rows (value 1, two critics 1 each, segment 3, both flows 1 each), 3 arrays
    # of 4 bytes for each of 3 layers of 64.
    kept = 12 * 64 * 3 * 8 * B
    assert one.whole_bytes == one.split_bytes == held + kept
    assert one.all_reduce_bytes == one.split_link_bytes == 0
    assert not one.link_bound
    assert one.least_s == pytest.approx(scale.update_flops(SHAPE) / 1e12)
    assert one.input_bytes == B * 4 * (5 * S + A + 7)
    four = scale.train_scale(SHAPE, CHIP, chips=4)
    assert four.whole_bytes == held + kept // 4
    assert four.split_bytes == pytest.approx(held / 4 + kept / 4, abs=1)
    # A ring sends each of 4 quarters on 3 times, twice; three times if split.
    assert four.all_reduce_bytes == gradient * 6 // 4
    assert four.split_link_bytes == gradient * 9 // 4
    assert four.link_bound
    assert four.least_s == pytest.approx(four.all_reduce_bytes / 1e9)


def test_data_by_hand():
    measured = Measured(
        shard_rows_per_s=1000.0,
        shard_cores=2,
        collect_rows_per_s=10.0,
        npz_share=0.5,
        store_share=2.0,
        row_floats=100,
        part_rows=1000,
    )
    size = scale.data_scale(measured, transitions=7200, workers=20, cores=4)
    # A row is 400 bytes, 200 in the npz and 400 in the store.
    assert (size.npz_bytes, size.store_bytes) == (1_440_000, 2_880_000)
    # 20 machines of 4 cores collect 800 rows/s: 9 s.
    assert size.collect_h == pytest.approx(9 / 3600)
    assert size.collect_core_h == pytest.approx(0.2)
    # 8 parts keep 8 of 20 machines busy, 2000 rows/s each.
    assert size.busy_workers == 8
    assert size.shard_h == pytest.approx(7200 / 16_000 / 3600)
    assert size.write_bytes_per_s == pytest.approx(16_000 * 400)
    assert size.shard_core_h == pytest.approx(14.4 / 3600)


def test_a_rate_is_that_of_exactly_one_setting():
    rate = UpdateRate("h100", 8, 512, 1024, 8, 250.0, "somewhere")
    measured = dataclasses.replace(MEASURED, update_rates=(rate,))
    setting = {"chips": 8, "width": 512, "batch_size": 1024, "seeds": 8}
    assert find_update_rate(measured, platform="h100", **setting) is rate
    # Of this machine's cores nobody was asked.
    assert find_update_rate(measured, platform="h100", **setting | {"chips": None})
    for other in (*({key: 16} for key in setting), {"platform": "v5e"}):
        asked = {"platform": "h100", **setting, **other}
        assert find_update_rate(measured, **asked) is None


def test_the_tables_hold_own_numbers(capsys):
    arguments = (
        "scale --transitions 5000000 --workers 3 --widths 512 8192 --chips 4 "
        "--accelerator v5e --batch-size 512"
    )
    assert main(arguments.split()) == 0
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("|")]
    # Two headers with their rules, one row of data, two of training.
    assert len(rows) == 7
    assert "5,000,000" in rows[2]
    assert rows[5].split("|")[1].strip() == "512"
    # 1.2 billion parameters with Adam do not fit 16 GB.
    assert " !" in rows[6]
    assert " !" not in rows[5]
    for wrong in (
        "scale --accelerator h1",
        "scale --chips 0",
        "scale --updates-per-s 0",
    ):
        assert main(wrong.split()) == 2


def test_the_readme_holds_what_is_printed(capsys):
    assert main(["scale"]) == 0
    output = capsys.readouterr().out
    text = Path("infra/README.md").read_text()
    lines = [line.removesuffix(":") for line in text.splitlines()]
    missing = [line for line in output.splitlines() if line not in lines]
    assert missing == []
