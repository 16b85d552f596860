import functools
import json
import tempfile

import numpy as np
import pytest
from ogbench.relabel_utils import relabel_dataset

from pipeline.assembly.labels import label_episodes
from pipeline.domains.datasets import TASKS, find_environment, parse_dataset
from pipeline.domains.environments import make_environment, seed_numpy
from pipeline.domains.goals import read_tasks, relabel_tasks
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Task

FAST = (
    "cube-double-play",
    "scene-play",
    "puzzle-3x3-play",
    "antmaze-medium-navigate",
    "pointmaze-medium-navigate",
)
# Making the five single-task environments of each takes 5 to 15 s, hence only two of
# them for the environments above, unless slow tests run.
SLOW = (
    "cube-single-play",
    "cube-triple-play",
    "cube-quadruple-play",
    "cube-octuple-play",
    "puzzle-4x4-play",
    "puzzle-4x5-play",
    "puzzle-4x6-play",
    "antmaze-large-navigate",
    "antmaze-giant-navigate",
    "antmaze-teleport-navigate",
    "pointmaze-large-navigate",
    "pointmaze-giant-navigate",
    "pointmaze-teleport-navigate",
)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
every_environment = pytest.mark.parametrize(
    ("dataset", "checked"),
    [(name, (2, 5)) for name in FAST] + [slow(name, TASKS) for name in (*FAST, *SLOW)],
)


@functools.cache
def tasks_of(dataset):
    return read_tasks(parse_dataset(dataset))


# OGBench's environments state their bounds in float64 and keep float32.
quiet = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


@functools.cache
def single_task_environment(dataset, task):
    there = parse_dataset(dataset).task_environment(task)
    environment = make_environment(there.environment_id, **there.kwargs)
    with seed_numpy(task):
        environment.reset(seed=task)
    return environment


# Distances from a target in units of the tolerance.
CLEAR = (0.0, 0.0, 0.3, 0.6, 0.9, 3.0)
VERGE = (1.0, np.nextafter(1.0, 0), np.nextafter(1.0, 2), 1 + 1e-7)


def states_around(tasks, rows, dtype, distances=(*CLEAR, *CLEAR, *VERGE), usual=None):
    """Physics states with each part of a task's goal met, missed, or on the verge.

    Row ``t`` is about task ``t % len(tasks)``. What goals do not speak of is as in
    the qpos ``usual``, or anything.
    """
    generator = np.random.default_rng(7)
    environment = find_environment(tasks[0].environment_id)
    qpos = generator.normal(size=(rows, environment.qpos_width))
    if usual is not None:
        qpos[:] = usual
    buttons = np.zeros((rows, environment.button_count), np.int64)

    def offset(axes, tolerance):
        direction = generator.normal(size=axes)
        distance = generator.choice(distances)
        return direction / np.linalg.norm(direction) * distance * tolerance

    for row in range(rows):
        goal = tasks[row % len(tasks)].goal
        if "xy" in goal:
            qpos[row, :2] = goal["xy"] + offset(2, goal["tolerance"])
        for cube, xyz in enumerate(goal.get("cube_xyzs", [])):
            start = 14 + 7 * cube
            qpos[row, start : start + 3] = xyz + offset(3, 0.04)
        if "drawer" in goal:
            qpos[row, -2] = goal["drawer"] + offset(1, 0.04)[0]
            qpos[row, -1] = goal["window"] + offset(1, 0.04)[0]
        if "button_states" in goal:
            flipped = generator.random(environment.button_count) < 0.1
            buttons[row] = np.array(goal["button_states"]) ^ flipped
    physics = {"qpos": qpos.astype(dtype)}
    if environment.button_count:
        physics["button_states"] = buttons
    return physics


