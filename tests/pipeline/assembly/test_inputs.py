"""One rule for the rows of all sources: what one refuses, every other one does too."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.assembly.actions import choose_scale
from pipeline.assembly.append import commit_append, plan_append
from pipeline.assembly.commit import commit_store
from pipeline.assembly.plan import PlanOptions, describe_inputs, plan_inputs
from pipeline.domains.spaces import Space, check_spaces, describe_store
from pipeline.inspection.export import export_npz
from pipeline.inspection.verify import verify_store
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.kinds import KINDS
from pipeline.sources.minari import Minari
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Task
from pipeline.store.reader import Store
from tests.parts import write_alone

T, EPISODES = 6, 3
OWN = Task(1, "stored", "Mine-v0", "stored")


def transitions(seed=0):
    random = np.random.default_rng(seed)
    n = T * EPISODES
    timeouts = np.zeros(n, bool)
    timeouts[T - 1 :: T] = True
    return {
        "observations": random.normal(size=(n, 4)),
        "next_observations": random.normal(size=(n, 4)),
        "actions": random.uniform(-1, 1, (n, 2)),
        "rewards": -np.ones(n),
        "terminals": np.zeros(n, bool),
        "timeouts": timeouts,
    }


def write_npz(path, rows):
    np.savez(path.with_suffix(".npz"), **rows)
    return RewardedNpz(str(path.with_suffix(".npz")))


def write_masked_npz(path, rows):
    rows = {**rows, "masks": np.ones(len(rows["rewards"]))}
    rows["terminals"] = rows.pop("timeouts")
    del rows["next_observations"]
    return write_npz(path, rows)


def write_ogbench(path, rows):
    terminals = rows["timeouts"]
    kept = {name: rows[name] for name in ("observations", "actions")}
    np.savez(path.with_suffix(".npz"), terminals=terminals, **kept)
    return OgbenchNpz(str(path.with_suffix(".npz")))


def write_d4rl(path, rows):
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = values
    return D4rlHdf5(str(path))


def write_minari(path, rows):
    with h5py.File(path, "w") as file:
        for number in range(EPISODES):
            episode = file.create_group(f"episode_{number}")
            of = slice(number * T, number * T + T)
            last = rows["next_observations"][of][-1:]
            states = np.concatenate([rows["observations"][of], last])
            episode["observations"] = states
            episode["actions"] = rows["actions"][of]
            episode["rewards"] = rows["rewards"][of]
            episode["terminations"] = rows["terminals"][of]
    return Minari(str(path))


def write_robomimic(path, rows):
    with h5py.File(path, "w") as file:
        for number in range(EPISODES):
            demo = file.create_group(f"data/demo_{number}")
            of = slice(number * T, number * T + T)
            demo["obs/x"] = rows["observations"][of]
            demo["next_obs/x"] = rows["next_observations"][of]
            demo["actions"] = rows["actions"][of]
            demo["rewards"] = rows["rewards"][of]
            demo["dones"] = rows["terminals"][of]
    return KINDS["robomimic"].open(str(path))


REWARDED = (write_npz, write_masked_npz, write_d4rl, write_minari, write_robomimic)
ALL = (*REWARDED, write_ogbench)


def plan_store(source, root, *, val=None, action_scale=None, **options):
    inputs = [("train", source), *([("val", val)] if val else [])]
    return plan_inputs(
        str(root),
        describe_inputs(inputs),
        dataset="mine",
        environment_id="Mine-v0",
        tasks=(OWN,),
        discounts=(0.9,),
        options=PlanOptions(**options),
        action_scale=action_scale,
        versions={},
    )


def shard(source, root, **options):
    plan = plan_store(source, root, **options)
    return commit_store(plan, write_alone(*plan.parts))


def append(source, root):
    shard(write_npz(root.parent / "first", transitions(7)), root)
    plan = plan_append(str(root), describe_inputs([("train", source)]), PlanOptions())
    assert plan is not None
    return write_alone(*plan.added.parts)


def say(write, rows, tmp_path, way=shard):
    """What is said of an input, in which nothing else is wrong."""
    way(write(tmp_path / "good", transitions()), tmp_path / "good-store")
    source = write(tmp_path / "bad", rows)
    with pytest.raises(DataFormatError) as said:
        way(source, tmp_path / "store")
    assert "\n" not in str(said.value)
    assert "bad" in str(said.value)
    return str(said.value)


@pytest.mark.parametrize("way", [shard, append])
@pytest.mark.parametrize("write", REWARDED)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rewards", 1e39, "rewards is 1e+39, which does not fit float32"),
        ("rewards", np.nan, "rewards is nan, and a finite number was expected"),
        ("observations", -1e39, "is -1e+39, which does not fit float32"),
        ("observations", np.inf, "is inf, and a finite number was expected"),
        ("actions", 1e39, "actions[0] is 1e+39, which does not fit float32"),
        ("actions", -1.7, "actions[0] is -1.7, outside"),
    ],
)
def test_what_is_stored_is_what_was_checked(
    write, field, value, message, way, tmp_path
):
    rows = transitions()
    rows[field][8] = value  # The third step of the second episode.
    said = say(write, rows, tmp_path, way)
    assert "episode 1, row 2: " in said
    assert message in said


@pytest.mark.parametrize("write", [write_npz, write_d4rl, write_minari])
def test_states_that_episodes_end_in_are_checked_as_all_others(write, tmp_path):
    rows = transitions()
    rows["observations"] = rows["observations"].astype(np.float32)
    rows["next_observations"][11] = 1e39  # After the second episode.
    said = say(write, rows, tmp_path)
    assert "episode 1, row 6: observations[0] is 1e+39" in said


@pytest.mark.parametrize("write", ALL)
@pytest.mark.parametrize(
    ("actions", "got"),
    [
        (np.arange(T * EPISODES) % 4, "got int64['rows']"),
        (np.zeros(T * EPISODES), "got float64['rows']"),
        (np.zeros((T * EPISODES, 2), np.int32), "got int32['rows', 2]"),
        (np.zeros((T * EPISODES, 2, 2)), "got float64['rows', 2, 2]"),
    ],
)
def test_actions_are_continuous_and_a_row_each(write, actions, got, tmp_path):
    source = write(tmp_path / "bad", {**transitions(), "actions": actions})
    with pytest.raises(DataFormatError, match=r"bad.*continuous actions") as said:
        source.describe()
    assert got in str(said.value)


# Robomimic's are by name, and a number a row has a place beside the others.
@pytest.mark.parametrize("write", [each for each in ALL if each != write_robomimic])
def test_observations_are_a_row_each(write, tmp_path):
    flat = {
        name: np.zeros(T * EPISODES) for name in ("observations", "next_observations")
    }
    source = write(tmp_path / "bad", {**transitions(), **flat})
    with pytest.raises(DataFormatError, match=r"bad.*observations \[rows, S\]"):
        source.describe()


# An npz may hold rewards of several tasks, a column each.
@pytest.mark.parametrize(
    "write", [each for each in REWARDED if each not in (write_npz, write_masked_npz)]
)
def test_rewards_are_one_number_a_row(write, tmp_path):
    columns = np.zeros((T * EPISODES, 1))
    write(tmp_path / "good", {**transitions(), "rewards": columns}).describe()
    two = {**transitions(), "rewards": np.zeros((T * EPISODES, 2))}
    with pytest.raises(DataFormatError, match=r"bad.*rewards \[rows\]"):
        write(tmp_path / "bad", two).describe()


@pytest.mark.parametrize("write", [write_npz, write_d4rl])
def test_transitions_say_where_they_were_cut_off(write, tmp_path):
    rows = transitions()
    del rows["timeouts"]
    with pytest.raises(DataFormatError, match=r"bad.*expected masks or timeouts"):
        write(tmp_path / "bad", rows).describe()


@pytest.mark.parametrize("write", [write_npz, write_d4rl])
@pytest.mark.parametrize(
    "after", [np.zeros((18, 3)), np.zeros((18, 4), np.uint8)], ids=["width", "dtype"]
)
def test_next_observations_are_as_observations(write, after, tmp_path):
    rows = {**transitions(), "next_observations": after}
    with pytest.raises(DataFormatError, match=r"bad.*next_observations as obs"):
        write(tmp_path / "bad", rows).describe()


def test_terminations_are_yes_or_no(tmp_path):
    rows = {**transitions(), "terminals": np.full(T * EPISODES, 0.5)}
    with pytest.raises(DataFormatError, match=r"terminations, row 0: expected 0 or 1"):
        shard(write_minari(tmp_path / "bad", rows), tmp_path / "store")


@pytest.mark.parametrize("regular", [True, False])
def test_masks_are_0_or_1(regular, tmp_path):
    rows = {**transitions(), "masks": np.ones(T * EPISODES)}
    rows["masks"][8] = 0.5
    rows["terminals"] = rows.pop("timeouts")
    if not regular:
        del rows["next_observations"]
    source = write_npz(tmp_path / "bad", rows)
    with pytest.raises(DataFormatError, match=r"episode 1, row 2: masks is 0\.5"):
        shard(source, tmp_path / "store")


def test_bad_episodes_are_left_out_by_reason(tmp_path):
    rows = transitions()
    rows["actions"][2] = 3.0
    rows["rewards"][8] = 1e39
    source = write_npz(tmp_path / "some", rows)
    options = {"on_bad_episode": "skip", "max_bad_share": 1.0}
    (part,) = shard(source, tmp_path / "store", **options).parts
    assert part.dropped == {"actions_outside": (0,), "too_large": (1,)}
    assert part.episodes == 1


def test_actions_outside_are_told_with_share_and_bounds(tmp_path):
    rows = transitions()
    rows["actions"][:9] = np.linspace(-2, 1.5, 18).reshape(9, 2)
    assert (np.abs(rows["actions"]) > 1).any(axis=1).sum() == 5
    said = say(write_npz, rows, tmp_path)
    # Three episodes of six transitions; the added rows of their last states hold none.
    assert "27.78% of the file's 18 actions" in said
    assert "reach from -2 to 1.5" in said
    assert "--action-bounds data" in said


@pytest.mark.parametrize("write", ALL)
@pytest.mark.parametrize("bounds", [("data",), ("-2", "4")])
def test_actions_in_other_bounds_are_stored_scaled(write, bounds, tmp_path):
    rows = transitions()
    rows["actions"][:, 0] *= 2
    assert np.abs(rows["actions"][:, 0]).max() > 1.5
    source = write(tmp_path / "wide", rows)
    scale = choose_scale(describe_inputs([("train", source)]), bounds)
    if bounds == ("data",):
        ends = rows["actions"][:, 0].min(), rows["actions"][:, 0].max()
        expected = [2 * (a - ends[0]) / (ends[1] - ends[0]) - 1 for a in ends]
        # The second component is within already.
        assert (scale.low, scale.high) == ((ends[0], -1), (ends[1], 1))
        assert expected == [-1, 1]
    else:
        assert (scale.low, scale.high) == ((-2, -2), (4, 4))
    if write is write_ogbench:  # Has no rewards, for a store of its own.
        return
    root = str(tmp_path / "store")
    plan = plan_store(source, root, action_scale=scale)
    commit_store(plan, write_alone(*plan.parts))
    store = Store(root)
    assert store.manifest.action_scale == scale
    stored = store.read("actions")
    assert np.abs(stored).max() <= 1
    acting = np.ones(len(stored), bool)
    episodes = store.episodes()
    acting[episodes.starts + episodes.lengths - 1] = False
    given = rows["actions"]
    if write is write_masked_npz:  # Of which the last row's action leads nowhere.
        given = given[acting]
    np.testing.assert_allclose(scale.from_unit(stored)[acting], given, atol=1e-6)
    (path,) = export_npz(store, str(tmp_path / "out.npz"))
    np.testing.assert_array_equal(np.load(path)["actions"], scale.from_unit(stored))
    assert verify_store(store, deep=True) == []


@pytest.mark.parametrize("write", REWARDED)
@pytest.mark.parametrize("bounds", [("data",), ("22.5", "30")])
def test_bounds_of_actions_may_exclude_0(write, bounds, tmp_path):
    """The action of an episode's added last row is made up: 0, no set point."""
    rows = transitions()
    rows["actions"] = 26.25 + 3.75 * rows["actions"]
    rows["actions"][:2] = [[22.5], [30]]
    inputs = describe_inputs([("train", write(tmp_path / "set", rows))])
    scale = choose_scale(inputs, bounds)
    assert (scale.low, scale.high) == ((22.5, 22.5), (30, 30))
    root = str(tmp_path / "store")
    plan = plan_store(inputs.described[0][1], root, action_scale=scale)
    commit_store(plan, write_alone(*plan.parts))
    store = Store(root)
    stored = store.read("actions")
    if write is not write_masked_npz:  # It has all T+1 rows of its own.
        # 0 as the store holds it: (0 - 22.5) / 7.5 * 2 - 1.
        assert (stored == -7).all(axis=1).sum() == EPISODES
    known = store.manifest.statistics["actions"]
    assert (known.minimum, known.maximum) == ((-1, -1), (1, 1))
    assert verify_store(store, deep=True) == []
    offered = Space("float32", 2, "", (22.5, 22.5), (30, 30))
    spaces = describe_store(store.manifest)
    assert check_spaces(spaces, replace(spaces, action=offered), environment="E") == {}
    (again,) = export_npz(store, str(tmp_path / "out.npz"))
    actions = np.load(again)["actions"]
    assert np.unique(actions[stored[:, 0] == -7]).tolist() in ([0], [])


