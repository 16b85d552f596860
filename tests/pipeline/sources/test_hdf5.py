import gymnasium
import h5py
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.sources import hdf5
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.episodes import cut
from pipeline.sources.minari import Minari
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from pipeline.store.returns import suffix_sums

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
    return {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}


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
    with (
        pytest.raises(DataFormatError, match="expected a whole HDF5"),
        hdf5.opened(__file__),
    ):
        pass


@pytest.fixture
def make_minari(tmp_path, monkeypatch):
    """Data sets as Minari itself writes them."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    import minari
    from minari.data_collector import EpisodeBuffer

    def make(observations, actions, space):
        random = np.random.default_rng(1)
        buffers = [
            EpisodeBuffer(
                observations=observations[i],
                actions=actions[i],
                rewards=random.normal(size=len(actions[i])).tolist(),
                terminations=[False] * (len(actions[i]) - 1) + [i == 0],
                truncations=[False] * (len(actions[i]) - 1) + [i != 0],
            )
            for i in range(len(actions))
        ]
        minari.create_dataset_from_buffers(
            "toy/walk-v0",
            buffers,
            observation_space=space,
            action_space=gymnasium.spaces.Box(-1, 1, (2,)),
        )
        return str(tmp_path / "toy" / "walk-v0"), buffers

    return make


BOX = gymnasium.spaces.Box(-np.inf, np.inf, (4,))


def draw(counts, shape=(4,)):
    random = np.random.default_rng(0)
    return (
        [random.normal(size=(n + 1, *shape)) for n in counts],
        [random.uniform(-1, 1, (n, 2)).astype(np.float32) for n in counts],
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("rows", [4, 1000])
def test_minari_s_own_files_are_read(make_minari, rows):
    counts = (3,) * 9 + (5, 4)  # episode_10 comes after episode_2
    observations, actions = draw(counts)
    folder, buffers = make_minari(observations, actions, BOX)
    source = Minari(f"{folder}/data/main_data.hdf5")
    facts = source.describe()
    assert facts.name == "toy/walk-v0"
    assert facts.lengths == tuple(n + 1 for n in counts)
    found = read_all(source, rows)
    np.testing.assert_array_equal(
        found["observations"], np.concatenate(observations).astype(np.float32)
    )
    ends = np.cumsum(facts.lengths) - 1
    inner = np.setdiff1d(np.arange(sum(facts.lengths)), ends)
    np.testing.assert_array_equal(found["actions"][inner], np.concatenate(actions))
    rewards = np.concatenate([buffer.rewards for buffer in buffers])
    np.testing.assert_array_equal(found["rewards"][inner], rewards)
    assert np.flatnonzero(~found["masks"]).tolist() == [2]  # the one termination


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_minari_folder_becomes_a_store(make_minari, tmp_path):
    folder, _ = make_minari(*draw((3, 5)), BOX)
    out = str(tmp_path / "store")
    assert main(["shard", folder, "--dataset", "walk", "--out", out]) == 0
    assert Store(out).rows() == 10
    assert main(["verify", out, "--deep"]) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_s_dictionaries_are_refused(make_minari, tmp_path):
    space = gymnasium.spaces.Dict({"xy": BOX, "goal": BOX})
    observations, actions = draw((3,))
    folder, _ = make_minari(
        [{"xy": o, "goal": o} for o in observations], actions, space
    )
    with pytest.raises(DataFormatError, match=r"got a group of goal, xy"):
        Minari(f"{folder}/data/main_data.hdf5").describe()


def test_a_minari_episode_of_unlike_lengths_is_named(tmp_path):
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for name, n in (("observations", 3), ("actions", 3), ("rewards", 3)):
            file[f"episode_0/{name}"] = np.zeros((n, 1))
        file["episode_0/terminations"] = np.zeros(3, bool)
    with pytest.raises(DataFormatError, match="episode_0: expected 4 observations"):
        Minari(str(path)).describe()
