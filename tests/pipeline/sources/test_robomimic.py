import json
import re

import h5py
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.sources.detection import find_sources
from pipeline.sources.episode_reader import ReaderSource
from pipeline.sources.episodes import cut
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.fuzz import MUTATIONS, drill_source, mutate_bytes

COUNTS = (3,) * 10 + (5, 4)  # demo_10 comes after demo_2
STATES = {"robot0_eef_pos": (3,), "object": (2, 2)}
READER = "pipeline.sources.robomimic:RobomimicReader"
ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}}


def open_robomimic(path):
    return ReaderSource(READER, str(path))


def write_robomimic(
    path,
    *,
    counts=COUNTS,
    following=True,
    compress=False,
    keys=None,
    images=True,
    states=STATES,
):
    """A file as robomimic's dataset_states_to_obs.py and split_train_val.py write it.

    Returns the demonstrations.
    """
    random = np.random.default_rng(0)
    options = {"compression": "gzip"} if compress else {}
    demos = []
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, n in enumerate(counts):
            whole = {k: random.normal(size=(n + 1, *s)) for k, s in states.items()}
            demo = {
                "whole": whole,
                "actions": random.uniform(-1, 1, (n, 2)),
                "rewards": (np.arange(n) == n - 1) * 1.0,
                "dones": (np.arange(n) == n - 1).astype(int) * (number != 1),
            }
            demos.append(demo)
            group = data.create_group(f"demo_{number}")
            for name in ("actions", "rewards", "dones"):
                group.create_dataset(name, data=demo[name])
            group.create_dataset("states", data=np.zeros((n, 9)))
            if images:
                whole = {**whole, "agentview_image": np.zeros((n + 1, 4, 4, 3), "u1")}
            for name, values in whole.items():
                group.create_dataset(f"obs/{name}", data=values[:-1], **options)
                if following:
                    group.create_dataset(f"next_obs/{name}", data=values[1:], **options)
            group.attrs["num_samples"] = n
            group.attrs["model_file"] = "<mujoco/>"
        data.attrs["total"] = sum(counts)
        data.attrs["env_args"] = json.dumps(ENV_ARGS, indent=4)
        for key, names in (keys or {}).items():
            file[f"mask/{key}"] = np.array(names, dtype="S")
    return demos


def read_all(source, rows):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    return {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}


def laid_out(demo):
    whole = demo["whole"]
    return np.hstack([whole["object"].reshape(-1, 4), whole["robot0_eef_pos"]])


@pytest.mark.parametrize(("rows", "compress"), [(4, False), (1000, True)])
def test_demonstrations_are_read_in_order_of_their_numbers(tmp_path, rows, compress):
    path = tmp_path / "low_dim.hdf5"
    demos = write_robomimic(path, compress=compress)
    source = open_robomimic(path)
    facts = source.describe()
    assert facts.lengths == tuple(n + 1 for n in COUNTS)
    assert facts.fields["observations"].shape == (7,)
    assert facts.fields["observations"].unit == (
        "side by side: object[4], robot0_eef_pos[3]"
    )
    assert facts.ignored == ("obs/agentview_image (image)",)
    assert facts.notes[0].startswith("made in Lift, {")
    assert "Panda" in facts.notes[0]
    found = read_all(source, rows)
    np.testing.assert_array_equal(
        found["observations"], np.concatenate([laid_out(demo) for demo in demos])
    )
    ends = np.cumsum(facts.lengths) - 1
    inner = np.setdiff1d(np.arange(sum(facts.lengths)), ends)
    for name in ("actions", "rewards"):
        expected = np.concatenate([demo[name] for demo in demos])
        np.testing.assert_array_equal(found[name][inner], expected)
        assert not found[name][ends].any()
    dones = np.concatenate([demo["dones"] for demo in demos])
    assert dones.sum() == len(COUNTS) - 1
    np.testing.assert_array_equal(found["masks"][inner], dones == 0)
    assert found["masks"][ends].all()


def test_without_next_observations_a_time_limit_costs_a_transition(tmp_path):
    path = tmp_path / "image.hdf5"
    demos = write_robomimic(path, following=False)
    source = open_robomimic(path)
    # Only the second demonstration does not end in a done.
    expected = [n + 1 for n in COUNTS]
    expected[1] -= 1
    assert source.describe().lengths == tuple(expected)
    found = np.split(read_all(source, 1000)["observations"], np.cumsum(expected)[:-1])
    np.testing.assert_array_equal(found[1], laid_out(demos[1])[:-1])
    np.testing.assert_array_equal(found[0][:-1], laid_out(demos[0])[:-1])
    np.testing.assert_array_equal(found[0][-1], found[0][-2])


def names(*numbers):
    return [f"demo_{number}" for number in numbers]


def test_ends_that_may_be_time_limits_are_warned_of(tmp_path):
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path)
    # Demonstration 1 has no end, and all others a reward at theirs.
    assert open_robomimic(path).describe().warnings == ()
    with h5py.File(path, "a") as file:
        for number in (0, 1, 2):
            file[f"data/demo_{number}/rewards"][:] = 0
    (warning,) = open_robomimic(path).describe().warnings
    assert "low_dim.hdf5: 2 of 12 demonstrations end with dones 1" in warning
    assert "where a time limit ended them, set dones to 0" in warning


