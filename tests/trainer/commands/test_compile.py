"""``compile``: for CPUs of this machine, and for TPUs that it does not have."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.optimised import QUICK
from tests.topologies import needs_libtpu
from trainer import config as configuration
from trainer.agents.registry import make_agent
from trainer.cli import main
from trainer.costs import accelerators
from trainer.costs.compiled import DoesNotFitError, compile_call
from trainer.costs.random_data import draw_batches, make_random_table, make_shape_facts
from trainer.costs.topologies import Topology
from trainer.parallel.mesh import batch_sharding, make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import init_state

DIMS = ["--observation-dim", "6", "--action-dim", "3"]
TOML = """
dataset = "my-robot"
[agent]
name = "{agent}"
width = {width}
depth = 2
{more}
[trainer]
batch_size = 16
updates_per_call = 5
log_every = 5
checkpoint_every = 5
"""


@pytest.fixture(autouse=True)
def all_devices() -> None:
    """Starts JAX with the devices of the tests, before a command sets others."""
    assert len(jax.devices()) == 8


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML.format(agent="iql", width=16, more=""))
    return str(path)


def test_the_command_compiles_for_cpus(
    capsys: pytest.CaptureFixture[str], tiny: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["compile", tiny, *DIMS, "--topology", "cpu-4", "--out", str(out)]
    assert main([*command, "--mesh", "data=2,fsdp=2"]) == 0
    printed = capsys.readouterr().out
    assert (
        "iql at width 16, batch 16, 1 seed(s), 5 updates a call, for cpu-4" in printed
    )
    assert "NOT" not in printed
    figures = json.loads((out / "costs.json").read_text())
    assert figures["mesh"] == {"seed": 1, "data": 2, "fsdp": 2, "tensor": 1}
    assert figures["donated"]
    assert figures["memory_share"] is None
    memory = figures["memory"]
    assert memory["peak"] >= memory["arguments"] + memory["temporaries"]
    # Besides the state, the arguments are the batches of five updates, a quarter of 16
    # rows each. IQL reads two states, an action and three scalars of a row, and XLA
    # drops the rest.
    batches = 5 * 4 * (2 * 6 + 3 + 3) * 4
    assert memory["arguments"] == memory["donated"] + batches
    assert memory["donated"] > 0
    gathered = [
        each["bytes"] for each in figures["traffic"] if each["kind"] == "all-gather"
    ]
    # Kernels of value, of critics with their targets, and of actor; layers are inputs,
    # 16, 16, outputs.
    layers = {"value": (6, 1, 1), "critic": (9, 1, 4), "actor": (6, 3, 1)}
    kernels = sum(
        copies * 4 * 16 * (inputs + 16 + outputs)
        for inputs, outputs, copies in layers.values()
    )
    assert sum(gathered) == kernels
    # Gradients are scattered in the same way; targets have none. Each half is then
    # summed over `data`, together with the gradients that are not scattered.
    scattered = [
        each["bytes"] for each in figures["traffic"] if each["kind"] == "reduce-scatter"
    ]
    targets = 2 * 4 * 16 * (9 + 16 + 1)
    assert sum(scattered) == kernels - targets
    largest = max(
        each["largest_bytes"]
        for each in figures["traffic"]
        if each["kind"] == "all-reduce"
    )
    assert largest <= 2 * 4 * 16 * 16 / 2
    assert not any(each["in_loops"] for each in figures["traffic"])
    assert "ENTRY" in (out / "program.txt").read_text()


def test_what_is_compiled_is_what_is_trained(tiny: str) -> None:
    """Shapes alone give the same text of the program as the arrays of a run."""
    config = configuration.load(tiny, task=1)
    facts, sizes = make_shape_facts(6, 3), MeshConfig(data=2, fsdp=2)
    devices = jax.devices()[:4]
    call = compile_call(config, facts, sizes, devices=devices)
    agent = make_agent(config.agent, facts)
    mesh = make_mesh(sizes, seeds=1, batch_size=16, devices=devices)
    batches = draw_batches(
        agent,
        make_random_table(facts, discount=agent.sampler.discount),
        updates=5,
        seeds=(0,),
        size=16,
    )
    trained: Any = make_train_call(agent, mesh, seeds=1)
    lowered = trained.lower(
        init_state(agent, mesh, (0,)),
        None,
        jax.device_put(batches, batch_sharding(mesh)),
    )
    assert _program(call.text) == _program(lowered.compile().as_text())


def _program(text: str) -> str:
    """Returns a program without the metadata that name the caller's lines."""
    lines = [line.split(", metadata=")[0] for line in text.splitlines()]
    return "\n".join(line for line in lines if " = " in line)


def test_what_does_not_fit_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    small = dataclasses.replace(accelerators.ACCELERATORS["v5e"], memory_bytes=10_000)
    monkeypatch.setitem(accelerators.ACCELERATORS, "v5e", small)
    monkeypatch.setattr(Topology, "make_devices", lambda _: jax.devices()[:4])
    command = ["compile", tiny, *DIMS, "--topology", "v5e-4", "--json"]
    assert main(command) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["memory_share"] > 1
    assert figures["accelerator"] == "v5e"
    assert set(figures["least_ms"]) == {"memory", "links"}

    def give_up(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.1G of "
            "15.75G hbm."
        )

    monkeypatch.setattr(jax.stages.Lowered, "compile", give_up)
    assert main(command) == DoesNotFitError.exit_code == 1
    said = capsys.readouterr().err
    assert "does not fit: the compiler gives up at 20.1G of 15.75G of hbm" in said