@quiet
@every_environment
def test_one_environment_gives_the_goals_of_the_single_task_environments(
    dataset, checked
):
    domain = parse_dataset(dataset)
    assert [task.task for task in tasks_of(dataset)] == list(TASKS)
    for task in (tasks_of(dataset)[number - 1] for number in checked):
        environment = single_task_environment(dataset, task.task)
        there = domain.task_environment(task.task)
        assert task.environment_id == there.environment_id
        assert task.environment_kwargs == there.kwargs
        assert task.name == environment.cur_task_info["task_name"]
        assert task.recipe == domain.family
        assert task.success_timing == "pre" == environment._success_timing
        # Exact also when read back from a manifest.
        goal = json.loads(json.dumps(task.goal))
        if domain.family == "maze":
            assert tuple(goal["xy"]) == tuple(environment.cur_goal_xy)
            assert goal["tolerance"] == environment._goal_tol
        if domain.family in ("cube", "scene"):
            np.testing.assert_array_equal(
                goal["cube_xyzs"], environment.data.mocap_pos, strict=True
            )
        if domain.family in ("puzzle", "scene"):
            np.testing.assert_array_equal(
                goal["button_states"], environment._target_button_states, strict=True
            )
        if domain.family == "scene":
            assert goal["drawer"] == environment._target_drawer_pos
            assert goal["window"] == environment._target_window_pos


@quiet
@every_environment
def test_the_five_goals_differ_and_the_state_has_the_stated_width(dataset, checked):
    domain = parse_dataset(dataset)
    goals = {json.dumps(task.goal) for task in tasks_of(dataset)}
    # Several ways to one goal are allowed in a maze and with lights to put out.
    assert len(goals) >= (2 if domain.family in ("maze", "puzzle") else 5)
    environment = single_task_environment(dataset, checked[0])
    assert environment.model.nq == domain.environment.qpos_width
    buttons = len(getattr(environment, "_cur_button_states", ()))
    assert buttons == domain.environment.button_count


@quiet
@every_environment
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relabelling_equals_ogbench_bit_for_bit(dataset, checked, dtype):
    tasks = tasks_of(dataset)
    physics = states_around(tasks, 3000, dtype)
    rewards, masks = relabel_tasks(tasks, physics)
    assert rewards.shape == masks.shape == (3000, 5)
    assert rewards.dtype == np.float32
    assert masks.dtype == np.uint8
    for column in (number - 1 for number in checked):
        task, theirs = tasks[column], dict(physics)
        with seed_numpy(0):
            relabel_dataset(
                dataset, single_task_environment(dataset, task.task), theirs
            )
        assert rewards[:, column].tobytes() == theirs["rewards"].tobytes()
        ours = masks[:, column].astype(np.float32)
        assert ours.tobytes() == theirs["masks"].tobytes()
        # Not for want of cases: solved, in part (where there are parts), not at all.
        solved = int(np.sum(masks[:, column] == 0))
        assert 20 < solved < 2900
        worst = rewards[:, column].min()
        in_part = (rewards[:, column] < 0) & (rewards[:, column] > worst)
        single = task.recipe == "maze" or dataset.startswith("cube-single")
        assert worst == -1 if single else in_part.sum() > 20


@pytest.mark.parametrize("dataset", FAST)
def test_one_task_is_a_column_of_several(dataset):
    tasks = tasks_of(dataset)
    physics = states_around(tasks, 200, np.float32)
    rewards, masks = relabel_tasks(tasks, physics)
    for column, task in enumerate(tasks):
        alone = relabel_tasks([task], physics)
        np.testing.assert_array_equal(alone[0][:, 0], rewards[:, column], strict=True)
        np.testing.assert_array_equal(alone[1][:, 0], masks[:, column], strict=True)


def set_state(environment, physics, row):
    state = [physics["qpos"][row], np.zeros(environment.model.nv)]
    if "button_states" in physics:
        state.append(physics["button_states"][row])
    environment.set_state(*state)


def simulator_state(environment):
    physics = {"qpos": environment.data.qpos.copy()[None]}
    if hasattr(environment, "_cur_button_states"):
        physics["button_states"] = environment._cur_button_states.copy()[None]
    return physics