def test_an_action_before_the_last_row_is_within_the_bounds(tmp_path):
    rows = transitions()
    rows["actions"] = 26.25 + 3.75 * rows["actions"]
    rows["actions"][T - 1] = 0
    source = write_d4rl(tmp_path / "set", rows)
    scale = ActionScale((22.5, 22.5), (30, 30))
    plan = plan_store(source, tmp_path / "store", action_scale=scale)
    with pytest.raises(DataFormatError, match=r"episode 0, row 5: actions\[0\] is 0,"):
        write_alone(*plan.parts)


def test_what_is_appended_is_scaled_as_the_store(tmp_path):
    root = tmp_path / "store"
    wide = transitions()
    wide["actions"] *= 2
    source = write_npz(tmp_path / "wide", wide)
    plan = plan_store(source, root, action_scale=ActionScale((-2, -2), (2, 2)))
    commit_store(plan, write_alone(*plan.parts))
    source = write_npz(tmp_path / "more", transitions(1))
    added = plan_append(str(root), describe_inputs([("train", source)]), PlanOptions())
    commit_append(added, write_alone(*added.added.parts))
    first, second = np.split(Store(str(root)).read("actions"), 2)
    assert np.abs(first).max() > 0.5 >= np.abs(second).max() > 0.4
    wider = transitions(2)
    wider["actions"][0] = 2.5
    source = write_npz(tmp_path / "wider", wider)
    added = plan_append(str(root), describe_inputs([("train", source)]), PlanOptions())
    with pytest.raises(DataFormatError, match=r"is 2\.5, outside .*\[-2.0, -2.0\] to"):
        write_alone(added.added.parts[0])


