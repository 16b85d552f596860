import dataclasses
from pathlib import Path

import jax
import pytest

from infra.cli import main
from infra.estimates import scale
from infra.estimates.measured import (
    MEASURED,
    CollectRate,
    Measured,
    UpdateRate,
    find_collect_rate,
    find_update_rate,
)
from tests.references import count_parameters
from trainer.agents.iql_config import IQLConfig
from trainer.agents.registry import make_agent
from trainer.agents.vast_config import VASTConfig
from trainer.config import load
from trainer.costs import call_memory
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.call_memory import Shape, Spread
from trainer.costs.describe import describe
from trainer.costs.random_data import make_shape_facts

S, A, B = 7, 3, 32
SHAPE = Shape(
    VASTConfig(width=64, depth=3, flow_steps=4),
    batch_size=B,
    observation_dim=S,
    action_dim=A,
)
CHIP = dataclasses.replace(
    ACCELERATORS["v5e"],
    peaks={"bfloat16": 1e12},
    link_bytes_per_s=2e9,
    memory_bytes=10**9,
)
GPU = ACCELERATORS["h100"]


def test_the_state_is_that_of_the_description():
    agent = make_agent(SHAPE.config, make_shape_facts(S, A))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    leaves = jax.tree.leaves((state.params, state.targets, state.opt_state))
    counters = sum(leaf.size for leaf in leaves if leaf.ndim == 0)
    assert 1 <= counters <= 4
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert call_memory.state_bytes(SHAPE) == total - 4 * counters
    assert call_memory.count_parameters(SHAPE) == count_parameters(state.params)
    averaged = dataclasses.replace(
        SHAPE, config=dataclasses.replace(SHAPE.config, ema_decay=0.9)
    )
    more = call_memory.state_bytes(averaged) - call_memory.state_bytes(SHAPE)
    assert more == 4 * count_parameters(state.params)


def test_operations_are_those_that_describe_and_bench_give():
    config = load("configs/cube-triple-play.toml", task=1)
    described = describe(config, observation_dim=46, action_dim=5)
    shape = Shape(config.agent, config.trainer.batch_size, 46, 5)
    assert scale.update_flops(shape) == described.cost.flops_per_update
    assert call_memory.count_parameters(shape) == described.count_parameters(
        "optimised"
    )


def test_memory_and_traffic_by_hand():
    single = scale.estimate_training(SHAPE, CHIP, chips=1)
    gradient = 4 * call_memory.count_parameters(SHAPE)
    state = call_memory.state_bytes(SHAPE)
    # The segment network has 3 B rows, and keeps 3 arrays of 4 bytes for each of its 3
    # layers of 64.
    kept = 12 * 64 * 3 * 3 * B
    program = 27_000_000
    assert single.whole_bytes == single.split_bytes == single.tensor_bytes
    assert single.whole_bytes == state + gradient + kept + program
    assert single.whole_sent == single.split_sent == single.tensor_sent == 0
    assert not single.link_bound
    assert single.least_s == pytest.approx(scale.update_flops(SHAPE) / 1e12)
    assert single.input_bytes == B * 4 * (5 * S + A + 7)
    four = scale.estimate_training(SHAPE, CHIP, chips=4)
    targets = state - 3 * gradient
    assert targets > 0
    assert four.whole_bytes == state + gradient + kept // 4 + program
    # A chip gathers all parameters, in bfloat16.
    assert four.split_bytes == state / 4 + gradient // 2 + kept // 4 + program
    # Layers alternate: one has whole outputs, the next a quarter of them.
    assert four.tensor_bytes == state / 4 + gradient / 4 + kept * 5 / 8 + program
    # A ring of 4 passes on each quarter 3 times, and twice as often for an all-reduce.
    assert four.whole_sent == gradient * 6 // 4
    assert four.split_sent == ((gradient + targets) / 2 + gradient) * 3 / 4
    assert four.link_bound
    assert four.least_s == pytest.approx(four.whole_sent / 1e9)
    # Flows are sampled on 1, 2 and 2 times B rows, in 4 steps. Besides, the networks
    # are evaluated on these multiples of B, of which 8 are trained: two critics 2 + 1
    # each, segment 3 + 1, value 1 + 1, and both flows 1 each. Of 3 layers, the last is
    # scattered forward, and gathered backward, where the second is summed: half a sum,
    # and one and a half.
    rows = 4 * (1 + 2 + 2) + 2 * (2 + 1) + (3 + 1) + (1 + 1) + 2
    assert four.tensor_sent == 3 / 4 * 4 * 64 * B * (1 * rows + 3 * 8)
    assert scale.estimate_training(SHAPE, CHIP, chips=5).tensor_bytes is None