@quiet
@pytest.mark.parametrize("dataset", FAST)
def test_n6_a_reward_is_that_of_the_state_before_the_step(dataset):
    seen = set()
    for task in (tasks_of(dataset)[1], tasks_of(dataset)[4]):
        environment = single_task_environment(dataset, task.task)
        with seed_numpy(1):
            environment.reset(seed=1)
        # A simulator sums the squares of a distance in another order than it labels
        # data, so in the last bit it may disagree with itself on the verge.
        usual = environment.data.qpos.copy()
        physics = states_around([task], 40, np.float64, CLEAR, usual)
        for row in range(40):
            set_state(environment, physics, row)
            before = simulator_state(environment)
            _, reward, _, _, _ = environment.step(
                np.zeros(environment.action_space.shape)
            )
            rewards, masks = relabel_tasks([task], before)
            assert rewards[0, 0] == reward
            assert masks[0, 0] == (reward != 0)
            seen.add(reward)
    assert 0 in seen
    assert len(seen) >= 2


def test_n6_an_environment_that_judges_after_the_step_is_one_row_ahead():
    task = tasks_of("pointmaze-medium-navigate")[0]
    goal = np.array(task.goal["xy"])
    rewards = {}
    for timing in ("pre", "post"):
        environment = make_environment(
            task.environment_id, **{**task.environment_kwargs, "success_timing": timing}
        )
        with seed_numpy(0):
            environment.reset(seed=0)
        environment.set_xy(goal - [1.5, 0.0])
        states, rewards[timing] = [environment.data.qpos.copy()], []
        for _ in range(6):
            _, reward, *_ = environment.step(np.array([1.0, 0.0]))
            rewards[timing].append(reward)
            states.append(environment.data.qpos.copy())
    stored = relabel_tasks([task], {"qpos": np.array(states)})[0][:, 0]
    # 0.2 m a step from 1.5 m away: within 1 m after three steps.
    np.testing.assert_array_equal(stored, [-1, -1, -1, 0, 0, 0, 0])
    np.testing.assert_array_equal(rewards["pre"], stored[:-1])
    np.testing.assert_array_equal(rewards["post"], stored[1:])
    # Labels of the other kind are those that the other environment gives.
    (other,) = read_tasks(
        parse_dataset("pointmaze-medium-navigate"), (1,), success_timing="post"
    )
    assert other.environment_kwargs == {
        **task.environment_kwargs,
        "success_timing": "post",
    }
    rows, lengths = {"qpos": np.array(states)}, np.array([len(states)])
    labels = label_episodes([other], (), rows, lengths)
    np.testing.assert_array_equal(labels["rewards"][:-1, 0], rewards["post"])
    np.testing.assert_array_equal(labels["masks"][:-1, 0], np.abs(rewards["post"]))


TWO_CUBES = Task(
    task=1,
    name="by_hand",
    environment_id="cube-double-singletask-task1-v0",
    recipe="cube",
    goal={"cube_xyzs": [[0.5, 0.0, 0.0], [0.25, 1.0, 0.0]]},
)


def two_cubes(*places, dtype=np.float64):
    qpos = np.full((1, 28), 9.0, dtype)
    for cube, place in enumerate(places):
        qpos[0, 14 + 7 * cube : 17 + 7 * cube] = place
    return qpos


@pytest.mark.parametrize(
    ("places", "reward", "mask"),
    [
        ([(0.5, 0.0, 0.0), (0.25, 1.0, 0.0)], 0.0, 0),
        ([(0.5, 0.0, 0.0), (9.0, 9.0, 9.0)], -1.0, 1),
        ([(0.25, 1.0, 0.0), (0.5, 0.0, 0.0)], -2.0, 1),  # each at the other's target
        ([(0.5, 0.04, 0.0), (0.25, 1.0, -0.04)], 0.0, 0),  # exactly 4 cm
        ([(0.5, np.nextafter(0.04, 1), 0.0), (0.25, 1.0, 0.0)], -1.0, 1),
        ([(np.nan, 0.0, 0.0), (0.25, 1.0, 0.0)], -1.0, 1),
    ],
)
def test_a_reward_counts_the_parts_not_met(places, reward, mask):
    rewards, masks = relabel_tasks([TWO_CUBES], {"qpos": two_cubes(*places)})
    assert (rewards[0, 0], masks[0, 0]) == (reward, mask)


