import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.sources.episodes import cut
from pipeline.sources.rewarded_npz import OwnNpz
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
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
    facts = OwnNpz(path).describe()
    assert facts.lengths == LENGTHS
    found, members = read_all(OwnNpz(path)), np.load(path)
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
    source = OwnNpz(path)
    assert source.describe().lengths == tuple(n + 1 for n in LENGTHS)
    found = read_all(source)
    last = np.cumsum(np.array(LENGTHS) + 1) - 1
    np.testing.assert_array_equal(
        found["observations"][last], rows["observations"][ends] + 1
    )
    assert found["rewards"].sum() == 28
    assert (~found["masks"]).sum() == 3


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


def test_what_a_terminal_means_has_to_be_said(make_npz):
    path = make_npz(rewards=np.zeros(17))
    with pytest.raises(DataFormatError, match="masks or timeouts"):
        OwnNpz(path).describe()
    with pytest.raises(DataFormatError, match="add rewards"):
        OwnNpz(make_npz()).describe()


def test_nothing_is_unpickled(make_own):
    path = make_own(rewards=np.array([{}] * 28, object))
    with pytest.raises(DataFormatError, match="nothing is ever unpickled"):
        OwnNpz(path).describe()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(make_own, count, compressed):
    path = Path(make_own(compressed=compressed))
    found = drill_source(OwnNpz, path, mutate_bytes, count=count // 2)
    assert found.read > 0 < found.refused


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_header_ends_in_a_traceback(make_own, count):
    found = drill_source(OwnNpz, Path(make_own()), mutate_header, count=count)
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
