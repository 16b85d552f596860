"""Checkpoints: which are kept, on what they can be restored, and onto what never."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from pipeline.store.errors import DataFormatError
from tests.runs import CONFIG, TABLE, make_run
from trainer.data.feed import BatchSource, make_feed
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import AXES, MeshConfig
from trainer.runs.checkpoints import CheckpointReader, CheckpointWriter
from trainer.runs.folder import RunFolder
from trainer.runs.retention import Retention
from trainer.runs.run import Run
from trainer.step.state import TrainState, abstract_state, layout

SEEDS = 2
STEP = 10


def run_of(**agent: float) -> Run:
    changed: Any = dataclasses.replace(CONFIG.agent, **({"depth": 2} | agent))  # type: ignore[arg-type]
    return dataclasses.replace(
        make_run(), config=dataclasses.replace(CONFIG, agent=changed)
    )


RUN = run_of()


def mesh_of(config: MeshConfig, devices: int) -> Mesh:
    return make_mesh(config, seeds=SEEDS, batch_size=8, devices=jax.devices()[:devices])


def made_up(mesh: Mesh, run: Run = RUN, *, rng: int = 0) -> TrainState:
    """A state on a mesh, of values drawn by nobody: that would have to compile."""
    numbers = np.random.default_rng(rng)
    shapes = abstract_state(run.agent(), seeds=SEEDS)
    drawn = jax.tree.map(
        lambda leaf: numbers.uniform(0, 9, leaf.shape).astype(leaf.dtype), shapes
    )
    placed: TrainState = jax.device_put(drawn, layout(run.agent(), mesh, seeds=SEEDS))
    return placed


def make_feed_of(run: Run) -> Any:
    source = BatchSource(
        TABLE, run.agent().sampler, seeds=(3, 4), batch_size=8, steps=20, gather=False
    )
    return make_feed(source, CONFIG.feed, updates_per_call=5)


def restore(folder: Path, like: TrainState, run: Run = RUN) -> TrainState:
    checkpoints = CheckpointReader(RunFolder.open(folder))
    try:
        return checkpoints.restore(STEP, like, make_feed_of(run), updates_per_call=5)
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """A step saved from eight devices, and what is in it."""
    folder = tmp_path_factory.mktemp("saved")
    state = made_up(mesh_of(MeshConfig(data=1, fsdp=4, tensor=2), 8))
    checkpoints = CheckpointWriter(RunFolder.open(folder))
    checkpoints.save(STEP, state, make_feed_of(RUN), RUN)
    checkpoints.close()
    return folder, [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        (MeshConfig(data=1), 1),
        (MeshConfig(data=1, fsdp=2), 2),
        (MeshConfig(seed=2, data=2, tensor=2), 8),
    ],
    ids=str,
)
def test_a_step_is_restored_onto_any_mesh(
    saved: tuple[Path, list[np.ndarray]], config: MeshConfig, devices: int
) -> None:
    folder, values = saved
    like = made_up(mesh_of(config, devices), rng=1)
    restored = restore(folder, like)
    pairs = zip(jax.tree.leaves(restored), jax.tree.leaves(like), values, strict=True)
    for ours, asked, value in pairs:
        assert ours.sharding == asked.sharding
        np.testing.assert_array_equal(ours, value)


def test_an_average_acts_and_training_goes_on_from_what_was_trained(
    tmp_path: Path,
) -> None:
    run = run_of(ema_decay=0.9)
    state = made_up(mesh_of(MeshConfig(data=1), 1), run)
    checkpoints = CheckpointWriter(RunFolder.open(tmp_path))
    checkpoints.save(STEP, state, make_feed_of(run), run)
    checkpoints.close()
    restored = restore(
        tmp_path, made_up(mesh_of(MeshConfig(data=1), 1), run, rng=1), run
    )
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    with CheckpointReader(RunFolder.open(tmp_path)) as reader:
        acting = reader.restore_params(STEP, run.agent(), seeds=SEEDS)
    jax.tree.map(np.testing.assert_array_equal, acting, state.agent.average)
    one, other = (
        np.asarray(params["critic"]["hidden_0"]["kernel"])
        for params in (acting, state.agent.params)
    )
    assert not np.array_equal(one, other)


def test_a_step_is_restored_with_explicit_axes_active(
    saved: tuple[Path, list[np.ndarray]],
) -> None:
    folder, values = saved
    mesh = jax.make_mesh((1, 1, 4, 2), AXES, axis_types=(AxisType.Explicit,) * 4)
    like = made_up(mesh_of(MeshConfig(data=1, fsdp=4, tensor=2), 8), rng=1)
    explicit = jax.tree.map(
        lambda leaf: jax.device_put(leaf, NamedSharding(mesh, leaf.sharding.spec)), like
    )
    with jax.set_mesh(mesh):
        restored = restore(folder, explicit)
    for ours, value in zip(jax.tree.leaves(restored), values, strict=True):
        assert ours.sharding.mesh.axis_types == (AxisType.Explicit,) * 4
        np.testing.assert_array_equal(ours, value)


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (
            {"depth": 3},
            [
                r"  params/critic/hidden_2/bias: not there saved, \(2, 2, 8\) asked",
                r"  and \d+ more",
            ],
        ),
        (
            {"width": 16},
            [r"  params/critic/hidden_0/bias: \(2, 2, 8\) saved, \(2, 2, 16\) asked"],
        ),
    ],
    ids=["deeper", "wider"],
)
def test_another_architecture_is_refused_with_what_differs(
    saved: tuple[Path, list[np.ndarray]], changed: dict[str, int], lines: list[str]
) -> None:
    folder, _ = saved
    other = run_of(**changed)
    like = made_up(mesh_of(MeshConfig(data=1), 1), other)
    with pytest.raises(DataFormatError, match="holds another architecture") as raised:
        restore(folder, like, other)
    for line in lines:
        assert re.search(line, str(raised.value)), raised.value


def test_the_last_steps_are_kept_and_some_for_good(tmp_path: Path) -> None:
    state = made_up(mesh_of(MeshConfig(data=1), 1))
    checkpoints = CheckpointWriter(
        RunFolder.open(tmp_path), Retention(keep=2, keep_every=20)
    )
    for step in range(5, 50, 5):
        checkpoints.save(step, state, make_feed_of(RUN), RUN)
    checkpoints.close()
    assert CheckpointReader(RunFolder.open(tmp_path)).steps() == [20, 40, 45]


def test_steps_of_preemptions_take_no_other_s_place(tmp_path: Path) -> None:
    state = made_up(mesh_of(MeshConfig(data=1), 1))
    folder, retention = RunFolder.open(tmp_path), Retention(keep=3, every=10)
    # After each save: a preempted step stays until there is a later one.
    expected = {
        10: [10],
        20: [10, 20],
        25: [10, 20, 25],
        30: [10, 20, 30],
        35: [10, 20, 30, 35],
        36: [10, 20, 30, 36],
        40: [20, 30, 40],
    }
    for step, kept in expected.items():
        checkpoints = CheckpointWriter(folder, retention)  # As after a restart.
        checkpoints.save(step, state, make_feed_of(RUN), RUN)
        checkpoints.close()
        assert CheckpointReader(folder).steps() == kept


def test_all_are_kept_if_nothing_is_said(tmp_path: Path) -> None:
    state = made_up(mesh_of(MeshConfig(data=1), 1))
    checkpoints = CheckpointWriter(RunFolder.open(tmp_path))
    for step in range(5, 30, 5):
        checkpoints.save(step, state, make_feed_of(RUN), RUN)
    checkpoints.close()
    assert CheckpointReader(RunFolder.open(tmp_path)).steps() == [5, 10, 15, 20, 25]