def test_inputs_without_a_finite_action_decide_no_bounds(tmp_path):
    rows, bad = transitions(), transitions(1)
    rows["actions"] *= 2
    bad["actions"][:] = np.nan
    given = [("train", write_npz(tmp_path / "bad", bad))]
    with pytest.raises(DataFormatError, match=r"bad\.npz: expected finite .* in 18;"):
        choose_scale(describe_inputs(given), ("data",))
    alone = [("train", write_npz(tmp_path / "good", rows))]
    expected = choose_scale(describe_inputs(alone), ("data",))
    assert expected.high[0] > 1.5
    assert choose_scale(describe_inputs(given + alone), ("data",)) == expected


def test_bounds_of_data_are_of_one_number_of_components(tmp_path):
    rows = transitions(1)
    rows["actions"] = np.zeros((len(rows["actions"]), 3))
    sources = [
        write_npz(tmp_path / "two", transitions()),
        write_npz(tmp_path / "three", rows),
    ]
    inputs = describe_inputs([("train", source) for source in sources])
    with pytest.raises(DataFormatError, match=r"three\.npz: .* 2 components, .* got 3"):
        choose_scale(inputs, ("data",))


@pytest.mark.parametrize("bounds", [("1", "1"), ("a", "b"), ("1",), ("nan", "1")])
def test_bounds_that_are_none_are_refused(bounds, tmp_path):
    inputs = describe_inputs([("train", write_npz(tmp_path / "a", transitions()))])
    with pytest.raises(UsageError, match="expected"):
        choose_scale(inputs, bounds)


