import types
from typing import Any

import numpy as np
import pytest

from pipeline.domains.datasets import TaskEnvironment
from trainer.evaluation import environments
from trainer.evaluation.environments import (
    EpisodeEnvironment,
    make_task_environment,
    read_facts,
)


class Recorder:
    """An environment that keeps the seeds it is given, and ends at every step."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.space_seeds: list[int] = []
        self.observation_space = types.SimpleNamespace(shape=(1,))
        self.action_space = types.SimpleNamespace(
            low=-1.0, high=1.0, seed=self.space_seeds.append
        )

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1), 0.0, True, False, {"success": True}


def seeds(evaluation_seed: int, episodes: list[int]) -> list[int]:
    recorder = Recorder()
    environment = EpisodeEnvironment(recorder, evaluation_seed, episodes)
    for _ in episodes:
        environment.step(np.zeros(1, np.float32))
    assert recorder.space_seeds == recorder.seeds
    return recorder.seeds


def test_seeds_of_episodes_are_pinned_and_apart() -> None:
    # Changing them changes every evaluation.
    assert seeds(0, [0, 1]) == [1484405855, 1982462498]
    assert seeds(1, [0]) == [917752063]
    found = {seed for base in range(20) for seed in seeds(base, list(range(100)))}
    assert len(found) == 2000
    assert max(found) < 2**31


def test_an_environment_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = types.SimpleNamespace(
        unwrapped=Recorder(), spec=types.SimpleNamespace(max_episode_steps=None)
    )
    monkeypatch.setattr(
        environments, "make_wrapped_environment", lambda name, **_: endless
    )
    with pytest.raises(ValueError, match="walker-v0: expected an environment with a t"):
        make_task_environment(TaskEnvironment("walker-v0"))


def test_a_maze_says_where_its_walls_are() -> None:
    made = make_task_environment(
        TaskEnvironment("pointmaze-medium-v0", {"reward_task_id": 1})
    )
    maze = read_facts(made).maze
    assert maze is not None
    assert (len(maze.walls), len(maze.walls[0])) == (8, 8)
    # Of every task start and goal lie in the middle of a free cell, 4 m wide.
    for task in made.unwrapped.task_infos:
        for place in (task["init_xy"], task["goal_xy"]):
            column, row = (
                (at - start) / maze.unit_m
                for at, start in zip(place, maze.origin_m, strict=True)
            )
            assert (row, column) == (int(row), int(column))
            assert not maze.walls[int(row)][int(column)]
    assert maze.walls[0] == (True,) * 8


def test_an_arm_is_in_no_maze() -> None:
    arm = types.SimpleNamespace(
        observation_space=types.SimpleNamespace(shape=(3,)),
        action_space=types.SimpleNamespace(shape=(2,)),
        unwrapped=types.SimpleNamespace(),
    )
    assert read_facts(arm).maze is None
