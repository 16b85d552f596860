import io
import zipfile
from pathlib import Path

import numpy as np
import ogbench
import pytest

from pipeline.cli import main
from pipeline.sources.episodes import cut
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from pipeline.store.returns import suffix_sums
from tests.fuzz import MUTATIONS, drill_source, mutate_bytes

LENGTHS = (5, 5, 7, 4, 1, 6)


@pytest.fixture
def make_own(make_npz, make_rows):
    def make(**members):
        random = np.random.default_rng(3)
        own = {
            "rewards": random.normal(size=28),
            "masks": random.integers(0, 2, 28).astype(np.float32),
        }
        return make_npz(LENGTHS, without=["qpos", "qvel"], **{**own, **members})

    return make


def read_all(source, rows=8):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    rows = {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}
    return schema.cast_rows(rows)


def test_rows_with_masks_are_as_ogbench_s(make_own, make_rows):
    path = make_own()
    facts = RewardedNpz(path).describe()
    assert facts.lengths == LENGTHS
    found, members = read_all(RewardedNpz(path)), np.load(path)
    for name in ("observations", "actions", "rewards", "masks"):
        expected = members[name].astype(found[name].dtype)
        np.testing.assert_array_equal(found[name], expected)


def test_rows_with_timeouts_are_transitions(make_npz, make_rows):
    rows = make_rows(LENGTHS)
    ends = np.flatnonzero(rows["terminals"])
    terminals, timeouts = np.zeros(28), np.zeros((28, 1))
    terminals[ends[::2]], timeouts[ends[1::2]] = 1, 1
    path = make_npz(
        LENGTHS,
        without=["qpos", "qvel"],
        terminals=terminals,
        timeouts=timeouts[:, 0],
        next_observations=rows["observations"] + 1,
        rewards=np.ones((28, 1)),
    )
    source = RewardedNpz(path)
    assert source.describe().lengths == tuple(n + 1 for n in LENGTHS)
    found = read_all(source)
    last = np.cumsum(np.array(LENGTHS) + 1) - 1
    np.testing.assert_array_equal(
        found["observations"][last], rows["observations"][ends] + 1
    )
    assert found["rewards"].sum() == 28
    assert (~found["masks"]).sum() == 3


def make_forms(make_npz, make_rows, tasks, *, unmarked=(), **members):
    """The same trajectories as OGBench's compact form, and as its regular form."""
    lengths, n = (5, 5, 7, 2, 6), 25
    random = np.random.default_rng(7)
    shape = (n, tasks) if tasks else (n,)
    last = np.cumsum(lengths) - 1
    labels = {
        "rewards": random.normal(size=shape),
        "masks": random.integers(0, 2, shape).astype(np.float32),
    }
    # The regular form has no row for the last state, so that no reward belongs to it.
    labels["rewards"][last], labels["masks"][last] = 0, 1
    actions = make_rows(lengths)["actions"]
    actions[last] = 0
    compact = make_npz(lengths, name="compact.npz", actions=actions, **labels)
    regular = ogbench.utils.load_dataset(compact, compact_dataset=False)
    assert len(regular["terminals"]) == n - len(lengths)
    regular |= {name: np.delete(v, last, axis=0) for name, v in labels.items()}
    regular["terminals"][list(unmarked)] = 0
    regular = make_npz(
        name="regular.npz", without=["qpos", "qvel"], **regular, **members
    )
    return compact, regular, lengths


@pytest.mark.parametrize(
    "members",
    [
        {},
        # The first time limit is marked in both members, or in `timeouts` alone.
        {"timeouts": np.arange(20) == 3},
        {"timeouts": np.arange(20) == 3, "unmarked": [3]},
    ],
)
@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_the_regular_form_is_read_as_the_compact_one(
    make_npz, make_rows, tasks, members
):
    compact, regular, lengths = make_forms(make_npz, make_rows, tasks, **members)
    one, two = RewardedNpz(compact), RewardedNpz(regular)
    assert one.describe().lengths == two.describe().lengths == lengths
    assert one.describe().fields == two.describe().fields
    for rows in (1, 8, 100):
        expected, found = read_all(one, rows), read_all(two, rows)
        assert expected.keys() == found.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name])
    assert len(np.unique(found["masks"])) == 2
    sums = [
        suffix_sums(
            rows["rewards"].reshape(25, -1),
            rows["masks"].reshape(25, -1),
            np.array(lengths),
            discount=0.9,
        )
        for rows in (expected, found)
    ]
    np.testing.assert_array_equal(*sums)


