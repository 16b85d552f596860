"""Rollouts: functions of seeds alone, counted exactly, and failing in one line."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.errors import UsageError
from trainer.errors import EvaluationError
from trainer.evaluation.environments import IDLE, Episode
from trainer.evaluation.rollouts import ActingRows, AgentActor, RolloutPool

LIMIT = 300
KWARGS = {
    "reward_task_id": 1,
    "add_noise_to_goal": False,
    "max_episode_steps": LIMIT,  # Shorter than usual, to save time.
}
PRE = TaskEnvironment("pointmaze-medium-v0", {**KWARGS, "success_timing": "pre"})
POST = TaskEnvironment("pointmaze-medium-v0", {**KWARGS, "success_timing": "post"})
ENVIRONMENTS = 3

# Centres of the cells from the start of task 1 to its goal, in metres.
_CELLS = [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (3, 4), (4, 4), (4, 5), (4, 6)]
PATH = 4.0 * np.array([*_CELLS, (5, 6), (6, 6)])[:, ::-1] - 4.0


def walk(
    observations: npt.NDArray[Any], episodes: npt.NDArray[Any], steps: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Walks to the goal, at a speed of the episode's own; every third one gives up."""
    nearest = np.linalg.norm(observations[:, None] - PATH, axis=-1).argmin(axis=1)
    target = PATH[np.minimum(nearest + 1, len(PATH) - 1)]
    direction = target - observations
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-6)
    speed = np.where(episodes % 3 == 2, 0.0, 1.0 - 0.1 * (episodes % 3))
    return (direction * speed[:, None])[:, None]


def play(pool: RolloutPool, episodes: int = 5, seed: int = 0) -> list[Episode]:
    return pool.roll_out(walk, episodes=episodes, seed=seed)


@pytest.fixture(scope="module")
def pool() -> Iterator[RolloutPool]:
    with RolloutPool(PRE, environments=ENVIRONMENTS, workers=2) as entered:
        yield entered


@pytest.fixture(scope="module")
def played(pool: RolloutPool) -> list[Episode]:
    return play(pool)


def test_exactly_the_episodes_asked_for(played: list[Episode]) -> None:
    assert [episode.index for episode in played] == list(range(5))
    # Long and short ones, solved and not: else the tests here would be empty.
    solved = [episode.success for episode in played]
    assert solved == [True, True, False, True, True]
    assert {episode.length for episode in played if not episode.success} == {LIMIT}
    assert len({episode.length for episode in played if episode.success}) >= 2


