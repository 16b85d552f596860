import json
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.domains.observations import flatten
from pipeline.sources.episodes import cut
from pipeline.sources.minari import Minari
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.fuzz import MUTATIONS, drill_source, mutate_bytes


def read_all(source, rows):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    rows = {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}
    return schema.cast_rows(rows)


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
    rewards = np.concatenate([buffer.rewards for buffer in buffers]).astype("f4")
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
def test_minari_s_dictionaries_are_laid_out_by_name(make_minari, tmp_path):
    inner = gymnasium.spaces.Dict({"z": BOX, "a": BOX})
    space = gymnasium.spaces.Dict({"xy": BOX, "goal": inner})
    observations, actions = draw((3, 5))
    folder, _ = make_minari(
        [{"xy": o, "goal": {"z": 2 * o, "a": 3 * o}} for o in observations],
        actions,
        space,
    )
    source = Minari(f"{folder}/data/main_data.hdf5")
    field = source.describe().fields["observations"]
    assert field.shape == (12,)
    assert field.unit == "side by side: goal/a[4], goal/z[4], xy[4]"
    found = read_all(source, 4)["observations"]
    laid_out = np.concatenate([np.hstack([3 * o, 2 * o, o]) for o in observations])
    np.testing.assert_array_equal(found, laid_out.astype(np.float32))
    # An environment's own observation is laid out in the same way.
    o = observations[0][1]
    acted = flatten({"xy": o, "goal": {"z": 2 * o, "a": 3 * o}})
    np.testing.assert_array_equal(acted.astype(np.float32), found[1])
    out = str(tmp_path / "store")
    assert main(["shard", folder, "--dataset", "walk", "--out", out]) == 0
    assert Store(out).manifest.fields["observations"] == field


def test_soft_links_that_lead_round_are_refused(tmp_path):
    path = write_small(tmp_path / "main_data.hdf5")
    with h5py.File(path, "r+") as file:
        del file["episode_0/observations"]
        for name in "ab":
            file[f"episode_0/observations/{name}"] = h5py.SoftLink(
                "/episode_0/observations"
            )
    with pytest.raises(DataFormatError, match="groups deep"):
        Minari(str(path)).describe()


def test_a_minari_episode_of_unlike_lengths_is_named(tmp_path):
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for name, n in (("observations", 3), ("actions", 3), ("rewards", 3)):
            file[f"episode_0/{name}"] = np.zeros((n, 1))
        file["episode_0/terminations"] = np.zeros(3, bool)
    with pytest.raises(DataFormatError, match="episode_0: expected 4 observations"):
        Minari(str(path)).describe()