def test_filter_keys_are_splits(tmp_path):
    path = tmp_path / "low_dim.hdf5"
    keys = {"train": names(10, 2, 0), "valid": names(11, 1), "20_percent": names(0)}
    demos = write_robomimic(path, keys=keys)
    out = str(tmp_path / "store")
    assert main(["shard", str(path), "--dataset", "lift", "--out", out]) == 0
    store = Store(out)
    assert [part.origin.name for part in store.manifest.parts] == [
        "low_dim.hdf5[train]",
        "low_dim.hdf5[valid]",
    ]
    for split, numbers in (("train", (0, 2, 10)), ("val", (1, 11))):
        np.testing.assert_array_equal(
            store.read("observations", split=split),
            np.concatenate([laid_out(demos[n]) for n in numbers]).astype("f4"),
        )
    assert main(["verify", out, "--deep"]) == 0
    # The same file again is known by what is read of it.
    assert main(["append", out, str(path)]) == 0
    assert len(Store(out).manifest.parts) == 2


def test_an_input_of_its_own_for_val_takes_all_of_both(tmp_path):
    for name in ("a", "b"):
        keys = {"train": names(0), "valid": names(1)}
        write_robomimic(tmp_path / f"{name}.hdf5", keys=keys)
    _, found = find_sources(
        str(tmp_path / "a.hdf5"), dataset="lift", val=str(tmp_path / "b.hdf5")
    )
    assert [(split, len(s.describe().lengths)) for split, s in found] == [
        ("train", len(COUNTS)),
        ("val", len(COUNTS)),
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train": names(0, 1), "valid": names(1)}, "no other split, got demo_1"),
        ({"train": names(0, 99), "valid": names(1)}, "no other split, got demo_99"),
        ({"train": [], "valid": names(1)}, "got none|expected a data set train"),
        ({"train": [1.0], "valid": names(1)}, "got 1.0"),
    ],
)
def test_filter_keys_that_are_none_are_refused(tmp_path, keys, message, capsys):
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path, keys=keys)
    out = str(tmp_path / "store")
    assert main(["shard", str(path), "--dataset", "lift", "--out", out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda demo: demo.pop("obs"), "extract them from the simulator's states"),
        (lambda demo: demo.pop("rewards"), "expected a data set rewards, got nothing"),
        (lambda demo: demo.pop("dones"), "expected a data set dones, got nothing"),
        (lambda demo: demo["next_obs"].pop("object"), "expected next_obs of object"),
        (
            lambda demo: (
                demo["next_obs"].pop("object"),
                demo["next_obs"].update(object=np.zeros((3, 2))),
            ),
            r"expected next_obs/object as obs/object is, .* \[2, 2\], got \[2\]",
        ),
        (
            lambda demo: [demo["obs"].pop(k) for k in ("object", "robot0_eef_pos")],
            "at least one of them no image",
        ),
        (
            lambda demo: (demo.pop("actions"), demo.update(actions=np.zeros((2, 2)))),
            "as many rows as of rewards, 3, got",
        ),
        (
            lambda demo: (demo["obs"].pop("object"), demo["next_obs"].pop("object")),
            "expected the observations of demo_0",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path, spoil, message):
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path)
    with h5py.File(path, "r+") as file:
        spoil(file["data/demo_1"])
    with pytest.raises(DataFormatError, match=message) as said:
        open_robomimic(path).describe()
    assert "demo_1" in str(said.value)
    assert "\n" not in str(said.value)


def test_values_of_other_files_are_not_read(tmp_path):
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path)
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/actions"], file["data/demo_2/obs/object"]
        file["data/demo_2/obs/object"] = h5py.ExternalLink("other.hdf5", "/x")
        storage = [(str(tmp_path / "secret"), 0, 48)]
        file["data/demo_1"].create_dataset("actions", (3, 2), "f8", external=storage)
    with pytest.raises(DataFormatError, match="external storage"):
        open_robomimic(path).describe()
    with h5py.File(path, "r+") as file:
        file.move("data/demo_2", "data/demo_0b")
        del file["data/demo_1"]
        file.move("data/demo_0b", "data/demo_1")
    with pytest.raises(DataFormatError, match=r"is a link to other\.hdf5"):
        open_robomimic(path).describe()


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path, count):
    path = tmp_path / "low_dim.hdf5"
    keys = {"train": names(0), "valid": names(1)}
    write_robomimic(path, counts=(5, 5), keys=keys, images=False, states={"x": (3,)})

    def make(spoilt):
        return ReaderSource(READER, spoilt, "train")

    found = drill_source(make, path, mutate_bytes, count=count)
    assert found.read > 0 < found.refused


def test_rows_are_stored_as_they_were_checked(tmp_path):
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path)
    found = schema.cast_rows(read_all(open_robomimic(path), 1000))
    assert {name: values.dtype.name for name, values in found.items()} == {
        "observations": "float32",
        "actions": "float32",
        "rewards": "float32",
        "masks": "bool",
    }
