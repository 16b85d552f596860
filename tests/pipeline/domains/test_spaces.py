import dataclasses
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text

from pipeline.domains.observations import flatten
from pipeline.domains.spaces import (
    Space,
    Spaces,
    check_spaces,
    describe_reach,
    describe_store,
    read_observation_space,
    read_spaces,
)
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.own_environment import Line
from tests.stores import write_store


def test_a_dictionary_is_described_as_it_is_flattened():
    space = Dict(
        {
            "z": Box(-1, np.array([2.0, 3.0]), (2,), np.float64),
            "inner": Dict({"b": Discrete(4, start=2), "a": MultiBinary(2)}),
        }
    )
    found = read_observation_space(space)
    assert found.layout == "inner/a[2], inner/b[1], z[2]"
    assert found.size == 5
    assert found.low[2:] == (2, -1, -1)
    assert found.high[2:] == (5, 2, 3)
    assert found.dtype == "float64"
    sample = space.sample()
    row = flatten(sample)
    assert row[2] == sample["inner"]["b"]
    assert row.tolist()[3:] == sample["z"].tolist()
    plain = read_observation_space(Box(0, 255, (2, 2), np.uint8))
    assert (plain.layout, plain.size, plain.dtype) == ("", 4, "uint8")


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({}, "expected an environment with an observation_space and an action_space"),
        ({"observation_space": Box(0, 1)}, "got .* and None"),
        (
            {"observation_space": Box(0, 1), "action_space": Discrete(3)},
            "continuous actions",
        ),
        (
            {"observation_space": Dict({"a": Text(3)}), "action_space": Box(0, 1)},
            "expected observations that are numbers",
        ),
    ],
)
def test_environments_that_no_agent_acts_in(spaces, message):
    environment = gymnasium.Env()
    for name, space in spaces.items():
        setattr(environment, name, space)
    with pytest.raises(UsageError, match=message) as error:
        read_spaces(environment)
    assert "\n" not in str(error.value)


HERE = Spaces(
    Space("float32", 2, "goal[1], place[1]", (-9.0, -8.0), (9.0, 8.0)),
    Space("float32", 1, "", (-1.0,), (1.0,)),
)
THERE = read_spaces(Line())


def changed(spaces, name, **changes):
    space = dataclasses.replace(getattr(spaces, name), **changes)
    return dataclasses.replace(spaces, **{name: space})


def test_data_of_the_environment_agree():
    assert check_spaces(HERE, THERE, environment="Line-v0") == {}
    # Who flattened by himself says nothing of the order.
    flat = changed(HERE, "observation", layout="")
    assert check_spaces(flat, THERE, environment="Line-v0") == {}
    unbounded = changed(THERE, "observation", low=(-np.inf,) * 2, high=(np.inf,) * 2)
    wide = changed(HERE, "observation", low=(-1e30,) * 2, high=(1e30,) * 2)
    assert check_spaces(wide, unbounded, environment="Line-v0") == {}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "observation",
            {"size": 3, "layout": ""},
            r"Line-v0: expected observations of 3 numbers, .* 2 numbers \(goal\[1\], ",
        ),
        (
            "observation",
            {"layout": "goal[1], speed[1]"},
            r"of goal\[1\], speed\[1\], as in the data, got goal\[1\], place\[1\];",
        ),
        ("observation", {"dtype": "uint8"}, "of uint8, as in the data, got float32"),
        (
            "observation",
            {"high": (9.0, 80.0)},
            r"observations\[1\] of the data go from -8 to 80, and Line-v0 has bounds "
            r"of -10 to 10; expected data within them",
        ),
        ("action", {"size": 2}, "expected actions of 2 numbers, .* got 1 number;"),
        ("action", {"low": (-7.0,)}, r"actions\[0\] of the data go from -7 to 1"),
    ],
)
def test_data_of_another_environment_are_refused(name, changes, message):
    with pytest.raises(DataFormatError, match=message) as error:
        check_spaces(changed(HERE, name, **changes), THERE, environment="Line-v0")
    assert "\n" not in str(error.value)