def test_a_run_lies_on_chips_as_its_mesh_says():
    spread = Spread(seed=2, data=2, fsdp=2, tensor=2)
    gradient = 4 * call_memory.count_parameters(SHAPE)
    state = call_memory.state_bytes(SHAPE)
    targets = state - 3 * gradient
    # A GPU gathers parameters and targets in their own precision, and has the gradient
    # of both critics, which have as many parameters as the targets.
    between = gradient + 2 * targets
    kept = 12 * 64 * 3 * 3 * B // 4
    program = 27_000_000
    one = state / 4 + between / 2 + kept * 3 / 4
    # Rows of 7 and of 3 components are both padded to 8.
    assert call_memory.call_bytes(SHAPE, spread, GPU, seeds=4, rows=10) == (
        2 * one + 10 * 64 + program
    )
    assert call_memory.call_bytes(SHAPE, spread, GPU, seeds=2) == one + program
    # In bfloat16, the gathered networks take half the bytes.
    config = dataclasses.replace(SHAPE.config, precision="bfloat16")
    half = dataclasses.replace(SHAPE, config=config)
    memory = call_memory.call_bytes(half, spread, GPU, seeds=2)
    assert memory == one + program - between / 2 / 2
    saved = scale.sent_bytes(SHAPE, spread, GPU) - scale.sent_bytes(half, spread, GPU)
    # The saving is halved four times: half the bytes of both directions, two parts by
    # `tensor`, half of a ring of two chips, and half of the seeds.
    assert saved == (2 * gradient + targets) / 2 / 2 / 2 / 2
    assert scale.sent_bytes(SHAPE, spread, GPU, seeds=4) == 2 * scale.sent_bytes(
        SHAPE, dataclasses.replace(spread, seed=1), GPU
    )
    # Gradients, in four parts, are all-reduced: twice half of a ring of two chips.
    both = Spread(data=2, fsdp=4)
    apart = Spread(fsdp=4)
    assert scale.sent_bytes(SHAPE, both, GPU) == (
        scale.sent_bytes(SHAPE, apart, GPU) + gradient / 4
    )


def test_data_by_hand():
    rate = CollectRate("cube-single-play", rows_per_s=10.0, store_row_bytes=400.0)
    # 20 machines of 4 cores collect 800 rows/s: 9 s.
    work = scale.estimate_collecting(rate, rows=7200, workers=20, cores=4)
    assert work.hours == pytest.approx(9 / 3600)
    assert work.core_hours == pytest.approx(0.2)
    assert work.busy_workers == 20
    measured = Measured(shard_rows_per_s=1000.0, shard_cores=2, part_rows=1000)
    # 8 parts keep 8 of 20 machines busy, 1000 rows/s each.
    work = scale.estimate_sharding(measured, rows=7200, workers=20, cores=2)
    assert work.busy_workers == 8
    assert work.rows_per_s == 8000
    assert work.hours == pytest.approx(0.9 / 3600)
    assert work.core_hours == pytest.approx(14.4 / 3600)
    # A part keeps two cores busy and no more; one core is half as fast.
    more = scale.estimate_sharding(measured, rows=7200, workers=20, cores=32)
    assert more == work
    single = scale.estimate_sharding(measured, rows=7200, workers=20, cores=1)
    assert single.hours == pytest.approx(2 * work.hours)
    assert single.core_hours == work.core_hours


def test_a_rate_is_that_of_exactly_one_setting():
    agent = VASTConfig(width=512)
    (known,) = MEASURED.update_rates
    trained = {name: getattr(agent, name) for name in known.agent}
    rate = UpdateRate("h100", 8, trained, 1024, 8, 250.0, "somewhere")
    measured = dataclasses.replace(MEASURED, update_rates=(rate,))
    setting = {"chips": 8, "agent": agent, "batch_size": 1024, "seeds": 8}
    assert find_update_rate(measured, platform="h100", **setting) is rate
    # Without a number of chips, the rate of any number is found.
    assert find_update_rate(measured, platform="h100", **setting | {"chips": None})
    # Neither a discount nor a learning rate changes the time of an update.
    slower = dataclasses.replace(agent, learning_rate=1e-4, discount=0.9)
    assert find_update_rate(measured, platform="h100", **setting | {"agent": slower})
    others = (
        *({key: 16} for key in ("chips", "batch_size", "seeds")),
        *(
            {"agent": dataclasses.replace(agent, **{key: value})}
            for key, value in {
                "width": 16,
                "depth": 2,
                "flow_steps": 1,
                "precision": "bfloat16",
                "rematerialise": True,
            }.items()
        ),
        {"agent": IQLConfig(width=512)},
        {"platform": "v5e"},
    )
    for other in others:
        asked = {"platform": "h100", **setting, **other}
        assert find_update_rate(measured, **asked) is None


def test_collected_data_have_the_rate_of_their_environment():
    rate = find_collect_rate(MEASURED, "puzzle-4x4-noisy-v0")
    assert rate is not None
    assert rate.dataset == "puzzle-4x4-play"
    assert find_collect_rate(MEASURED, "puzzle-4x5-play") is None
    assert find_collect_rate(MEASURED, "own-walks") is None


def test_the_tables_hold_own_numbers(capsys):
    arguments = (
        "scale --transitions 5000000 --workers 3 --widths 512 8192 --chips 4 "
        "--accelerator v5e --batch-size 512"
    )
    assert main(arguments.split()) == 0
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("|")]
    # There are two headers with their rules, one row of data and two of training.
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
        "scale --updates-per-s nan",
    ):
        assert main(wrong.split()) == 2


def test_the_readme_holds_what_is_printed(capsys):
    assert main(["scale"]) == 0
    output = capsys.readouterr().out
    text = Path("infra/README.md").read_text()
    lines = [line.removesuffix(":") for line in text.splitlines()]
    missing = [line for line in output.splitlines() if line not in lines]
    assert missing == []