def make_timed(make_npz, make_rows, **members):
    """Transitions that end by the task and by time limits in turn."""
    ends = np.flatnonzero(make_rows(LENGTHS)["terminals"])
    terminals, timeouts = np.zeros((28, 1)), np.zeros(28)
    terminals[ends[::2]], timeouts[ends[1::2]] = 1, 1
    random = np.random.default_rng(5)
    given = {"terminals": terminals, "timeouts": timeouts}
    given |= {"rewards": random.normal(size=28), "masks": 1 - terminals, **members}
    return make_npz(LENGTHS, without=["qpos", "qvel"], **given), given


@pytest.mark.parametrize("following", [False, True])
def test_masks_take_no_time_limits_away(make_npz, make_rows, following):
    more = make_rows(LENGTHS, 1)["observations"]
    more = {"next_observations": more} if following else {}
    path, given = make_timed(make_npz, make_rows, **more)
    source = RewardedNpz(path)
    del given["masks"]
    plain = make_npz(LENGTHS, name="b.npz", without=["qpos", "qvel"], **given)
    plain = RewardedNpz(plain)
    lengths = (6, 5 + following, 8, 4 + following, 2, 6 + following)
    assert source.describe().lengths == plain.describe().lengths == lengths
    for name, values in read_all(plain).items():
        np.testing.assert_array_equal(values, read_all(source)[name])


def test_masks_say_which_last_states_are_made_up(make_npz, make_rows):
    # Terminals end the first, third and fifth episode. The masks say that the first
    # solves both tasks, the third none and the fifth one.
    masks = np.ones((28, 2))
    masks[[4, 21]], masks[21, 1] = 0, 1
    members = {"rewards": np.ones((28, 2)), "masks": masks}
    source = RewardedNpz(make_timed(make_npz, make_rows, **members)[0])
    description = source.describe()
    assert description.lengths == (6, 5, 7, 4, 1, 6)
    assert "1 episodes lose their last transition" in description.warnings[0]
    found = read_all(source)
    np.testing.assert_array_equal(found["observations"][4], found["observations"][5])
    assert (found["masks"] == 0).all(axis=1).tolist() == [n == 4 for n in range(29)]


@pytest.mark.parametrize("marked", [0, 1])
@pytest.mark.parametrize("tasks", [0, 2])
def test_masks_and_timeouts_of_two_readings_are_refused(make_own, marked, tasks):
    ends = np.zeros(28)
    ends[np.cumsum(LENGTHS)[:3] - 1] = marked
    shape = (28, tasks) if tasks else (28,)
    members = {"rewards": np.ones(shape), "masks": np.ones(shape), "timeouts": ends}
    message = r"npz: expected timeouts .* remove timeouts if .*, add next_observations"
    with pytest.raises(DataFormatError, match=message) as said:
        RewardedNpz(make_own(**members)).describe()
    assert "\n" not in str(said.value)


def test_ends_that_the_regular_form_lacks_are_suspected(make_npz, make_rows):
    _, regular, _ = make_forms(make_npz, make_rows, 0)
    assert RewardedNpz(regular).describe().warnings == ()
    _, regular, _ = make_forms(make_npz, make_rows, 0, unmarked=[7])
    (warning,) = RewardedNpz(regular).describe().warnings
    assert "a boundary may be missing after rows 7" in warning


