"""Evaluating a trained run, from its folder to its record."""

import dataclasses
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Task
from tests.runs import LIMIT, FakeTrainer, make_run
from trainer.agents.fql_config import FQLConfig
from trainer.config import TrackingConfig
from trainer.errors import ConfigError
from trainer.evaluation import evaluator
from trainer.evaluation.evaluate import evaluate_run
from trainer.evaluation.evaluator import find_task_environment
from trainer.evaluation.rollouts import AgentActor, RolloutPool
from trainer.runs.evaluations import (
    Evaluation,
    EvaluationSettings,
    append_evaluation,
    read_evaluations,
)
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.run import Run, read_run, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds with checkpoints of untrained nets at steps 10 and 20."""
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    trainer = FakeTrainer(folder)
    for step in (10, 20):
        trainer.commit(step)
    trainer.close()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def evaluate(run: Path, **options: object) -> tuple[list[Evaluation], str]:
    """Evaluates two episodes in one process; also what was shown."""
    shown = io.StringIO()
    settings = EvaluationSettings(episodes=2, workers=1, environments=2)
    names = {field.name for field in dataclasses.fields(settings)}
    changed = {name: options.pop(name) for name in names & options.keys()}
    evaluations = evaluate_run(
        RunFolder.open(run),
        dataclasses.replace(settings, **changed),
        console=Console(file=shown, width=200),
        **options,  # type: ignore[arg-type]
    )
    return evaluations, shown.getvalue()


def test_the_latest_checkpoint_of_every_seed(run: Path) -> None:
    evaluations, shown = evaluate(run, seed=7)
    assert [(each.step, each.seed) for each in evaluations] == [(20, 3), (20, 4)]
    for each in evaluations:
        assert each.evaluation_seed == 7
        assert (each.task, each.environment_id) == (1, "pointmaze-medium-v0")
        assert each.episodes == len(each.successes) == len(each.returns) == 2
        assert all(1 <= length <= LIMIT for length in each.lengths)
        assert (each.success_timing, each.store_success_timing) == ("pre", "pre")
        assert each.ogbench
        assert each.mujoco
    assert "step 20, seed 4: 0 % success (95 % interval 0 to 66 %) of 2 episod" in shown
    assert "warning" not in shown
    # One line each, of the names that other programs may read.
    lines = [
        json.loads(line) for line in (run / EVALUATIONS_FILE).read_text().splitlines()
    ]
    assert [line["seed"] for line in lines] == [3, 4]
    assert set(lines[0]) >= {
        *("step", "seed", "evaluation_seed", "task", "environment_id", "episodes"),
        *("successes", "returns", "lengths", "success_timing", "ogbench", "mujoco"),
        "duration_s",
    }
    assert read_evaluations(RunFolder.open(run)) == evaluations


PENDULUM = dataclasses.replace(
    make_run(),
    task=Task(1, "stored", "Pendulum-v1", "stored"),
    facts=dataclasses.replace(
        make_run().facts,
        observation_dim=3,
        action_dim=1,
        observation_mean=(0.0,) * 3,
        observation_std=(1.0,) * 3,
    ),
)


def test_what_wandb_does_not_take_is_said_and_recorded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.open(run)
    there = read_run(folder)
    tracking = TrackingConfig(tensorboard=False, wandb="offline")
    config = dataclasses.replace(there.config, tracking=tracking)
    write_run(folder, dataclasses.replace(there, config=config))
    monkeypatch.setitem(sys.modules, "wandb", None)
    evaluations, shown = evaluate(run)
    assert shown.count("an evaluation is in evaluations.jsonl alone") == 2
    assert "pip install 'vast-rl[wandb]'" in shown
    assert read_evaluations(folder) == evaluations
    assert len(evaluations) == 2


@pytest.mark.parametrize("bounds", [None, 2.0])
def test_an_environment_without_success_gives_returns_and_lengths(
    tmp_path: Path, bounds: float | None
) -> None:
    scale = None if bounds is None else ActionScale((-bounds,), (bounds,))
    trainer = FakeTrainer(
        tmp_path / "run", run=dataclasses.replace(PENDULUM, action_scale=scale)
    )
    trainer.commit(20)
    trainer.close()
    evaluations, shown = evaluate(tmp_path / "run")
    assert [each.successes for each in evaluations] == [None, None]
    assert all(each.success_rate is None for each in evaluations)
    assert all(each.lengths == (200, 200) for each in evaluations)
    assert all(max(each.returns) < -100 for each in evaluations)
    assert "200 steps on average of 2 episodes; success not reported" in shown
    # Its torque is of [-2, 2]: half of it is out of reach unless the data were scaled.
    warning = "Pendulum-v1 takes actions[0] from -2 to 2, and policies trained on"
    assert (warning in shown) == (scale is None)
    lines = (tmp_path / "run" / EVALUATIONS_FILE).read_text().splitlines()
    assert [json.loads(line)["successes"] for line in lines] == [None, None]
    assert read_evaluations(RunFolder.open(tmp_path / "run")) == evaluations


def test_actions_are_scaled_back_when_acting() -> None:
    spec = TaskEnvironment("Pendulum-v1")

    def push(observations: Any, episodes: Any, steps: Any) -> Any:
        return np.ones((len(observations), 1, 1))

    totals = []
    for scale in (None, ActionScale((-2.0,), (1.0,)), ActionScale((-2.0,), (2.0,))):
        with RolloutPool(spec, environments=1, workers=1, action_scale=scale) as pool:
            totals.append(pool.roll_out(push, episodes=1, seed=0)[0].total_reward)
    assert totals[0] == totals[1] != totals[2]


def test_all_checkpoints_and_repeating_them(run: Path) -> None:
    first, _ = evaluate(run, steps="all")
    assert [each.step for each in first] == [10, 10, 20, 20]
    again, _ = evaluate(run, steps=[10], again=True)
    assert len((run / EVALUATIONS_FILE).read_text().splitlines()) == 6
    read = read_evaluations(RunFolder.open(run))
    assert read == [*again, *first[2:]]  # The last line of its kind counts.
    for before, after in zip(first[:2], again, strict=True):
        assert dataclasses.replace(before, duration_s=0.0) == dataclasses.replace(
            after, duration_s=0.0
        )


def test_another_task_is_labelled(run: Path) -> None:
    evaluations, shown = evaluate(run, tasks=(1, 3))
    assert [(each.task, each.seed) for each in evaluations] == [
        *((1, 3), (1, 4), (3, 3), (3, 4))
    ]
    assert "step 20, seed 3: " in shown
    assert "step 20, seed 3, task 3 (trained for 1): " in shown


def test_another_number_of_candidates_acts_otherwise_and_is_recorded_so(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def make_actor(agent: Any) -> AgentActor:
        drawn.append(agent.config.candidates)
        return AgentActor(agent)

    monkeypatch.setattr(evaluator, "AgentActor", make_actor)
    own, _ = evaluate(run)
    fewer, shown = evaluate(run, candidates=1)
    assert drawn == [4, 1]
    assert [each.candidates for each in own] == [None, None]
    assert [each.candidates for each in fewer] == [1, 1]
    assert "step 20, seed 3, 1 candidate: " in shown
    # Each is a result of its own; what is played already is not played again.
    assert read_evaluations(RunFolder.open(run)) == sorted(
        [*own, *fewer], key=lambda each: (each.seed, each.candidates or 0)
    )
    again, shown = evaluate(run, candidates=1)
    assert again == fewer
    assert "evaluated already: step 20" in shown
    # As many as the run's own are the run's own.
    same, shown = evaluate(run, candidates=4)
    assert same == own
    assert "evaluated already: step 20" in shown


def test_candidates_of_agents_that_draw_none_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="candidates: expected at least 1, got 0"):
        evaluate(run, candidates=0)
    meta = read_run(RunFolder.open(run))
    config = dataclasses.replace(meta.config, agent=FQLConfig(width=8))
    write_run(RunFolder.open(run), dataclasses.replace(meta, config=config))
    with pytest.raises(UsageError, match="expected none for fql, which draws one"):
        evaluate(run, candidates=2)
    assert not (run / EVALUATIONS_FILE).exists()


def test_the_environment_of_another_task() -> None:
    run = make_run()
    kwargs = run.task.environment_kwargs
    assert find_task_environment(run, 1) == TaskEnvironment(
        "pointmaze-medium-v0", kwargs
    )
    assert find_task_environment(run, 4).kwargs == {**kwargs, "reward_task_id": 4}
    # OGBench would play its default task, which is recorded by its own number.
    with pytest.raises(UsageError, match="--tasks: expected numbers from 1, got 0"):
        find_task_environment(run, 0)

    def arm(environment_id: str) -> Run:
        task = dataclasses.replace(
            run.task, environment_id=environment_id, environment_kwargs={}
        )
        return dataclasses.replace(run, task=task)

    cube = arm("cube-single-singletask-task1-v0")
    assert find_task_environment(cube, 5) == TaskEnvironment(
        "cube-single-singletask-task5-v0"
    )
    other = arm("walker-v2")
    assert find_task_environment(other, 1) == TaskEnvironment("walker-v2")
    with pytest.raises(DataFormatError, match="this run in its own task 1 only"):
        find_task_environment(other, 2)


def test_a_step_without_checkpoint_is_refused(run: Path) -> None:
    with pytest.raises(
        DataFormatError, match=r"expected steps of \[10, 20\], got \[15"
    ):
        evaluate(run, steps=[15, 20])
    assert not (run / EVALUATIONS_FILE).exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFormatError, match="expected the folder of a run"):
        evaluate(tmp_path)


def test_a_run_without_checkpoints_is_refused(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataFormatError, match="expected checkpoints"):
        evaluate(run)


def test_another_success_timing_is_said_and_recorded(run: Path) -> None:
    meta = read_run(RunFolder.open(run))
    kwargs = {**meta.task.environment_kwargs, "success_timing": "post"}
    task = dataclasses.replace(meta.task, environment_kwargs=kwargs)
    write_run(RunFolder.open(run), dataclasses.replace(meta, task=task))
    evaluations, shown = evaluate(run)
    assert len([line for line in shown.splitlines() if "warning" in line]) == 1
    assert "('post'), and the rewards trained on are labelled" in shown
    assert {each.success_timing for each in evaluations} == {"post"}
    assert {each.store_success_timing for each in evaluations} == {"pre"}


def test_an_environment_of_another_shape_is_refused(run: Path) -> None:
    meta = read_run(RunFolder.open(run))
    facts = dataclasses.replace(meta.facts, observation_dim=5)
    write_run(RunFolder.open(run), dataclasses.replace(meta, facts=facts))
    with pytest.raises(
        DataFormatError, match=r"expected observations of 5 num.* got 2"
    ):
        evaluate(run)


def test_a_half_written_line_is_replaced(run: Path) -> None:
    evaluation = Evaluation(
        1, 0, 0, 1, "x", 1, (1,), (0.0,), (3,), "pre", "pre", 1, "1", "2", 0.5
    )
    append_evaluation(RunFolder.open(run), evaluation)
    with (run / EVALUATIONS_FILE).open("a") as file:
        file.write('{"step": 2, "se')
    assert read_evaluations(RunFolder.open(run)) == [evaluation]
    later = dataclasses.replace(evaluation, step=2)
    append_evaluation(RunFolder.open(run), later)
    assert read_evaluations(RunFolder.open(run)) == [evaluation, later]


def test_a_line_that_is_no_evaluation_is_named(run: Path) -> None:
    (run / EVALUATIONS_FILE).write_text('{"step": 1}\n')
    with pytest.raises(DataFormatError, match=r"evaluations.jsonl, line 1: "):
        read_evaluations(RunFolder.open(run))


def test_what_is_there_is_not_played_again(run: Path) -> None:
    first, shown = evaluate(run, steps=[20])
    assert "already" not in shown
    lines = (run / EVALUATIONS_FILE).read_text().splitlines()
    # Of one seed alone something is missing.
    (run / EVALUATIONS_FILE).write_text(lines[0] + "\n")
    second, shown = evaluate(run, steps=[20])
    assert [(each.step, each.seed) for each in second] == [(20, 3), (20, 4)]
    assert second[0] == first[0]
    assert "seed 3" not in shown
    assert "seed 4: " in shown
    everything, shown = evaluate(run, steps="all")
    assert "evaluated already: step 20; --again plays it anew" in shown
    assert [each.step for each in everything] == [10, 10, 20, 20]
    assert everything[2:] == second
    before = (run / EVALUATIONS_FILE).read_text()
    assert evaluate(run, steps="all")[0] == everything
    assert (run / EVALUATIONS_FILE).read_text() == before
    # Other episodes are others.
    evaluate(run, steps=[20], seed=1)
    assert len(read_evaluations(RunFolder.open(run))) == 6
