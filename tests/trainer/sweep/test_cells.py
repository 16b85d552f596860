"""Cells of a sweep: the grid, the progress of each cell, and mistakes in the file."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from pipeline import front_door
from pipeline.domains.datasets import TASKS, TaskEnvironment
from tests.trainer.sweep.made_up_cells import (
    cells_of,
    commit,
    evaluate,
    made_up_evaluation,
)
from trainer import errors
from trainer.agents.registry import AGENTS
from trainer.cli import PROGRAM
from trainer.commands.arguments import read_environment
from trainer.commands.evaluate import Evaluate
from trainer.commands.train import Train
from trainer.report.paper import paper_datasets
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import (
    METRICS_FILE,
)
from trainer.runs.names import find_method
from trainer.sweep.cells import make_cells, read_sweep
from trainer.sweep.states import read_logged_step, read_state


def test_cells_are_the_grid_with_every_setting_resolved(sweep: Path) -> None:
    cells = cells_of(sweep)
    name = "pointmaze-medium-navigate"
    assert [cell.name for cell in cells] == [
        f"{name}-{task}-{method}-{seeds}"
        for task in (1, 3)
        for method in ("vast", "fql")
        for seeds in ("seeds-0-1", "seed-2")
    ]
    vast, _, fql, last = cells[:4]
    assert vast.config.agent.composed_gradient is False
    assert (vast.config.agent.width, vast.config.trainer.batch_size) == (4, 8)
    assert (fql.config.agent.width, fql.config.trainer.batch_size) == (4, 16)
    assert (fql.config.agent.name, fql.config.agent.alpha) == ("fql", 3.0)
    assert (list(fql.seeds), list(last.seeds)) == ([0, 1], [2])
    assert fql.evaluated_steps == (10, 20)
    given = " ".join(vast.train_arguments)
    assert f"--store {sweep.parent}/{name} --task 1 --agent vast" in given
    assert "--agent.no-composed-gradient --agent.temperature 0.5" in given
    assert "--trainer.seed 0 --trainer.seeds 2" in given


def test_slashes_of_names_make_no_folders(tmp_path: Path) -> None:
    name = "D4RL/door/human-v2"  # As Minari names its data sets.
    path = tmp_path / "sweep.toml"
    text = f"""