def test_b2_ends_that_rows_of_states_lack_are_suspected(make_npz):
    rng = np.random.default_rng(0)
    walks = [np.cumsum(rng.normal(size=(200, 2)), axis=0) for _ in range(4)]
    ends = np.zeros(800, np.bool_)
    ends[[199, 399, 799]] = True
    path = make_npz(
        (800,),
        without=["qpos", "qvel"],
        observations=np.concatenate([walk + 500 * i for i, walk in enumerate(walks)]),
        terminals=ends,
        rewards=np.zeros(800),
        masks=np.ones(800),
    )
    (warning,) = RewardedNpz(path).describe().warnings
    assert "1 steps inside an episode are more than 10 times as long" in warning
    assert "a boundary may be missing after rows 599" in warning


@pytest.mark.parametrize("named", [(), ("--source", "npz")])
def test_it_becomes_a_store_of_one_task(make_own, tmp_path, named):
    out = str(tmp_path / "store")
    path = make_own()
    assert main(["shard", path, "--dataset", "mine", "--out", out, *named]) == 0
    store = Store(out)
    assert [task.recipe for task in store.manifest.tasks] == ["stored"]
    masks = np.load(path)["masks"]
    np.testing.assert_array_equal(store.read("masks", column=0), masks)
    assert main(["verify", out, "--deep"]) == 0


def test_its_export_makes_an_equal_store(make_own, tmp_path):
    out, again = str(tmp_path / "store"), str(tmp_path / "again")
    npz = str(tmp_path / "out.npz")
    assert main(["shard", make_own(), "--dataset", "mine", "--out", out]) == 0
    assert main(["export", out, "--npz", npz]) == 0
    assert main(["shard", npz, "--dataset", "mine", "--out", again]) == 0
    (one,), (two,) = (Store(each).manifest.parts for each in (out, again))
    assert one.checksums == two.checksums


@pytest.mark.parametrize("shared", [False, True])
def test_several_tasks_are_as_many_stores_of_one(make_own, tmp_path, shared):
    random = np.random.default_rng(4)
    rewards = random.normal(size=(28, 3))
    masks = random.integers(0, 2, (28, 1) if shared else (28, 3))
    path, out = make_own(rewards=rewards, masks=masks), str(tmp_path / "store")
    assert main(["shard", path, "--dataset", "mine", "--out", out]) == 0
    store = Store(out)
    tasks = [(task.task, task.name) for task in store.manifest.tasks]
    assert tasks == [(1, "stored_1"), (2, "stored_2"), (3, "stored_3")]
    for task in range(3):
        column = masks[:, 0 if shared else task]
        alone = str(tmp_path / f"alone-{task}")
        path = make_own(name=f"{task}.npz", rewards=rewards[:, task], masks=column)
        assert main(["shard", path, "--dataset", "mine", "--out", alone]) == 0
        single = Store(alone)
        for name in ("rewards", "masks", "returns/0.99"):
            values = store.read(name, column=task)
            np.testing.assert_array_equal(values, single.read(name, column=0))
            assert len(np.unique(values)) > 1
    # New labels, checks and files of several tasks.
    assert main(["relabel", out, "--discounts", "0.9"]) == 0
    assert main(["verify", out, "--deep"]) == 0
    npz, again = str(tmp_path / "out.npz"), str(tmp_path / "again")
    assert main(["export", out, "--npz", npz]) == 0
    discounts = ("--discounts", "0.9", "0.99")
    assert main(["shard", npz, "--dataset", "mine", "--out", again, *discounts]) == 0
    (one,), (two,) = (Store(each).manifest.parts for each in (out, again))
    assert one.checksums == two.checksums


