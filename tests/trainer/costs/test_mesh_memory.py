"""Arrays on the devices of a mesh: counted by hand, and as the command prints."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from trainer import config as configuration
from trainer.agents.vast_config import VASTConfig
from trainer.cli import main
from trainer.config import Config
from trainer.costs.mesh_memory import MeshDescription, describe_mesh, parse_mesh
from trainer.costs.network_shapes import vast_networks
from trainer.costs.random_data import make_shape_facts
from trainer.parallel.mesh_shape import MeshConfig

DIMS = ["--observation-dim", "6", "--action-dim", "3"]
TOML = """
dataset = "my-robot"
[agent]
name = "iql"
width = 16
depth = 2
[trainer]
batch_size = 16
updates_per_call = 5
log_every = 5
checkpoint_every = 5
seeds = 2
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


def held(config: Config, mesh: MeshConfig, devices: int) -> MeshDescription:
    return describe_mesh(
        config,
        make_shape_facts(40, 7),
        mesh,
        devices=jax.devices()[:devices],
    )


def test_eight_devices_share_a_wide_state() -> None:
    wide = configuration.load("configs/wide/cube-triple-play-4096.toml", task=1)
    assert wide.agent.width == 4096
    alone = held(wide, MeshConfig(data=1), 1)
    shared = held(wide, MeshConfig(data=1, fsdp=8), 8)
    whole = alone.params_bytes + alone.rest_bytes
    part = shared.params_bytes + shared.rest_bytes
    # Biases and LayerNorm are whole on every device, kernels are not.
    assert whole / 8 < part <= whole / 7
    assert whole > 4 * 4096**2 * 4 * 3  # It is wide: the kernels of one network alone.


def test_copies_take_no_less() -> None:
    demo = configuration.load("configs/demo.toml", task=1)
    alone, copied = (held(demo, MeshConfig(data=n), n) for n in (1, 8))
    assert [array.device_bytes for array in copied.arrays] == [
        array.device_bytes for array in alone.arrays
    ]


def test_sizes_are_read() -> None:
    assert parse_mesh("seed=2,fsdp=4") == MeshConfig(seed=2, data=1, fsdp=4, tensor=1)
    for wrong in ("fsdp", "fsdp=-1", "fsdp=0", "rows=2", ""):
        with pytest.raises(ValueError, match="--mesh: expected sizes of seed"):
            parse_mesh(wrong)


def test_the_command_says_where_arrays_lie(
    capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    mesh = "seed=2,fsdp=2,tensor=2"
    assert main(["describe", str(tiny), *DIMS, "--mesh", mesh, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["mesh"] == {"seed": 2, "data": 1, "fsdp": 2, "tensor": 2}
    arrays = {array["path"]: array for array in printed["arrays"]}
    kernel = arrays["params/critic/hidden_1/kernel"]
    # The shape is seeds, twins, units, units. A device has one seed and a quarter of
    # the units.
    assert kernel["shape"] == [2, 2, 16, 16]
    assert kernel["spec"] == "seed, -, -, tensor+fsdp"
    assert kernel["device_bytes"] == 1 * 2 * 16 * 4 * 4
    assert arrays["params/value/output/bias"]["device_bytes"] == 4
    params = [path for path in arrays if path.startswith("params/")]
    assert printed["params_bytes"] == sum(
        arrays[path]["device_bytes"] for path in params
    )
    assert printed["expected_bytes"] is None  # Only VAST has a formula.


def test_memory_by_formula_is_that_of_a_kind_of_accelerator() -> None:
    cube = configuration.load("configs/cube-single-play.toml", task=1)
    expected = held(cube, MeshConfig(data=1, fsdp=8), 8).expected_bytes
    assert expected is not None
    # A GPU has four bytes of each gathered parameter, and of the gradient of both
    # critics, which have as many parameters as the targets. A TPU has two bytes of each
    # trained parameter.
    assert isinstance(cube.agent, VASTConfig)
    networks = vast_networks(cube.agent, observation_dim=40, action_dim=7)
    *trained, targets = (network.parameters for network in networks)
    assert expected["GPU"] - expected["TPU"] == (
        4 * (sum(trained) + 2 * targets) - 2 * sum(trained)
    )


def test_the_command_prints_a_table(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    command = ["describe", str(tiny), *DIMS, "--mesh"]
    assert main([*command, "fsdp=8"]) == 0
    printed = capsys.readouterr().out
    assert "params/actor/hidden_1/kernel" in printed
    assert "2 × 16 × 16" in printed
    assert "mesh seed 1 × data 1 × fsdp 8 × tensor 1; on each device" in printed
    assert "no estimate for this agent; `compile --topology` gives" in printed
    assert main([*command, "fsdp=16"]) == 2
    assert "at most the 8 devices" in capsys.readouterr().err


def test_devices_are_made_up(tiny: Path) -> None:
    # As for a user, the process starts without the devices of these tests.
    flags = re.sub(r"--xla_force_host\S+", "", os.environ["XLA_FLAGS"]).strip()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer", "describe", str(tiny), *DIMS),
            *("--mesh", "fsdp=16", "--json"),
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    printed = json.loads(done.stdout)
    assert printed["mesh"]["fsdp"] == 16
    description = dataclasses.fields(MeshDescription)
    assert set(printed) == {field.name for field in description}
