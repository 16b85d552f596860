"""Measured updates are those of training, and operations are counted right."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optimised import QUICK
from trainer.agents.base import AgentState, Metrics
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.costs import bench_step
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.flops import forward_flops
from trainer.costs.random_data import draw_batches, make_random_table, make_shape_facts
from trainer.data.nstep_windows import NStepSampler
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import init_state

S, A = 6, 3
FACTS = make_shape_facts(S, A)


@dataclass(frozen=True)
class LinearConfig:
    name: str = "linear"
    width: int = 8
    precision: str = "float32"
    ema_decay: float = 0.0


@dataclass(frozen=True)
class Linear:
    """A linear layer that predicts actions: the smallest agent, which compiles fast."""

    config = LinearConfig()
    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        return NStepSampler(1, 0.99)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(0.1)

    def init(self, key: jax.Array) -> AgentState:
        kernel = jax.random.normal(key, (S, A))
        params = {"actor": {"output": {"kernel": kernel}}}
        return AgentState(
            params, {}, self.optimizer.init(params), jnp.zeros((), jnp.int32)
        )

    def total_loss(
        self, params: Any, targets: Any, batch: Any, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        predicted = batch.observations @ params["actor"]["output"]["kernel"]
        loss = jnp.square(predicted - batch.actions).mean()
        return loss, Metrics({"loss": loss}, {}, {})

    def move_targets(self, targets: Any, *, before: Any, after: Any) -> Any:
        return targets


def measured(mesh: MeshConfig, seeds: int) -> bench_step.StepFigures:
    return bench_step.measure(
        Linear(),
        FACTS,
        LinearConfig(),
        batch_size=8,
        seeds=seeds,
        mesh=mesh,
        updates=30,
        updates_per_call=5,
    )


def test_figures_of_a_mesh() -> None:
    figures = measured(MeshConfig(seed=2, data=4), seeds=2)
    assert figures.mesh == {"seed": 2, "data": 4, "fsdp": 1, "tensor": 1}
    for rate in (
        figures.updates_per_s,
        figures.single_updates_per_s,
        figures.plain_updates_per_s,
        figures.compile_s,
    ):
        assert rate > 0
    assert figures.memory_bytes
    assert figures.input_blocked_share is not None
    assert 0 < figures.input_blocked_share < 1
    # Operations of this agent are not counted, and CPUs' peaks are not known.
    assert figures.flops_per_s is figures.peak_share is None


def test_all_three_calls_do_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    contestants: list[Any] = []
    make_contestant = bench_step._Contestant

    def remember(*parts: Any) -> Any:
        contestants.append(make_contestant(*parts))
        return contestants[-1]

    monkeypatch.setattr(bench_step, "_Contestant", remember)
    monkeypatch.setattr(bench_step, "_make_feed", lambda *_, **__: None)
    measured(MeshConfig(data=1), seeds=2)
    assert len(contestants) == 3
    # A turn to warm up, then three turns of two calls, of five updates each.
    for contestant in contestants:
        assert np.asarray(contestant.state.agent.step).tolist() == [35, 35]
    kernels = [
        np.asarray(jax.tree.leaves(contestant.state.agent.params)[0])
        for contestant in contestants
    ]
    for other in kernels[1:]:
        np.testing.assert_allclose(other, kernels[0], rtol=1e-5, atol=1e-6)


def test_the_plain_call_is_the_trainers() -> None:
    agent = Linear()
    mesh = make_mesh(
        MeshConfig(data=1), seeds=2, batch_size=8, devices=jax.devices()[:1]
    )
    table = make_random_table(FACTS, discount=0.99)
    batches = draw_batches(agent, table, updates=4, seeds=(0, 1), size=8)
    assert batches.observations.shape == (4, 2, 8, S)
    assert (batches.observations[0, 0] != batches.observations[0, 1]).any()
    assert (batches.observations[0, 0] != batches.observations[1, 0]).any()
    states = [init_state(agent, mesh, (0, 1)) for _ in range(2)]
    one, metrics = make_train_call(agent, mesh, seeds=2)(states[0], None, batches)
    other, plain = bench_step.make_plain_call(agent)(states[1], batches)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        jax.device_get((one, metrics)),
        jax.device_get((other, plain)),
    )


def test_operations_are_those_of_flops() -> None:
    config = VASTConfig(width=16, depth=2)
    agent = VAST(config, FACTS)
    count = bench_step.count_operations(agent, config, batch_size=4)
    twice = bench_step.count_operations(agent, config, batch_size=8)
    assert count
    assert twice == 2 * count
    # The samples of the stitching policy alone take this much: 3 B, in ten steps.
    layers = ((2 * S + 2, 16), (16, 16), (16, S + 1))
    assert count > 3 * 4 * 10 * forward_flops(layers)


def test_the_share_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = dataclasses.replace(
        ACCELERATORS["h100"],
        device="cpu",
        peaks={"bfloat16": 2e9, "tensorfloat32": 1e9},
    )
    monkeypatch.setitem(ACCELERATORS, "cpu", cpu)
    monkeypatch.setattr(bench_step, "count_operations", lambda *_, **__: 1000)
    figures = measured(MeshConfig(data=2), seeds=1)
    assert figures.flops_per_s == pytest.approx(1000 * figures.updates_per_s)
    assert figures.peak_share == pytest.approx(figures.flops_per_s / 2e9)


def test_mistakes_are_refused() -> None:
    given = {"widths": [8], "batches": [8], "seeds": [1]}
    with pytest.raises(ValueError, match="--agent: expected one of vast, iql"):
        bench_step.bench_step("fql-n", **given)
    with pytest.raises(ValueError, match="--flow-steps: iql has no such setting"):
        bench_step.bench_step("iql", settings={"flow_steps": 5}, **given)
    with pytest.raises(ValueError, match="--precisions: expected some of float32"):
        bench_step.bench_step("iql", precisions=["half"], **given)
    with pytest.raises(ValueError, match="at most the 8 devices here, got 16"):
        bench_step.bench_step("iql", meshes=["data=2", "fsdp=16"], **given)


def test_the_table_leaves_out_what_is_not_known() -> None:
    figures = measured(MeshConfig(data=1), seeds=1)
    known = dataclasses.replace(
        figures, flops_per_s=2.5e9, peak_share=0.125, input_blocked_share=0.25
    )
    figures = dataclasses.replace(figures, input_blocked_share=None)
    columns = bench_step.make_table([figures, known], title="x").columns
    cells = {str(column.header): list(column.cells) for column in columns}
    assert cells["of peak"] == ["—", "12.5%"]
    assert cells["input"] == ["—", "25.0%"]
    assert cells["GFLOP/s"] == ["—", "2.5"]
    assert cells["mesh"] == ["one device"] * 2


def test_every_mesh_of_a_list_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        bench_step, "measure", lambda *_, **given: asked.append(given["mesh"])
    )
    given = {"widths": [8], "batches": [8, 16], "seeds": [2]}
    bench_step.bench_step("iql", meshes=["seed=2,data=4", "fsdp=8"], **given)
    assert asked == [MeshConfig(2, 4), MeshConfig(data=1, fsdp=8)] * 2
    with pytest.raises(ValueError, match=r"trainer\.seeds is 2, which 4 devices"):
        bench_step.bench_step("iql", meshes=["data=8", "seed=4"], **given)
    assert len(asked) == 4  # No mesh was measured, because one of them cannot be made.


def test_waiting_for_batches_counts_and_computing_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def share(*, draw_s: float, update_s: float) -> float | None:
        def feed() -> Iterator[int]:
            nonlocal now
            for _ in range(8):
                now += draw_s
                yield 0

        def call(state: int, batch: int) -> tuple[int, int]:
            nonlocal now
            now += update_s
            return state, batch

        contestant = bench_step._Contestant(call, 0, [])
        return bench_step._measure_blocked_share(
            contestant, feed(), lambda x: x, calls=6
        )

    assert share(draw_s=3, update_s=1) == 3 / 4
    assert share(draw_s=0, update_s=1) == 0


BLOCKED = """
import sys
for name in ("grain", "mujoco", "ogbench", "gymnasium", "apache_beam"):
    sys.modules[name] = None  # Importing the module is now an error.
"""
LEAST = """
from tests.trainer.costs.test_bench_step import measured
from trainer.parallel.mesh_shape import MeshConfig
figures = measured(MeshConfig(data=1), 1)
assert figures.input_blocked_share is None  # Without Grain, there is no feed.
print(figures.updates_per_s)
"""
COMMAND = """
from trainer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_blocked(script: str, *arguments: str) -> str:
    """Runs a script without packages of data and environments; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XLA_FLAGS": QUICK},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_measuring_needs_neither_grain_nor_environments() -> None:
    assert float(run_blocked(LEAST)) > 0


@pytest.mark.slow
def test_nor_does_the_command() -> None:
    printed = json.loads(
        run_blocked(
            COMMAND,
            *("bench", "step", "--agent", "iql", "--widths", "8", "--depth", "1"),
            *("--batches", "8", "--updates", "6", "--updates-per-call", "2"),
            *("--precisions", "bfloat16", "--json"),
        )
    )
    assert printed["agent"] == "iql"
    (figures,) = printed["figures"]
    assert (figures["width"], figures["batch_size"], figures["seeds"]) == (8, 8, 1)
    assert figures["precision"] == "bfloat16"
    assert figures["peak_share"] is None