@pytest.mark.parametrize("write", ALL)
def test_one_content_is_not_of_both_splits(write, tmp_path):
    source, again = (write(tmp_path / name, transitions()) for name in "ab")
    for val in (source, again):
        with pytest.raises(DataFormatError, match="in both") as said:
            plan_store(source, tmp_path / "store", val=val)
        assert "--val" in str(said.value)


def test_one_content_is_not_appended_to_the_other_split(tmp_path):
    root = tmp_path / "store"
    source = write_npz(tmp_path / "a", transitions())
    shard(source, root, val=write_npz(tmp_path / "b", transitions(1)))
    for split, name in (("val", "a"), ("train", "b")):
        inputs = describe_inputs([("train", write_npz(tmp_path / "c", transitions(2)))])
        given = RewardedNpz(str(tmp_path / f"{name}.npz"))
        inputs = describe_inputs(
            [("train", RewardedNpz(str(tmp_path / "c.npz"))), (split, given)]
        )
        with pytest.raises(DataFormatError, match=f"{name}.npz: .*in both"):
            plan_append(str(root), inputs, PlanOptions())
    assert len(Store(str(root)).manifest.parts) == 2


def test_what_comes_twice_in_a_split_is_told(tmp_path):
    source, again = (write_npz(tmp_path / name, transitions()) for name in "ab")
    plan = plan_inputs(
        str(tmp_path / "store"),
        describe_inputs([("train", source), ("train", again)]),
        dataset="mine",
        environment_id="Mine-v0",
        tasks=(OWN,),
        discounts=(0.9,),
        versions={},
    )
    assert "b.npz holds the same as a.npz: its episodes count twice" in (plan.warnings)


def test_nothing_of_a_refused_store_is_committed(tmp_path):
    rows = transitions()
    rows["rewards"][8] = 1e39
    say(write_npz, rows, tmp_path)
    assert not Path(tmp_path / "store" / "dataset.json").exists()