def test_no_rows_give_no_rewards():
    rewards, masks = relabel_tasks([TWO_CUBES, TWO_CUBES], {"qpos": np.empty((0, 28))})
    assert rewards.shape == masks.shape == (0, 2)


def task_in(environment_id, recipe, goal=None):
    return Task(
        task=1,
        name="any",
        environment_id=environment_id,
        recipe=recipe,
        goal=goal or {},
    )


SCENE = task_in("scene-singletask-task1-v0", "scene")
PUZZLE = task_in("puzzle-3x3-singletask-task1-v0", "puzzle")


@pytest.mark.parametrize(
    ("task", "physics", "message"),
    [
        (TWO_CUBES, {}, r"needs qpos \[rows, 28\].*no physics state"),
        (TWO_CUBES, {"qpos": np.zeros((3, 21))}, r"\(3, 28\).*cube-double.*\(3, 21\)"),
        (TWO_CUBES, {"qpos": np.zeros(28)}, r"\(28, 28\).*\(28,\)"),
        (SCENE, {"qpos": np.zeros((3, 25))}, r"needs button_states \[rows, 2\].*qpos"),
        (
            SCENE,
            {"qpos": np.zeros((3, 25)), "button_states": np.zeros((2, 2), int)},
            r"button_states of shape \(3, 2\).*got \(2, 2\)",
        ),
        (PUZZLE, {"qpos": np.zeros((3, 23))}, r"needs button_states \[rows, 9\]"),
        (PUZZLE, {"button_states": np.zeros((3, 16), int)}, r"\(3, 9\).*\(3, 16\)"),
        (
            PUZZLE,
            {"button_states": np.zeros((3, 9), int), "qpos": np.zeros((3, 30))},
            r"qpos of shape \(3, 23\).*got \(3, 30\)",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused(task, physics, message):
    with pytest.raises(DataFormatError, match=message):
        relabel_tasks([task], physics)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "no task"),
        ([TWO_CUBES, PUZZLE], "one environment, got cube-double, puzzle-3x3"),
        ([task_in("anything-v0", "stored")], "came with the data"),
        ([task_in("cube-tripel-v0", "cube")], "unknown environment 'cube-tripel-v0'"),
    ],
)
def test_tasks_that_cannot_be_relabelled_together_are_refused(tasks, message):
    with pytest.raises(ValueError, match=message):
        relabel_tasks(tasks, {"qpos": np.zeros((1, 28))})


def test_tasks_are_read_by_number():
    tasks = read_tasks(parse_dataset("pointmaze-medium-navigate"), (4, 2))
    every = tasks_of("pointmaze-medium-navigate")
    assert tasks == (every[3], every[1])
    with pytest.raises(ValueError, match="no task 7"):
        read_tasks(parse_dataset("pointmaze-medium-navigate"), (1, 7))


def global_generator():
    return np.random.get_state()[1].copy()  # noqa: NPY002


def test_reading_tasks_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = global_generator()
    read_tasks(parse_dataset("antmaze-medium-navigate"))
    np.testing.assert_array_equal(global_generator(), before)
    assert list(tmp_path.iterdir()) == []


def test_numpy_is_seeded_inside_and_as_before_outside():
    def fail_within(seed):
        with seed_numpy(seed):
            drawn.append(np.random.uniform())  # noqa: NPY002
            raise RuntimeError("within")

    before, drawn = global_generator(), []
    for seed in (2**63 + 1, 2**63 + 1, 2**63 + 2):
        with pytest.raises(RuntimeError, match="within"):
            fail_within(seed)
        np.testing.assert_array_equal(global_generator(), before)
    assert drawn[0] == drawn[1] != drawn[2]