def test_data_a_little_outside_are_said():
    near = changed(HERE, "observation", low=(-12.0, -8.0))
    (found,) = check_spaces(near, THERE, environment="Line-v0").items()
    assert found[0] == "observation"
    assert "observations[0] of the data go from -12 to 9" in found[1]
    half = changed(THERE, "observation", low=(0.0, 0.0), high=(np.inf, np.inf))
    assert "observation" in check_spaces(HERE, half, environment="Line-v0")


@pytest.mark.parametrize("ends", [(0.0, 29.0), (-29.0, 0.0)])
def test_an_action_of_0_may_be_made_up_and_refuses_no_environment(ends):
    here = changed(HERE, "action", low=ends[:1], high=ends[1:])
    bounds = [np.sign(sum(ends)) * end for end in (22.5, 30.0)]
    there = changed(THERE, "action", low=(min(bounds),), high=(max(bounds),))
    assert set(check_spaces(here, there, environment="Line-v0")) == {"action"}
    # The other end is an action of the data, and 0 a true observation.
    for name, low, high in (("action", 0.0, 60.0), ("observation", 0.0, 29.0)):
        size = getattr(HERE, name).size
        here = changed(HERE, name, low=(low,) * size, high=(high,) * size)
        there = changed(THERE, name, low=(22.5,) * size, high=(30.0,) * size)
        with pytest.raises(
            DataFormatError, match=f"{name}s\\[0\\] of the data go from"
        ):
            check_spaces(here, there, environment="Line-v0")


@pytest.mark.parametrize(
    ("scale", "low", "high", "said"),
    [
        (None, -1.0, 1.0, ""),
        (None, -1.04, 1.0, ""),  # Within the slack of 5 % of a range of 2.
        (None, -2.0, 1.0, "E takes actions[0] from -2 to 1, .* -1 to 1: they reach no"),
        (None, -0.5, 0.5, "-1 to 1: actions outside are clipped; .* -0.5 0.5"),
        (None, -np.inf, np.inf, ""),
        (ActionScale((0.0,), (4.0,)), 0.0, 4.0, ""),
        (ActionScale((0.0,), (4.0,)), -1.0, 1.0, "act from 0 to 4: actions outside"),
    ],
)
def test_actions_out_of_reach_are_described(scale, low, high, said):
    offered = Space("float32", 1, "", (low,), (high,))
    text = describe_reach(scale, offered, environment="E")
    assert bool(text) == bool(said)
    assert re.search(said.replace("[0]", r"\[0\]"), text)


def test_a_store_is_described_by_its_manifest(tmp_path):
    manifest = Store(str(write_store(tmp_path / "store", S=4, A=2))).manifest
    found = describe_store(manifest)
    known = manifest.statistics["observations"]
    assert (found.observation.size, found.observation.dtype) == (4, "float32")
    assert found.observation.low == known.minimum
    assert found.observation.layout == ""
    fields = {
        **manifest.fields,
        "observations": dataclasses.replace(
            manifest.fields["observations"], unit="side by side: a[1], b[3]"
        ),
    }
    scaled = dataclasses.replace(
        manifest, fields=fields, action_scale=ActionScale((-4.0, 0.0), (4.0, 1.0))
    )
    found = describe_store(scaled)
    assert found.observation.layout == "a[1], b[3]"
    # Stored actions reach nearly from -1 to 1.
    assert found.action.low == pytest.approx((-4.0, 0.0), abs=0.3)
    assert found.action.high == pytest.approx((4.0, 1.0), abs=0.3)


def test_a_made_up_action_is_0_after_it_is_scaled_back(tmp_path):
    manifest = Store(str(write_store(tmp_path / "store", S=4, A=1))).manifest
    scale = ActionScale((-1.0,), (10.0,))
    (made_up, data) = scale.to_unit(np.array([[0.0], [6.0]]))[:, 0].tolist()
    assert scale.from_unit(np.array([made_up])) != 0
    known = dataclasses.replace(
        manifest.statistics["actions"], minimum=(made_up,), maximum=(data,)
    )
    statistics = {**manifest.statistics, "actions": known}
    scaled = dataclasses.replace(manifest, statistics=statistics, action_scale=scale)
    here = describe_store(scaled)
    assert here.action.low == (0,)
    assert here.action.high == pytest.approx((6,))
    there = dataclasses.replace(here, action=Space("float32", 1, "", (5.0,), (7.0,)))
    assert set(check_spaces(here, there, environment="E")) == {"action"}
