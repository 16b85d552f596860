"""Held-out windows: what is measured on them, and that training does not notice."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from pipeline.output import Output
from pipeline.store.reader import Store
from tests.small_runs import CONFIG, QUIET, everything, fresh, make_run
from tests.stores import make_facts, make_table, write_store
from trainer.agents.registry import AGENTS, make_agent
from trainer.api import training
from trainer.data.feed_config import FeedConfig
from trainer.data.held_out import (
    HeldOutSource,
    find_obstacle,
    load_held_out,
)
from trainer.data.table import RowTable, load_table
from trainer.errors import ConfigError
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.history import VALIDATION
from trainer.step.state import init_state
from trainer.step.validate import make_validation_call
from trainer.training import loop

QUIET_OUTPUT = Output.silent()
MEASURED = {"validate_every": 10, "validation_batches": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("held-out") / "store"
    return Store(str(write_store(root, val=((30, 25),))))


@pytest.fixture(scope="module")
def rows(data: Store) -> tuple[RowTable, RowTable]:
    """Trained on, and held out."""
    return (
        load_table(data, task=1, discount=0.99),
        load_held_out(data, task=1, discount=0.99),
    )


def train(
    data: Store, rows: tuple[RowTable, RowTable], folder: Path, **changes: Any
) -> list[dict[str, Any]]:
    """Figures of held-out windows, of every record that has them."""
    table, held_out = rows
    run = make_run(data, table, **changes)
    out = RunFolder.open(folder)
    loop.train(run, table, out, held_out=held_out, console=QUIET)
    return [
        {name: line[name] for name in line if name.startswith(VALIDATION)}
        | {"step": line["step"], "seed": line["seed"]}
        for line in out.read_lines(METRICS_FILE)
        if f"{VALIDATION}loss" in line
    ]


@pytest.fixture(scope="module")
def unbroken(
    data: Store,
    rows: tuple[RowTable, RowTable],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("validated")
    return folder, train(data, rows, folder, **MEASURED)


def plain(line: dict[str, Any]) -> dict[str, Any]:
    """Without the time that it took."""
    return {name: value for name, value in line.items() if name != "validation_s"}


def test_training_does_not_notice_nor_does_a_restart_change_what_is_measured(
    data: Store,
    rows: tuple[RowTable, RowTable],
    unbroken: tuple[Path, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    folder, lines = unbroken
    assert [(line["step"], line["seed"]) for line in lines] == [
        (step, seed) for step in (10, 20, 30, 40) for seed in (0, 1)
    ]
    # Each step and each seed has windows of its own.
    assert len({line["validation_return"] for line in lines}) == len(lines)
    # In two goes, of which the first one measures nothing.
    assert train(data, rows, tmp_path, steps=20) == []
    second = train(data, rows, tmp_path, **MEASURED)
    assert [plain(line) for line in second] == [plain(line) for line in lines[4:]]
    run = make_run(data, rows[0])
    one, other = (everything(each, run, rows[0], 40) for each in (tmp_path, folder))
    assert len(one) > 50
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_measured_is_the_saved_state_on_held_out_windows(
    data: Store,
    rows: tuple[RowTable, RowTable],
    unbroken: tuple[Path, list[dict[str, Any]]],
) -> None:
    table, held_out = rows
    run = make_run(data, table)
    agent = run.agent()
    with CheckpointReader(RunFolder.open(unbroken[0])) as checkpoints:
        state = checkpoints.restore(20, *fresh(run, table), updates_per_call=5).agent
    drawn = HeldOutSource(
        held_out, agent.sampler, seeds=(0, 1), batch_size=8, batches=2
    ).at(20)
    inside = {row.tobytes() for row in held_out.observations}
    trained_on = {row.tobytes() for row in table.observations}
    loss_of, values_of = jax.jit(agent.total_loss), jax.jit(agent.action_values)
    seen = {row.tobytes() for row in drawn.batches.observations.reshape(-1, 6)}
    assert seen <= inside
    assert not seen & trained_on
    for seed in (0, 1):
        (line,) = (
            each for each in unbroken[1] if (each["step"], each["seed"]) == (20, seed)
        )
        params = jax.tree.map(lambda leaf, seed=seed: leaf[seed], state.params)
        targets = jax.tree.map(lambda leaf, seed=seed: leaf[seed], state.targets)
        losses, errors = [], []
        for batch in range(2):
            windows = jax.tree.map(
                lambda x, batch=batch, seed=seed: x[batch, seed], drawn.batches
            )
            losses.append(loss_of(params, targets, windows, jax.random.key(0))[0])
            values = values_of(params, windows, jax.random.key(0))
            errors.append(np.abs(values - drawn.returns[batch, seed]).mean())
        assert line["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert line["validation_return_error"] == pytest.approx(
            np.mean(errors), rel=1e-5
        )
        assert line["validation_return"] == pytest.approx(
            drawn.returns[:, seed].mean(), rel=1e-5
        )
        assert min(losses) > 0 < min(errors)


def test_any_mesh_measures_the_same(
    data: Store, rows: tuple[RowTable, RowTable]
) -> None:
    run = make_run(data, rows[0])
    agent = run.agent()
    held = HeldOutSource(
        rows[1], agent.sampler, seeds=(0, 1), batch_size=8, batches=2
    ).at(0)
    measured = []
    for shape, devices in (
        (MeshConfig(), jax.devices()[:1]),
        (MeshConfig(seed=2, data=2, fsdp=2), jax.devices()),
    ):
        mesh = make_mesh(shape, seeds=2, batch_size=8, width=8, devices=devices)
        state = init_state(agent, mesh, (0, 1))
        measured.append(make_validation_call(agent, mesh, seeds=2)(state, held))
    for one, other in zip(*map(jax.tree.leaves, measured), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_values_recorded_actions(name: str) -> None:
    table = make_table([40, 40], S=4, A=2)
    several = {"n_step": 3} if name.endswith("-n") else {}
    settings = AGENTS[name].config(name=name, width=8, depth=1, **several)
    agent = make_agent(settings, make_facts(table))
    held = HeldOutSource(table, agent.sampler, seeds=(0,), batch_size=8, batches=1).at(
        0
    )
    batch = jax.tree.map(lambda x: x[0, 0], held.batches)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    values = jax.eval_shape(agent.action_values, state.params, batch, jax.random.key(0))
    assert (values.shape, values.dtype) == ((8,), np.float32)


def test_what_cannot_be_held_out_is_said_in_one_line(
    data: Store, rows: tuple[RowTable, RowTable], tmp_path: Path
) -> None:
    sampler = make_run(data, rows[0]).agent().sampler

    def obstacle(store: Store, **feed: int) -> str:
        found = find_obstacle(store, FeedConfig(**feed), sampler, discount=0.99)
        assert found is not None
        assert "\n" not in found
        return found

    assert find_obstacle(data, FeedConfig(), sampler, discount=0.99) is None
    without = Store(str(write_store(tmp_path / "without")))
    assert f"{tmp_path}/without has no split 'val'; files named *-val" in obstacle(
        without
    )
    short = Store(str(write_store(tmp_path / "short", val=((1,),))))
    assert "split 'val' of " in obstacle(short)
    assert "expected an episode of at least 2 rows" in obstacle(short)
    said = obstacle(data, memory_limit_bytes=1000)
    assert "feed.memory_limit_bytes is 1,000; raise it" in said


def test_the_command_goes_on_without(
    data: Store, rows: tuple[RowTable, RowTable], tmp_path: Path
) -> None:
    trainer = dataclasses.replace(CONFIG.trainer, **MEASURED)
    config = dataclasses.replace(CONFIG, trainer=trainer)
    run = dataclasses.replace(make_run(data, rows[0]), config=config)
    said = io.StringIO()
    console = Console(file=said, width=1000)
    output = dataclasses.replace(QUIET_OUTPUT, progress=console)
    found = training._load_held_out(run, data, output)
    assert found is not None
    assert found.fingerprint == rows[1].fingerprint
    without = Store(str(write_store(tmp_path / "without")))
    assert training._load_held_out(run, without, output) is None
    (line,) = said.getvalue().splitlines()
    assert line.startswith("warning: training goes on without validation: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validate_every": 7}, "validate_every: expected a multiple of"),
        ({"validate_every": 0}, "validate_every: expected a multiple of"),
        ({"validation_batches": 0}, "validation_batches: expected at least 1"),
    ],
)
def test_wrong_settings(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(CONFIG.trainer, **changes)