def test_tasks_of_transitions_share_where_episodes_end(make_npz, make_rows):
    terminals = make_rows(LENGTHS)["terminals"]
    members = {"rewards": np.arange(56).reshape(28, 2), "timeouts": np.zeros(28)}
    path = make_npz(
        LENGTHS, without=["qpos", "qvel"], **members, terminals=terminals[:, None]
    )
    found = read_all(RewardedNpz(path))
    assert found["rewards"].shape == (28 + len(LENGTHS), 2)
    last = np.cumsum(np.array(LENGTHS) + 1) - 1
    np.testing.assert_array_equal(found["rewards"][last], np.zeros((6, 2)))
    np.testing.assert_array_equal(
        np.delete(found["rewards"], last, axis=0), members["rewards"]
    )
    assert (~found["masks"]).sum() == len(LENGTHS)
    path = make_npz(
        LENGTHS, without=["qpos", "qvel"], **members, terminals=np.ones((28, 2))
    )
    with pytest.raises(
        DataFormatError, match=r"expected terminals \[rows\], one number"
    ):
        RewardedNpz(path).describe()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"rewards": np.ones((28, 3)), "masks": np.ones((28, 2))},
            "expected masks [rows] for all tasks alike, or as rewards are, "
            "['rows', 3], got ['rows', 2]",
        ),
        (
            {"masks": np.ones((28, 2))},
            "expected masks [rows] for all tasks alike, or as rewards are, ['rows'], "
            "got ['rows', 2]",
        ),
        (
            {"rewards": np.ones((28, 3, 1))},
            "expected rewards [rows], or [rows, tasks] for several tasks, got "
            "float64['rows', 3, 1]",
        ),
        (
            {"rewards": np.where(np.arange(84) == 50, np.nan, 1.0).reshape(28, 3)},
            "own.npz, episode 2, row 6: rewards[2] is nan",
        ),
        (
            {"rewards": np.ones((28, 2)), "masks": np.full((28, 2), 0.5)},
            "own.npz, episode 0, row 0: masks[0] is 0.5",
        ),
    ],
)
def test_tasks_that_cannot_be(make_own, tmp_path, members, message, capsys):
    path = make_own(name="own.npz", **members)
    out = str(tmp_path / "store")
    assert main(["shard", path, "--dataset", "mine", "--out", out]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert message in line


def test_files_of_unlike_tasks_are_refused(make_own, tmp_path, capsys):
    folder, out = str(tmp_path / "data"), str(tmp_path / "store")
    Path(folder).mkdir()
    for name, tasks in (("a.npz", 3), ("b.npz", 2)):
        path = make_own(name=name, rewards=np.ones((28, tasks)), masks=np.ones(28))
        Path(path).rename(f"{folder}/{name}")
    assert main(["shard", folder, "--dataset", "mine", "--out", out]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert (
        "b.npz: expected rewards of 3 task(s), got 2; all inputs of a store" in said[0]
    )
    store = ("--dataset", "mine", "--out", out)
    assert main(["shard", f"{folder}/a.npz", *store]) == 0
    capsys.readouterr()
    assert main(["append", out, f"{folder}/b.npz"]) == 2
    assert "b.npz: expected rewards of 3 task(s), got 2" in capsys.readouterr().err


def test_what_a_terminal_means_has_to_be_said(make_npz):
    path = make_npz(rewards=np.zeros(17))
    with pytest.raises(DataFormatError, match="masks or timeouts"):
        RewardedNpz(path).describe()
    with pytest.raises(DataFormatError, match="add rewards"):
        RewardedNpz(make_npz()).describe()


def test_nothing_is_unpickled(make_own):
    path = make_own(rewards=np.array([{}] * 28, object))
    with pytest.raises(DataFormatError, match="nothing is ever unpickled"):
        RewardedNpz(path).describe()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(make_own, count, compressed):
    path = Path(make_own(compressed=compressed))
    found = drill_source(RewardedNpz, path, mutate_bytes, count=count // 2)
    assert found.read > 0 < found.refused


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_header_ends_in_a_traceback(make_own, count):
    found = drill_source(RewardedNpz, Path(make_own()), mutate_header, count=count)
    assert found.read > 0 < found.refused


def mutate_header(data, draw):
    """Spoils the beginning of one member, within an archive that is whole."""
    spoilt = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(spoilt, "w") as written,
    ):
        names = archive.namelist()
        chosen = draw.choice(names)
        for name in names:
            member = archive.read(name)
            if name == chosen:  # 128 bytes of header, and some of values.
                member = mutate_bytes(member[:192], draw) + member[192:]
            written.writestr(name, member)
    return spoilt.getvalue()
