import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.environments import (
    episode_seed,
    make_environment,
    make_named_environment,
    make_wrapped_environment,
    parse_arguments,
    parse_environment,
    seed_numpy,
)
from pipeline.store.errors import MissingPackageError, UsageError


def test_seeds_of_episodes_are_pinned_and_apart():
    # Collections are named by their base seed: these numbers must never change.
    assert episode_seed(0, 0) == 7896617691693857887
    assert episode_seed(0, 1) == 2918264622725855778
    assert episode_seed(1, 0) == 3717377837946358015
    seeds = {
        episode_seed(base, episode) for base in range(3) for episode in range(3000)
    }
    assert len(seeds) == 9000
    assert max(seeds) < 2**63


def test_a_maze_leaves_no_model_behind():
    before = set(Path(tempfile.gettempdir()).iterdir())
    wrapped = make_wrapped_environment("pointmaze-medium-v0")
    bare = make_environment("pointmaze-medium-v0")
    assert bare is bare.unwrapped
    assert wrapped is not wrapped.unwrapped
    assert wrapped.spec.max_episode_steps is not None
    models = set(Path(tempfile.gettempdir()).iterdir()) - before
    assert not [path for path in models if path.suffix == ".xml"]


def test_a_machine_without_the_simulator_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with pytest.raises(
        MissingPackageError, match=r"making cube-x needs .*vast-rl\[eval\]"
    ):
        make_environment("cube-x")


def test_numpys_generator_is_lent_and_given_back():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    drawn = []
    for seed in (7, 7, 2**40):
        with seed_numpy(seed):
            drawn.append(np.random.random())  # noqa: NPY002
    assert drawn[0] == drawn[1] != drawn[2]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_threads_take_turns_with_numpys_generator():
    expected, drawn = {}, {}
    for seed in (1, 2):
        with seed_numpy(seed):
            expected[seed] = np.random.random(3).tolist()  # noqa: NPY002
    first_drew, second_at_door = threading.Event(), threading.Event()

    def second():
        first_drew.wait(10)
        second_at_door.set()
        with seed_numpy(2):
            drawn[2] = np.random.random(3).tolist()  # noqa: NPY002

    other = threading.Thread(target=second)
    other.start()
    with seed_numpy(1):
        drawn[1] = np.random.random(1).tolist()  # noqa: NPY002
        first_drew.set()
        assert second_at_door.wait(10)
        other.join(0.2)  # It would be through, if nothing held it.
        assert 2 not in drawn
        drawn[1] += np.random.random(2).tolist()  # noqa: NPY002
    other.join(10)
    assert drawn == expected


def test_what_is_typed_names_a_module():
    spec = parse_environment(
        "tests.own_environment:Line-v0", ["size=3", "flat=true", "kind=a-b", "x=null"]
    )
    assert (spec.module, spec.environment_id) == ("tests.own_environment", "Line-v0")
    assert spec.kwargs == {"size": 3, "flat": True, "kind": "a-b", "x": None}
    assert parse_environment("ns/Line-v0") == TaskEnvironment("ns/Line-v0")


@pytest.mark.parametrize("text", ["", ":Line-v0", "a b:Line-v0", "a:", "a:b:Line-v0"])
def test_what_is_typed_may_be_no_environment(text):
    with pytest.raises(UsageError, match="--environment: expected ID or MODULE:ID"):
        parse_environment(text)


@pytest.mark.parametrize(
    "text", ["size", "=3", "a=../x", "a=[1]", 'a={"b": 1}', "a=Infinity", "a=NaN"]
)
def test_arguments_are_numbers_and_words(text):
    with pytest.raises(UsageError, match="--environment-arguments: expected NAME=VAL"):
        parse_arguments([text])
    with pytest.raises(UsageError, match="once for each name"):
        parse_arguments(["a=1", "a=2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tests.nowhere:Line-v0",
            "tests.nowhere: cannot be imported .*No module named",
        ),
        (
            "tests.own_environment:Lyne-v0",
            "Lyne-v0: expected an environment that is re",
        ),
        (
            "tests.own_environment:Broken-v0",
            "cannot be made .*RuntimeError: no licence",
        ),
    ],
)
def test_environments_that_cannot_be_made(text, message):
    with pytest.raises(UsageError, match=message) as error:
        make_named_environment(parse_environment(text))
    assert "\n" not in str(error.value)