out = "{tmp_path}/runs"
tasks = [1]
datasets = ["{name}"]
[methods.cloning]
agent = "iql"
"""
    path.write_text(text)
    (cell,) = cells_of(path)
    assert cell.folder.path == tmp_path / "runs/D4RL-door-human-v2-1-cloning-seed-0"
    assert cell.store == f"stores/{name}"
    found = find_method(cell.folder.name, dataset=name, task=1, seeds=range(1))
    assert found == "cloning"
    path.write_text(text.replace(f'"{name}"', f'"{name}", "D4RL/door-human-v2"'))
    with pytest.raises(errors.ConfigError, match="datasets: expected each value once"):
        cells_of(path)


def test_a_cell_is_finished_when_trained_and_evaluated_to_the_end(sweep: Path) -> None:
    cell = cells_of(sweep)[0]
    assert str(read_state(cell)) == "new"
    commit(cell)
    assert str(read_state(cell)) == "at step 0"
    (cell.folder.checkpoints / "10").mkdir(parents=True)
    (cell.folder.checkpoints / "20.orbax-checkpoint-tmp").mkdir()
    assert str(read_state(cell)) == "at step 10"
    (cell.folder.checkpoints / "20").mkdir()
    assert str(read_state(cell)) == "trained; to evaluate: 10, 20"
    evaluate(cell, [10])
    # Evaluations with fewer episodes than the sweep asks for do not count.
    evaluate(cell, [20], episodes=1)
    assert str(read_state(cell)) == "trained; to evaluate: 20"
    evaluate(cell, [20])
    assert read_state(cell).stage == "finished"
    # Checkpoints of a cell that is evaluated take room that others need.
    shutil.rmtree(cell.folder.checkpoints)
    assert read_state(cell).stage == "finished"


def test_cells_are_evaluated_in_an_environment_of_ones_own(sweep: Path) -> None:
    environment = 'environment = "walk:Walk-v0"\n'
    arguments = 'environment_arguments = {size = 3, kind = "7"}\n'
    text = sweep.read_text()
    sweep.write_text(environment + arguments + text)
    cell = cells_of(sweep, only="*-1-vast-seed-2")[0]
    asked = TaskEnvironment("Walk-v0", {"size": 3, "kind": "7"}, "walk")
    assert cell.environment == asked
    commands = (
        (cell.train_arguments, Train),
        (cell.make_evaluate_arguments((10,)), Evaluate),
    )
    for words, kind in commands:
        command, more = front_door.parse(PROGRAM, words)
        assert isinstance(command, kind)
        assert command.environment == "walk:Walk-v0"
        assert read_environment(command.environment, command.environment_arguments) == (
            asked
        )
        if kind is Train:
            assert more[-2:] == ["--trainer.seeds", "1"]
    # Evaluations in the store's own environment do not count for the one asked for.
    commit(cell)
    for step in (10, 20):
        (cell.folder.checkpoints / f"{step}").mkdir(parents=True)
    evaluate(cell, [10, 20])
    assert read_state(cell).missing == (10, 20)
    (seed,) = cell.seeds
    for step, played in ((10, {"size": 3, "kind": "7"}), (20, {"size": 4})):
        evaluation = made_up_evaluation(step, seed, (0, 0), task=cell.task)
        append_evaluation(
            cell.folder,
            dataclasses.replace(
                evaluation, environment_id="Walk-v0", environment_arguments=played
            ),
        )
    assert read_state(cell).missing == (20,)
    sweep.write_text(arguments + text)
    with pytest.raises(errors.ConfigError, match="expected `environment` beside it"):
        cells_of(sweep)


def test_configurations_are_looked_for_here_then_among_those_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(
        'out = "out"\ndatasets = ["cube-single-play", "own"]\ntasks = [1]\n'
        "[methods.vast]\n[methods.iql]\n"
    )
    shipped, baseline, *own = cells_of(Path("own.toml"))
    assert (shipped.file, shipped.config.agent.name) == ("cube-single-play", "vast")
    assert baseline.config.agent.name == "iql"
    # No file has settings for this data set: the method's defaults are taken.
    assert [cell.file for cell in own] == [None, None]
    assert [cell.config.agent.name for cell in own] == ["vast", "iql"]
    command, _ = front_door.parse(PROGRAM, own[1].train_arguments)
    assert isinstance(command, Train)
    assert (command.config, command.store) == (None, "stores/own")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/own.toml").write_text(
        'dataset = "own"\n[agent]\nname = "iql"\nwidth = 8\n'
    )
    (cell,) = cells_of(Path("own.toml"), only="own-1-iql*")
    assert (cell.file, cell.config.agent.width) == ("configs/own.toml", 8)
    # Sweeps are found in the same way.
    assert set(read_sweep(Path("table-1")).datasets) == set(paper_datasets())
    assert len(cells_of(Path("cpu-evidence"))) == 10
    with pytest.raises(errors.ConfigError, match="shipped: cpu-evidence, pointmaze"):
        read_sweep(Path("table-2"))


def test_progress_is_read_from_the_last_whole_record(sweep: Path) -> None:
    cell = cells_of(sweep)[0]
    assert read_logged_step(cell) == 0
    cell.folder.path.mkdir(parents=True)
    file = cell.folder.path / METRICS_FILE
    file.write_text('{"step": 5, "loss": 1}\n' * 9000 + '{"step": 10}\n{"step": 15')
    assert read_logged_step(cell) == 10


def test_mistakes(sweep: Path) -> None:
    text = sweep.read_text()

    def refused(before: str, after: str) -> str:
        assert before in text
        sweep.write_text(text.replace(before, after))
        with pytest.raises(errors.ConfigError) as caught:
            cells_of(sweep)
        return str(caught.value)

    assert "datasets: expected at least one" in refused(
        '["pointmaze-medium-navigate"]', "[]"
    )
    assert "expected the configuration of cube-single-play, got one of" in refused(
        '["pointmaze-medium-navigate"]', '["cube-single-play"]'
    )
    assert "did you mean 'agent.width'" in refused("agent.width", "agent.widht")
    assert "--agent: expected one of" in refused("methods.fql", "methods.fpl")
    assert "expected numbers from 1, got (1, 0)" in refused("[1, 3]", "[1, 0]")
    assert "4 checkpoints are to be evaluated and 3 kept" in refused(
        "[evaluation]\nepisodes = 2\ncheckpoints = 2",
        "overrides.trainer.checkpoint_every = 5\n[evaluation]\ncheckpoints = 4",
    )
    assert "seeds_per_run: expected at least 1" in refused(
        "seeds_per_run = 2", "seeds_per_run = 0"
    )
    assert "seedz" in refused("seeds = 3", "seedz = 3")
    assert "evaluation.seed: expected 0 to 2**32 - 1, got -1" in refused(
        "[evaluation]", "[evaluation]\nseed = -1"
    )
    sweep.write_text(text)
    with pytest.raises(errors.ConfigError, match=r"pattern of some .* got 'x\*'; the"):
        cells_of(sweep, only="x*")
    with pytest.raises(errors.ConfigError, match="no such sweep"):
        read_sweep(sweep.parent / "nothing.toml")


def test_shipped_sweeps() -> None:
    table = read_sweep(Path("configs/sweeps/table-1.toml"))
    assert table.tasks == TASKS
    assert set(table.datasets) == set(paper_datasets())
    cells = make_cells(dataclasses.replace(table, tasks=(4,)))
    assert len(cells) == 10 * 9
    assert {cell.config.agent.name for cell in cells} == AGENTS.keys()
    assert {cell.config.trainer.steps for cell in cells} == {1_000_000}
    assert {cell.seeds for cell in cells} == {range(8)}
    evidence = cells_of(Path("configs/sweeps/cpu-evidence.toml"))
    equal = {
        (
            cell.config.agent.width,
            cell.config.agent.state_scaling,
            cell.config.agent.learning_rate,
            cell.config.agent.ema_decay,
            cell.config.trainer.batch_size,
        )
        for cell in evidence
    }
    assert equal == {(128, "standard", 1e-3, 0.9995, 256)}  # Equal for all methods.
    steps = tuple(range(10_000, 200_001, 10_000))
    assert {cell.evaluated_steps for cell in evidence} == {steps}
    maze = cells_of(Path("configs/sweeps/pointmaze.toml"))
    assert len(maze) == 5 * 6
    trained = {
        (cell.config.agent.width, cell.config.agent.discount, cell.config.trainer.steps)
        for cell in maze
    }
    assert trained == {(64, 0.99, 10_000)}  # Equal for all methods.


def test_home_in_a_sweep_is_that_of_its_reader(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sweep.read_text()
    here = str(sweep.parent)
    assert f'out = "{here}' in text
    monkeypatch.setenv("HOME", here)
    sweep.write_text(text.replace(f'"{here}/', '"~/'))
    assert "~/" in sweep.read_text()
    before, after = text, sweep.read_text()
    assert before != after
    found = read_sweep(sweep)
    assert all(here in path for path in (found.out, found.store))
    assert not any("~" in path for path in (found.out, found.store, found.config))
