import pickle
import zipfile
from pathlib import Path

import numpy as np
import ogbench.utils
import pytest

from pipeline.sources import deflate
from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from tests.fuzz import MUTATIONS, drill_source, mutate_bytes

LENGTHS = (5, 5, 7, 4, 1, 6)


def read_all(path, rows=8):
    source = OgbenchNpz(path)
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    names = blocks[0].rows
    return schema.cast_rows(
        {n: np.concatenate([b.rows[n] for b in blocks]) for n in names}
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_blocks_are_the_file_in_order(make_npz, make_rows, compressed):
    path = make_npz(LENGTHS, compressed=compressed)
    source, rows = OgbenchNpz(path), make_rows(LENGTHS)
    facts = source.describe()
    assert facts.lengths == LENGTHS
    assert facts.name == "cube-single-play.npz"
    assert list(facts.fields) == ["observations", "actions", "qpos", "qvel"]
    ranges = cut(facts.episodes, 8)
    assert len(ranges) > 2
    blocks = list(source.read(ranges))
    assert [b.lengths.tolist() for b in blocks] == [list(r.lengths) for r in ranges]
    first = 0
    for block, episodes in zip(blocks, ranges, strict=True):
        assert block.indices[0] == episodes.first_episode
        for name, values in block.rows.items():
            np.testing.assert_array_equal(
                values, rows[name][first : first + episodes.rows]
            )
        first += episodes.rows


@pytest.mark.parametrize("compressed", [True, False])
def test_a_part_starts_at_its_own_row(make_npz, make_rows, compressed, monkeypatch):
    monkeypatch.setattr(deflate, "_PIECE_BYTES", 100)  # many pieces, none of whole rows
    source = OgbenchNpz(make_npz(LENGTHS, compressed=compressed))
    episodes = EpisodeRange(2, 10, LENGTHS[2:4])
    (block,) = source.read([episodes])
    expected = make_rows(LENGTHS)["observations"][10:21]
    np.testing.assert_array_equal(block.rows["observations"], expected)
    assert block.indices.tolist() == [2, 3]


def test_a_source_travels_by_its_path_alone(make_npz):
    source = OgbenchNpz(make_npz())
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert len(pickle.dumps(source)) < 500


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ">f4", np.float16, np.int64])
def test_dtypes_are_those_of_ogbench(make_npz, make_rows, dtype):
    rows = make_rows(LENGTHS)
    path = make_npz(
        LENGTHS,
        observations=rows["observations"].astype(dtype),
        qpos=rows["qpos"].astype(np.float64),
        terminals=rows["terminals"].astype(np.float32),
    )
    expected = ogbench.utils.load_dataset(path, compact_dataset=True, add_info=True)
    found = read_all(path)
    for name, values in found.items():
        assert values.dtype == expected[name].dtype.newbyteorder("=")
        np.testing.assert_array_equal(values, expected[name])
    assert found["observations"].dtype == np.float32
    assert found["qpos"].dtype == np.float64


def test_f6_images_keep_their_dtype(make_npz):
    images = np.random.default_rng(0).integers(0, 256, (28, 64, 64, 3), np.uint8)
    path = make_npz(LENGTHS, observations=images)
    assert OgbenchNpz(path).describe().fields["observations"].dtype == "uint8"
    np.testing.assert_array_equal(read_all(path)["observations"], images)


def test_other_members_are_reported_and_not_read(make_npz):
    path = make_npz(next_observations=np.zeros(3), names=np.array(["a", None], object))
    assert OgbenchNpz(path).describe().ignored == ("next_observations", "names")


def test_the_regular_form_is_told_what_it_loses(make_npz):
    compact = make_npz(LENGTHS)
    assert OgbenchNpz(compact).describe().warnings == ()
    rows = ogbench.utils.load_dataset(compact, compact_dataset=False, add_info=True)
    regular = OgbenchNpz(make_npz(name="regular.npz", **rows)).describe()
    assert regular.lengths == tuple(n - 1 for n in LENGTHS if n > 1)
    (warning,) = regular.warnings
    assert warning.startswith("regular.npz: next_observations is not read")
    assert "use the compact form" in warning