def test_every_episode_is_reported_once(pool: RolloutPool) -> None:
    seen: list[Episode] = []
    result = pool.roll_out(walk, episodes=4, seed=3, on_episode=seen.append)
    assert sorted(seen, key=lambda episode: episode.index) == result
    assert [episode.index for episode in result] == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_change_nothing(
    played: list[Episode], workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with RolloutPool(PRE, environments=ENVIRONMENTS, workers=workers) as other:
        assert play(other) == played
    # Workers have no display to miss, and say nothing.
    assert capfd.readouterr().err == ""


def test_used_environments_change_nothing(
    pool: RolloutPool, played: list[Episode]
) -> None:
    assert play(pool) == played
    assert play(pool, episodes=4) == played[:4]


def test_seeds_change_the_start(pool: RolloutPool) -> None:
    starts = []

    def note(
        observations: npt.NDArray[Any],
        episodes: npt.NDArray[Any],
        steps: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        for row, episode in enumerate(episodes):
            if episode != IDLE and steps[row] == 0:
                starts.append(tuple(observations[row]))
        return walk(observations, episodes, steps)

    pool.roll_out(note, episodes=2, seed=0)
    pool.roll_out(note, episodes=2, seed=1)
    pool.roll_out(note, episodes=2, seed=0)
    assert len(set(starts[:4])) == 4
    assert starts[:2] == starts[4:]


def test_success_timing_shifts_an_episode_by_one_step(
    pool: RolloutPool, played: list[Episode]
) -> None:
    assert pool.facts.success_timing == "pre"
    with RolloutPool(POST, environments=ENVIRONMENTS, workers=1) as other:
        assert other.facts.success_timing == "post"
        later = play(other, episodes=2)
    for before, after in zip(played[:2], later, strict=True):
        assert before.success
        assert after.success
        # "pre" sees the goal reached only in the step after; both are paid 0 there.
        assert before.length == after.length + 1
        assert before.total_reward == -(before.length - 1)
        assert after.total_reward == -(after.length - 1)


def test_chunks_run_open_loop_and_end_with_their_episode(
    pool: RolloutPool,
) -> None:
    asked = []

    def chunks(
        observations: npt.NDArray[Any],
        episodes: npt.NDArray[Any],
        steps: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        asked.append((episodes.copy(), steps.copy()))
        return np.repeat(walk(observations, episodes, steps), 7, axis=1)

    # Two rows at most are in an episode: when one must plan, the other need not.
    result = pool.roll_out(chunks, episodes=2, seed=0)
    assert {episode.length % 7 for episode in result} != {0}
    for episode in range(2):
        times = sorted(
            {int(s[e == episode][0]) for e, s in asked if (e == episode).any()}
        )
        planned = [time for time in times if time % 7 == 0]
        assert planned == list(range(0, result[episode].length, 7))
    again = pool.roll_out(chunks, episodes=5, seed=0)
    assert again[:2] == result  # What an earlier episode left planned is gone.


def test_agents_act_with_keys_of_seed_episode_and_step() -> None:
    class Noise:
        chunk = 1

        def act(self, params: Any, observation: Any, key: jax.Array) -> jax.Array:
            return params * jax.random.normal(key, (1, 2)) + observation[None]

    agent: Any = Noise()
    actor = AgentActor(agent)
    observations = np.arange(6, dtype=np.float32).reshape(3, 2)
    episodes, steps = np.array([4, IDLE, 1]), np.array([0, 0, 9])
    params: Any = 2.0
    actions = np.asarray(actor.make_policy(params, 5)(observations, episodes, steps))
    assert actions.shape == (3, 1, 2)
    for row in (0, 2):
        key = jax.random.fold_in(jax.random.key(5), int(episodes[row]))
        key = jax.random.fold_in(key, int(steps[row]))
        expected = 2 * np.asarray(jax.random.normal(key, (1, 2))) + observations[row]
        np.testing.assert_allclose(actions[row], expected, rtol=1e-6)


def test_an_environment_that_cannot_be_made_is_one_error() -> None:
    before = set(multiprocessing.active_children())
    spec = TaskEnvironment("pointmaze-nowhere-v0")
    with (
        pytest.raises(UsageError, match=r"pointmaze-nowhere-v0: .*--environment MODUL"),
        RolloutPool(spec, workers=2),
    ):
        pass
    assert set(multiprocessing.active_children()) == before


def test_a_dying_worker_is_one_error() -> None:
    before = {child.pid for child in multiprocessing.active_children()}

    def kill(
        observations: npt.NDArray[Any],
        episodes: npt.NDArray[Any],
        steps: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in before:
                os.kill(child.pid, signal.SIGKILL)
        return walk(observations, episodes, steps)

    with (
        RolloutPool(PRE, environments=1, workers=1) as own,
        pytest.raises(EvaluationError, match=r"worker 0: .*exit code -9"),
    ):
        own.roll_out(kill, episodes=1, seed=0)
    assert {child.pid for child in multiprocessing.active_children()} == before


def test_actions_that_are_not_finite_are_refused() -> None:
    def diverged(
        observations: npt.NDArray[Any],
        episodes: npt.NDArray[Any],
        steps: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        return np.where(steps[:, None, None] == 2, np.nan, 0.0) + np.zeros((1, 1, 2))

    with (
        RolloutPool(PRE, environments=1, workers=1) as own,
        pytest.raises(EvaluationError, match=r"episode 0, step 2: .*finite"),
    ):
        own.roll_out(diverged, episodes=1, seed=0)


def test_observations_that_are_not_finite_are_no_fault_of_the_policy() -> None:
    rows = ActingRows(2, 3)
    seen = np.array([[0, 1, 2], [0, np.nan, 2]], np.float32)
    rows.update(np.arange(2), seen, [4, 5])
    with pytest.raises(
        EvaluationError, match=r"episode 5, step 0: .*got nan as observations\[1\]"
    ):
        rows.next_actions(lambda observations, *_: observations[:, None])


@pytest.mark.parametrize(
    ("name", "value"), [("environments", 0), ("workers", 0), ("workers", -1)]
)
def test_numbers_out_of_range(name: str, value: int) -> None:
    numbers = {"environments": 1, "workers": 1} | {name: value}
    with pytest.raises(ValueError, match=f"{name}: expected at least 1, got {value}"):
        RolloutPool(PRE, **numbers)


def test_episodes_out_of_range(pool: RolloutPool) -> None:
    with pytest.raises(ValueError, match="episodes: expected at least 1, got 0"):
        play(pool, episodes=0)
    with pytest.raises(ValueError, match="seed: expected 0"):
        play(pool, seed=-1)


def test_workers_import_neither_jax_nor_more_than_they_need() -> None:
    code = (
        "import sys, trainer.evaluation.environments, trainer.subgoals.painter; "
        "print(sorted({'jax', 'ogbench', 'gymnasium', 'mujoco'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cube-single", "scene", "puzzle-3x3", "antmaze-large"]
)
def test_other_environments_are_functions_of_seeds_too(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = TaskEnvironment(f"{name}-singletask-task1-v0")

    def wild(
        observations: npt.NDArray[Any],
        episodes: npt.NDArray[Any],
        steps: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        width = 8 if name == "antmaze-large" else 5
        return np.sin(100 * observations.sum(axis=1)[:, None, None] + np.arange(width))

    results = []
    for workers in (1, 2):
        with RolloutPool(spec, environments=2, workers=workers) as own:
            results.append(own.roll_out(wild, episodes=3, seed=0))
    assert results[0] == results[1]
    assert capfd.readouterr().err == ""