def write_small(path):
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(2):
            episode = file.create_group(f"episode_{number}")
            episode["observations"] = random.normal(size=(6, 4))
            episode["actions"] = random.uniform(-1, 1, (5, 2))
            episode["rewards"] = -np.ones(5)
            episode["terminations"] = np.arange(5) == 4
    return path


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path, count):
    path = write_small(tmp_path / "main_data.hdf5")
    found = drill_source(Minari, path, mutate_bytes, count=count)
    assert found.read > 0 < found.refused


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "x", "\xff", '{"a": '])
def test_metadata_that_are_none_are_refused(tmp_path, text):
    path = write_small(tmp_path / "main_data.hdf5")
    path.with_name("metadata.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataFormatError, match=r"metadata\.json"):
        Minari(str(path)).describe()


def say_environment(folder, **metadata):
    """Writes into a data set what Minari keeps of its environment."""
    path = Path(folder) / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **metadata}))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_environment_is_read_and_shown_and_not_imported(
    make_minari, tmp_path, capsys
):
    folder, _ = make_minari(*draw([3, 4]), BOX)
    assert Minari(f"{folder}/data/main_data.hdf5").describe().environment is None
    spec = json.loads(gymnasium.spec("Pendulum-v1").to_json()) | {
        "entry_point": "tests.nowhere:Swing",
        "kwargs": {"g": 9.8, "map": [[1, 0]], "path": "../x"},
    }
    say_environment(
        folder, env_spec=json.dumps(spec), ref_min_score=-9.5, ref_max_score=100
    )
    found = Minari(f"{folder}/data/main_data.hdf5").describe().environment
    assert found.environment_id == "Pendulum-v1"
    assert found.arguments == {"g": 9.8, "max_episode_steps": 200}
    assert found.left_out == ("map", "path")
    assert found.reference_scores == (-9.5, 100.0)
    # What is meant for evaluating goes first.
    say_environment(folder, eval_env_spec=json.dumps({**spec, "id": "Own-v0"}))
    shard = ["shard", folder, "--dataset", "toy", "--out", str(tmp_path / "store")]
    assert main([*shard, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert (
        'the data are of Own-v0 {"max_episode_steps": 200, "g": 9.8} (tests.n' in said
    )
    assert "its arguments map, path are no numbers or words and are left out" in said


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "spec",
    [
        *(3, "[]", "{}", '{"id": 3, "kwargs": {}}', '{"id": "a:b", "kwargs": {}}'),
        '{"id": "a-v0", "kwargs": 3}',
    ],
)
def test_what_is_no_environment_is_none(make_minari, spec):
    folder, _ = make_minari(*draw([3]), BOX)
    say_environment(folder, env_spec=spec, ref_min_score="x", ref_max_score=None)
    source = Minari(f"{folder}/data/main_data.hdf5")
    if spec == "[]":
        with pytest.raises(DataFormatError, match="expected a JSON object"):
            source.describe()
    else:
        assert source.describe().environment is None


def write_entries(path, *episodes):
    """Episodes of 4 steps, each with its own members; observations by name."""
    with h5py.File(path, "w") as file:
        for number, members in enumerate(episodes):
            whole = {
                "actions": np.zeros((4, 2)),
                "rewards": np.ones(4),
                "terminations": np.zeros(4, bool),
                **members,
            }
            for name, values in whole.items():
                file[f"episode_{number}/{name}"] = values
    return Minari(str(path))


def entries(**widths):
    return {f"observations/{name}": np.ones((5, n)) for name, n in widths.items()}


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (entries(a=3, b=2), "(a[3], b[2])"),
        (entries(a=2, c=3), "(a[2], c[3])"),
        (entries(a=5), "(a[5])"),
        ({"observations": np.ones((5, 5))}, "masks bool[]; make"),
        (entries(a=2, b=3) | {"actions": np.zeros((4, 3))}, "actions float32[3]"),
    ],
)
def test_episodes_of_another_layout_are_named(tmp_path, other, got):
    alike = entries(a=2, b=3)
    source = write_entries(tmp_path / "main_data.hdf5", alike, alike, other)
    with pytest.raises(DataFormatError) as said:
        source.describe()
    assert "main_data.hdf5: episode_2: expected rows as those of " in str(said.value)
    expected, _, found = str(said.value).partition(", got ")
    assert "(a[2], b[3])" in expected
    assert got in found


def test_images_in_a_dictionary_are_said(tmp_path):
    plain = entries(a=2)
    source = write_entries(tmp_path / "main_data.hdf5", plain)
    assert source.describe().warnings == ()
    images = plain | {"observations/b": np.ones((5, 8, 8, 3), np.uint8)}
    path = write_entries(tmp_path / "images.hdf5", images)
    (warning,) = path.describe().warnings
    assert "b [8, 8, 3]" in warning
    assert path.describe().fields["observations"].shape == (2 + 8 * 8 * 3,)


def test_dtypes_that_are_stored_alike_are_alike(tmp_path):
    wide, narrow = entries(a=2, b=3), entries(a=2, b=3)
    narrow["observations/a"] = narrow["observations/a"].astype(np.float16)
    narrow["rewards"] = np.ones((4, 1), np.float32)
    source = write_entries(tmp_path / "main_data.hdf5", wide, narrow)
    assert source.describe().lengths == (5, 5)
    assert read_all(source, 100)["observations"].sum() == 50
