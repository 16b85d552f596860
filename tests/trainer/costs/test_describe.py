"""Descriptions of configurations: counted by hand, by XLA, and as printed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from trainer import config
from trainer.cli import main
from trainer.costs.describe import Description, describe


def described(dataset: str, observation_dim: int) -> Description:
    loaded = config.load(Path("configs") / f"{dataset}.toml", task=1)
    return describe(loaded, observation_dim=observation_dim, action_dim=5)


def described_demo(table: str, **changes: Any) -> Description:
    """The demo's configuration with changes of one of its tables."""
    loaded = config.load("configs/demo.toml", task=1)
    changed = dataclasses.replace(getattr(loaded, table), **changes)
    loaded = dataclasses.replace(loaded, **{table: changed})
    return describe(loaded, observation_dim=28, action_dim=5)


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
    assert description.count_parameters() == total
    optimised = description.count_parameters("optimised")
    assert optimised + description.count_parameters("target") == total
    # Adam keeps two float32 moments of each, and three counts of steps are kept.
    counters = description.state_bytes - 4 * (total + 2 * optimised)
    assert 0 < counters <= 16


def test_an_average_takes_the_memory_of_the_parameters_once_more() -> None:
    one, other = described_demo("agent"), described_demo("agent", ema_decay=0.9)
    more = other.state_bytes - one.state_bytes
    assert more == 4 * one.count_parameters("optimised")


def test_seeds_multiply_the_cost_and_not_the_networks() -> None:
    one, many = described_demo("trainer"), described_demo("trainer", seeds=8)
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
    assert "agent.max_horizon" in printed
    assert "Largest horizon K of a stitched segment" in printed
    assert "critic (target)" in printed
    assert "NVIDIA H100 data sheet" in printed


def test_a_dimension_below_1_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "configs/demo.toml", "--observation-dim", "0"]) == 2
    assert "--observation-dim: expected at least 1, got 0" in capsys.readouterr().err


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