def test_a_gpu_has_as_much_memory_as_jax_takes_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    monkeypatch.setattr(Topology, "make_devices", lambda _: jax.devices()[:4])
    command = ["compile", tiny, *DIMS, "--topology", "h100-4"]
    assert main([*command, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["memory"]["total"]
    tight = dataclasses.replace(
        accelerators.ACCELERATORS["h100"], memory_bytes=round(total / 0.9)
    )
    monkeypatch.setitem(accelerators.ACCELERATORS, "h100", tight)
    assert main(command) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "90.0% of the chip's" in said
    assert "of which JAX uses 75% by default" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--topology", "v7e-4"], "expected a kind of"),
        (["--topology", "cpu-4", "--mesh", "fsdp=3"], "to be the 4 devices"),
        (["--topology", "cpu-4", "--mesh", "rows=4"], "--mesh: expected sizes of"),
        (["--topology", "cpu-4", "--seeds", "0"], "--seeds: expected at least 1"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tiny: str, more: list[str], said: str
) -> None:
    assert main(["compile", tiny, *DIMS, *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def compile_for_tpus(config: str, *more: str) -> dict[str, Any]:
    """Runs the command in a process of its own, as a user does, and returns figures."""
    flags = os.environ["XLA_FLAGS"].replace(QUICK, "")
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "compile", config, "--json", *more],
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@needs_libtpu
def test_a_small_call_for_sixteen_chips(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(TOML.format(agent="vast", width=512, more="flow_steps = 4"))
    more = ("--topology", "v5e-16", "--mesh", "data=4,fsdp=4")
    figures = compile_for_tpus(str(path), *DIMS, *more)
    assert figures["donated"]
    assert 0 < figures["memory_share"] < 0.01
    assert figures["estimated_cycles"] > 0
    traffic = figures["traffic"]
    assert {tuple(each["axes"]) for each in traffic} >= {("fsdp",)}
    assert not any(each["in_loops"] for each in traffic)
    # Gradients are scattered over `fsdp` first, and their parts are summed over `data`.
    by_kind = {
        kind: [each for each in traffic if each["kind"] == kind]
        for kind in ("all-reduce", "reduce-scatter")
    }
    assert {tuple(each["axes"]) for each in by_kind["reduce-scatter"]} == {("fsdp",)}
    scattered = sum(each["bytes"] for each in by_kind["reduce-scatter"])
    critics = 2 * 512 * 512 * 4
    assert scattered >= 3 * critics  # And four networks of one each.
    assert max(each["largest_bytes"] for each in by_kind["all-reduce"]) <= critics / 4
    # All-reduced are these quarters, and small arrays, which are whole on all chips.
    assert sum(each["bytes"] for each in by_kind["all-reduce"]) < scattered / 2


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(("topology", "chips"), [("v5e-16", 16), ("v5p-8", 8)])
def test_gradients_are_scattered_over_all_of_a_slice(
    tmp_path: Path, topology: str, chips: int
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(TOML.format(agent="vast", width=512, more="flow_steps = 4"))
    more = ("--topology", topology, "--mesh", f"fsdp={chips}")
    # With fewer rows libtpu lays gradients out differently, and all-reduces them whole.
    more += ("--trainer.batch-size", "512")
    figures = compile_for_tpus(str(path), *DIMS, *more)
    sent = dict.fromkeys(("all-reduce", "reduce-scatter"), 0.0)
    summed = 0
    for each in figures["traffic"]:
        assert not each["in_loops"]
        if each["kind"] in sent:
            sent[each["kind"]] += each["sent_bytes"]
        if each["kind"] == "all-reduce":
            summed = max(summed, each["largest_bytes"])
    # No kernel is all-reduced whole. The last stage all-reduces quarters if their parts
    # would have less than 128 columns, which libtpu does not scatter.
    critics = 2 * 512 * 512 * 4
    assert summed <= critics / 4
    assert sent["all-reduce"] < sent["reduce-scatter"]


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "mesh"), [("v5e-1", None), ("v5e-8", "fsdp=8"), ("v5e-8", "tensor=8")]
)
def test_the_papers_size_fits(topology: str, mesh: str | None) -> None:
    axes = () if mesh is None else ("--mesh", mesh)
    figures = compile_for_tpus(
        "configs/cube-single-play.toml", "--topology", topology, *axes
    )
    assert figures["donated"]
    assert figures["memory_share"] < 0.05
    inside = [each for each in figures["traffic"] if each["in_loops"]]
    # Sharded layers are summed in every flow step; a sharded state is not.
    assert bool(inside) == (mesh == "tensor=8")
    # Three flows are sampled, in ten steps each.
    assert sum(each["times"] for each in inside) <= 5 * 3 * 10
