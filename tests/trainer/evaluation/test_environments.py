import types
from typing import Any

import gymnasium
import numpy as np
import pytest

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.errors import UsageError
from trainer.evaluation import environments
from trainer.evaluation.environments import (
    Episode,
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
    monkeypatch.setattr(environments, "make_named_environment", lambda spec: endless)
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


class Goals(gymnasium.Env[Any, Any]):
    """Observes dictionaries, takes actions in [-2, 2] and says what it is told to."""

    def __init__(self, **info: Any) -> None:
        box = gymnasium.spaces.Box(-9, 9, (2,))
        inner = gymnasium.spaces.Dict({"z": box, "a": gymnasium.spaces.Discrete(3)})
        self.observation_space = gymnasium.spaces.Dict({"xy": box, "goal": inner})
        self.action_space = gymnasium.spaces.Box(-2, 2, (1,))
        self.taken: list[Any] = []
        self.info = info

    def _observe(self) -> Any:
        goal = {"z": np.array([3.0, 4.0]), "a": 2}
        return {"xy": np.array([5.0, 6.0]), "goal": goal}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action.tolist())
        return self._observe(), -1.5, len(self.taken) == 3, False, self.info


def test_dictionaries_are_observed_in_the_order_of_their_names() -> None:
    made = Goals()
    facts = read_facts(made)
    assert facts.spaces.observation.size == 5
    assert facts.spaces.observation.layout == "goal/a[1], goal/z[2], xy[2]"
    taken = facts.spaces.action
    assert (taken.low, taken.high) == ((-2.0,), (2.0,))
    environment = EpisodeEnvironment(made, 0, [0])
    # goal/a, goal/z, xy
    assert environment.observation.tolist() == [2, 3, 4, 5, 6]
    environment.step(np.zeros(1, np.float32))
    assert environment.observation.tolist() == [2, 3, 4, 5, 6]
    assert environment.observation.dtype == np.float32


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({}, None),
        ({"success": None}, None),
        ({"success": 1.0}, True),
        ({"success": None, "is_success": True}, True),
        ({"is_success": 0.0}, False),
        ({"success": False, "is_success": True}, False),
    ],
)
def test_success_is_what_an_environment_says_of_it(
    info: dict[str, Any], success: bool | None
) -> None:
    environment = EpisodeEnvironment(Goals(**info), 0, [7])
    ends = [environment.step(np.full(1, 3.0, np.float32)) for _ in range(3)]
    assert ends[:2] == [None, None]
    assert ends[2] == Episode(7, success, -4.5, 3)


@pytest.mark.parametrize(
    ("space", "shape"),
    [("action_space", None), ("action_space", (2, 2)), ("observation_space", None)],
)
def test_what_no_policy_can_act_in_is_refused(space: str, shape: Any) -> None:
    made = Goals()
    read_facts(made)
    spaces = gymnasium.spaces
    odd = spaces.Text(3) if shape is None else spaces.Box(-1, 1, shape)
    setattr(made, space, odd)
    with pytest.raises(UsageError, match="expected"):
        read_facts(made)


def test_an_arm_is_in_no_maze() -> None:
    arm = types.SimpleNamespace(
        observation_space=types.SimpleNamespace(shape=(3,)),
        action_space=types.SimpleNamespace(shape=(2,), low=-1.0, high=1.0),
        unwrapped=types.SimpleNamespace(),
    )
    assert read_facts(arm).maze is None
