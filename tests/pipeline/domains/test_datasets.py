import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import ogbench  # noqa: F401  (registers the environments)
import pytest

import pipeline
from pipeline.domains.datasets import (
    TASKS,
    find_domain,
    find_environment,
    known_datasets,
    parse_dataset,
)


@pytest.mark.parametrize(
    ("name", "environment_id", "dataset_type", "family"),
    [
        ("cube-single-play", "cube-single-v0", "play", "cube"),
        ("cube-octuple-noisy", "cube-octuple-v0", "noisy", "cube"),
        ("scene-play", "scene-v0", "play", "scene"),
        ("puzzle-4x4-noisy", "puzzle-4x4-v0", "noisy", "puzzle"),
        ("antmaze-large-navigate", "antmaze-large-v0", "navigate", "maze"),
        ("pointmaze-medium-navigate", "pointmaze-medium-v0", "navigate", "maze"),
    ],
)
def test_a_name_is_read_with_and_without_its_version(
    name, environment_id, dataset_type, family
):
    domain = parse_dataset(name)
    assert domain.dataset == name
    assert domain.environment_id == environment_id
    assert domain.dataset_type == dataset_type
    assert domain.family == family
    assert parse_dataset(name + "-v0") == domain


def test_every_known_name_reads_back_to_itself():
    names = known_datasets()
    assert len(names) == len(set(names)) == 2 * 10 + 2 * 4 + 3 * 4 - 1
    for name in names:
        domain = parse_dataset(name)
        assert domain.dataset == name
        assert find_domain(domain.environment_id, domain.dataset_type) == domain
        assert pickle.loads(pickle.dumps(domain)) == domain


def test_ogbench_registers_every_environment_named():
    for name in known_datasets():
        domain = parse_dataset(name)
        assert domain.environment_id in gymnasium.registry
        for task in TASKS:
            there = domain.task_environment(task)
            spec = gymnasium.spec(there.environment_id)
            kwargs = {**spec.kwargs, **there.kwargs}
            assert kwargs["reward_task_id"] == task
            assert kwargs["success_timing"] == "pre"


def test_an_environment_is_found_by_its_own_and_its_tasks_ids():
    scene = find_environment("scene-v0")
    assert scene.name == "scene"
    assert find_environment("scene-singletask-v0") == scene
    assert find_environment("scene-singletask-task5-v0") == scene


def test_a_point_mass_is_evaluated_without_a_single_task_id():
    there = parse_dataset("pointmaze-large-navigate").task_environment(3)
    assert there.environment_id == "pointmaze-large-v0"
    assert there.kwargs == {
        "reward_task_id": 3,
        "add_noise_to_goal": False,
        "success_timing": "pre",
    }


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("cube-single-play", 1001),
        ("antmaze-giant-navigate", 2001),
        ("pointmaze-giant-navigate", 2001),
        ("pointmaze-giant-stitch", 201),
        ("antmaze-large-explore", 501),
    ],
)
def test_published_episodes_have_so_many_rows(name, rows):
    assert parse_dataset(name).episode_rows == rows


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("cube-singel-play", "cube-single-play"),
        ("cube-single", "cube-single-play"),
        ("puzzle-4x4-navigate", "puzzle-4x4-play"),
        ("antmaze-gaint-navigate-v0", "antmaze-giant-navigate"),
        ("antmaze-giant-explore", "antmaze-large-explore"),
        ("cube-single-play-v1", "cube-single-play"),
    ],
)
def test_an_unknown_data_set_is_refused_with_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match="unknown data set") as caught:
        parse_dataset(wrong)
    assert repr(wrong) in str(caught.value)
    assert meant in str(caught.value)


def test_a_name_like_no_other_lists_all():
    with pytest.raises(ValueError, match=r"known: cube-single-play, .*explore"):
        parse_dataset("zzz")


@pytest.mark.parametrize("wrong", ["cube-single", "cube-sinlge-v0", "scene-v1", ""])
def test_an_unknown_environment_is_refused(wrong):
    with pytest.raises(ValueError, match="unknown environment"):
        find_environment(wrong)


@pytest.mark.parametrize("task", [0, 6, -1])
def test_a_task_outside_one_to_five_is_refused(task):
    with pytest.raises(ValueError, match=f"no task {task}; its tasks are 1, 2, 3, 4"):
        parse_dataset("scene-play").task_environment(task)


def test_names_and_relabelling_load_no_simulator():
    program = (
        "import sys\n"
        "import pipeline.domains.datasets, pipeline.domains.goals\n"
        "import pipeline.collection.scripted\n"
        "loaded = {'mujoco', 'ogbench', 'gymnasium', 'jax', 'apache_beam'}\n"
        "sys.exit(', '.join(loaded & set(sys.modules)) or 0)\n"
    )
    root = Path(pipeline.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
