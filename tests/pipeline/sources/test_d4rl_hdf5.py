from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.episodes import cut
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from pipeline.store.returns import suffix_sums
from tests.fuzz import MUTATIONS, drill_source, mutate_bytes

COUNTS = (30, 20, 25, 25)


@pytest.fixture
def make_d4rl(tmp_path):
    def make(name="hopper.hdf5", *, without=(), seed=0, **replaced):
        random = np.random.default_rng(seed)
        n = sum(COUNTS)
        states = np.cumsum(random.normal(scale=0.1, size=(n + 1, 11)), axis=0)
        last = np.cumsum(COUNTS) - 1
        terminals, timeouts = np.zeros(n, bool), np.zeros(n, bool)
        terminals[last[::2]], timeouts[last[1::2]] = True, True
        members = {
            "observations": states[:-1],
            "next_observations": states[1:],
            "actions": random.uniform(-1, 1, (n, 3)).astype(np.float32),
            "rewards": random.normal(size=n).astype(np.float32),
            "terminals": terminals,
            "timeouts": timeouts,
            **replaced,
        }
        with h5py.File(tmp_path / name, "w") as file:
            for key, values in members.items():
                if key not in without:
                    file.create_dataset(key, data=values, compression="gzip")
            file.create_dataset("infos/qpos", data=np.zeros((n, 2)))
            file["metadata/algorithm"] = "SAC"
        return str(tmp_path / name), members

    return make


def read_all(source, rows):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    rows = {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}
    return schema.cast_rows(rows)


@pytest.mark.parametrize("rows", [25, 1000])
def test_d4rl_rows_are_its_transitions_and_the_states_they_end_in(make_d4rl, rows):
    path, members = make_d4rl()
    facts = D4rlHdf5(path).describe()
    assert facts.lengths == tuple(count + 1 for count in COUNTS)
    assert facts.ignored == ("infos", "metadata")
    assert facts.fields["observations"].dtype == "float32"
    assert facts.warnings == ()
    found = read_all(D4rlHdf5(path), rows)
    ends = np.cumsum(np.array(facts.lengths)) - 1
    inner = np.setdiff1d(np.arange(len(found["rewards"])), ends)
    for name in ("observations", "actions", "rewards"):
        expected = members[name].astype(np.float32)
        np.testing.assert_array_equal(found[name][inner], expected)
    np.testing.assert_array_equal(found["masks"][inner], ~members["terminals"])
    after = members["next_observations"][np.cumsum(COUNTS) - 1]
    np.testing.assert_array_equal(found["observations"][ends], after.astype("f4"))


def test_d4rl_becomes_a_store_of_one_task(make_d4rl, tmp_path, capsys):
    path, members = make_d4rl()
    arguments = ["shard", path, "--dataset", "hopper-medium", "--discounts", "0.9"]
    out = str(tmp_path / "store")
    assert main([*arguments, "--out", out, "--environment", "Hopper-v5"]) == 0
    store = Store(out)
    (task,) = store.manifest.tasks
    assert (task.recipe, task.environment_id) == ("stored", "Hopper-v5")
    assert task.success_timing == "post"
    assert store.rows() == sum(COUNTS) + len(COUNTS)
    sums = suffix_sums(
        store.read("rewards"),
        store.read("masks"),
        store.episodes().lengths,
        discount=0.9,
    )
    np.testing.assert_array_equal(store.read("returns/0.9"), sums)
    # The reward of the transition that ended the task counts in full.
    assert sums[COUNTS[0] - 1, 0] == members["rewards"][COUNTS[0] - 1]
    capsys.readouterr()
    assert main(["verify", out, "--deep"]) == 0
    assert main(["relabel", out, "--discounts", "0.5"]) == 0
    assert main(["verify", out, "--deep"]) == 0
    assert main(["relabel", out, "--tasks", "2"]) == 2


def test_b2_a_suspected_boundary_is_printed_with_the_plan(make_d4rl, tmp_path, capsys):
    n = sum(COUNTS)
    states = np.cumsum(np.full((n + 1, 2), 0.1), axis=0)
    states[40:, 0] += 20.0
    path, _ = make_d4rl(observations=states[:-1], without=["next_observations"])
    arguments = ["shard", path, "--dataset", "maze", "--out", str(tmp_path / "s")]
    assert main([*arguments, "--dry-run"]) == 0
    assert "a boundary may be missing after rows 39" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": ["rewards"]}, "expected a data set rewards, got nothing"),
        ({"rewards": np.zeros(7)}, "'rewards': 7"),
        ({"actions": np.array([b"a"] * 100)}, "expected numbers"),
    ],
)
def test_d4rl_files_that_lack_something_are_refused(make_d4rl, options, message):
    path, _ = make_d4rl(**options)
    with pytest.raises(DataFormatError, match=message):
        D4rlHdf5(path).describe()


def test_f5_an_hdf5_cut_short_is_named_with_its_size(make_d4rl, tmp_path):
    make_d4rl()
    whole = (tmp_path / "hopper.hdf5").read_bytes()
    cut_short = tmp_path / "cut.hdf5"
    cut_short.write_bytes(whole[: len(whole) * 3 // 10])
    size = f"{len(whole) * 3 // 10:,} bytes"
    with pytest.raises(DataFormatError, match=rf"cut\.hdf5: .*{size}"):
        D4rlHdf5(str(cut_short)).describe()


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(make_d4rl, count):
    path, _ = make_d4rl()
    found = drill_source(D4rlHdf5, Path(path), mutate_bytes, count=count)
    assert found.read > 0 < found.refused