def test_the_digest_is_of_the_content_alone(make_npz, tmp_path):
    path = make_npz(LENGTHS)
    digest = OgbenchNpz(path).describe().digest
    assert OgbenchNpz(make_npz(LENGTHS, name="b.npz")).describe().digest == digest
    # Stored or deflated, the content is the same.
    plain = make_npz(LENGTHS, name="c.npz", compressed=False)
    assert OgbenchNpz(plain).describe().digest == digest
    other = make_npz(LENGTHS, name="d.npz", seed=1)
    assert OgbenchNpz(other).describe().digest != digest


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\*\.npz: expected a file"):
        OgbenchNpz(str(tmp_path / "nothing*.npz")).describe()


def test_f5_a_file_cut_short_is_named_with_its_size(make_npz, tmp_path):
    whole = (tmp_path / "cube-single-play.npz", make_npz(LENGTHS))[0].read_bytes()
    cut_short = tmp_path / "cut.npz"
    cut_short.write_bytes(whole[: len(whole) * 3 // 10])
    size = f"{cut_short.stat().st_size:,} bytes"
    with pytest.raises(DataFormatError, match=rf"cut\.npz: .*{size}"):
        OgbenchNpz(str(cut_short)).describe()


@pytest.mark.parametrize("name", ["observations", "actions", "terminals"])
def test_a_missing_member_is_named(make_npz, name):
    path = make_npz(without=[name])
    with pytest.raises(DataFormatError, match=f"{name}.*got"):
        OgbenchNpz(path).describe()


def test_members_of_unlike_length_are_refused(make_npz):
    path = make_npz(actions=np.zeros((16, 5), np.float32))
    with pytest.raises(DataFormatError, match="'actions': 16"):
        OgbenchNpz(path).describe()


def test_an_unterminated_last_trajectory_is_refused(make_npz):
    terminals = np.zeros(17, np.bool_)
    terminals[4] = True
    path = make_npz(terminals=terminals)
    with pytest.raises(DataFormatError, match="rows 5 to 16 are all 0"):
        OgbenchNpz(path).describe()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([{}] * 17, object), "nothing is ever unpickled"),
        (np.array(["a"] * 17), "expected numbers"),
        (np.asfortranarray(np.zeros((17, 21))), "Fortran order"),
        (np.float32(1.0), "expected rows in C order"),
    ],
)
def test_members_that_cannot_be_streamed_are_refused(make_npz, values, message):
    path = make_npz(qpos=values)
    with pytest.raises(DataFormatError, match=message):
        OgbenchNpz(path).describe()


def test_damaged_bytes_are_found_by_their_checksum(make_npz, tmp_path):
    path = make_npz((200, 200), compressed=False)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("qvel.npy")
    data = bytearray((tmp_path / "cube-single-play.npz").read_bytes())
    data[info.header_offset + info.file_size // 2] ^= 1
    (tmp_path / "cube-single-play.npz").write_bytes(data)
    OgbenchNpz(path).describe()
    with pytest.raises(DataFormatError, match="qvel: bytes are damaged"):
        read_all(path)


def test_a_header_that_lies_about_its_size_is_found(tmp_path, make_npz, make_rows):
    path = tmp_path / "lies.npz"
    make_npz(name="lies.npz", without=["qvel"])
    with zipfile.ZipFile(path, "a") as archive, archive.open("qvel.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f4", "fortran_order": False, "shape": (17, 20)}
        )
    with pytest.raises(DataFormatError, match="qvel: its header speaks of"):
        OgbenchNpz(str(path)).describe()


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(make_npz, count):
    path = Path(make_npz((5, 5, 7)))
    found = drill_source(OgbenchNpz, path, mutate_bytes, count=count)
    assert found.read > 0 < found.refused
