import io

import numpy as np
import pytest

from pipeline.sources import npz, seek_points
from pipeline.sources.base import Divisible
from pipeline.sources.deflate import BEGINNING, Extent, MemberReader
from pipeline.sources.episodes import cut
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store.errors import DataFormatError
from tests.pipeline.sources.test_deflate import BEFORE, DATA, stored_in

# indexed_gzip's least.
SPACING = (32 << 10) + 1


@pytest.fixture(autouse=True)
def _close_together(monkeypatch):
    monkeypatch.setattr(seek_points, "_SPACING_BYTES", SPACING)


@pytest.fixture
def inflated(monkeypatch):
    """How many bytes readers have inflated, or read where nothing is deflated."""
    counted = [0]
    following = MemberReader._next

    def count(self, most):
        piece = following(self, most)
        counted[0] += len(piece)
        return piece

    monkeypatch.setattr(MemberReader, "_next", count)
    return counted


def find(file, extent, positions):
    return seek_points.find(io.BytesIO(file), extent, positions)


@pytest.mark.parametrize("level", [1, 6, 9])
def test_a_member_is_taken_up_in_the_middle(level):
    file, extent = stored_in(DATA, level)
    positions = list(range(0, len(DATA), 25_013))
    points = find(file, extent, positions)
    assert points[0] == BEGINNING
    # Blocks begin amid bytes, which is what makes it hard.
    assert len({point.bit % 8 for point in points}) > 2
    for position, point in zip(positions, points, strict=True):
        assert point.position <= position
        if position < 600_000:  # The zeros behind are one block.
            assert position - 4 * SPACING < point.position
        reader = MemberReader(io.BytesIO(file), extent, point)
        reader.skip(position - point.position)
        found = bytearray(len(DATA) - position)
        reader.fill(memoryview(found))
        assert found == DATA[position:]


def test_the_number_of_places_has_a_bound(monkeypatch):
    file, extent = stored_in(DATA)
    monkeypatch.setattr(seek_points, "_MOST", 4)
    positions = range(0, len(DATA), 1000)
    found = {point.position for point in find(file, extent, positions)}
    assert 2 <= len(found) <= 5


def test_what_is_not_deflated_is_taken_up_anywhere():
    file = BEFORE + DATA
    _, deflated = stored_in(DATA)
    extent = Extent(len(BEFORE), len(DATA), len(DATA), deflated.crc, False)
    (point,) = find(file, extent, [1001])
    found = bytearray(100)
    MemberReader(io.BytesIO(file), extent, point).fill(memoryview(found))
    assert (point.position, found) == (1001, DATA[1001:1101])
    with pytest.raises(ValueError, match="bad CRC-32"):
        find(file[:-1] + b"\1", extent, [1001])


def test_damage_is_noticed_wherever_it_is():
    """Also behind the last place, or none would read what lies there as it was."""
    file, extent = stored_in(DATA)
    for at in np.linspace(extent.start, len(file) - 7, 60).astype(int):
        spoilt = bytearray(file)
        spoilt[at] ^= 4
        with pytest.raises(ValueError, match=r"\w"):
            find(bytes(spoilt), extent, [0, 400_000])
    with pytest.raises(ValueError, match=r"\w"):
        find(file[: len(file) // 2], extent, [0, 400_000])
    longer = Extent(
        extent.start, extent.stored_bytes, extent.size + 1, extent.crc, True
    )
    with pytest.raises(ValueError, match=r"\w"):
        find(file, longer, [0])


def test_a_file_that_is_damaged_is_named(make_npz, tmp_path):
    path = make_npz((500,) * 10)
    members = npz.list_archive(path, ["qpos"]).members
    data = bytearray((tmp_path / "cube-single-play.npz").read_bytes())
    extent = members["qpos"].extent
    data[extent.start + extent.stored_bytes // 2] ^= 1
    (tmp_path / "cube-single-play.npz").write_bytes(data)
    with pytest.raises(DataFormatError, match="qpos: bytes are damaged"):
        npz.find_seek_points(path, members, [0, 10])


def make_source(kind, make_npz, compressed):
    lengths = (500,) * 40
    rows = sum(lengths)
    options = {"compressed": compressed, "without": ["qpos", "qvel"]}
    if kind == "ogbench":
        return OgbenchNpz(make_npz(lengths, compressed=compressed))
    options["rewards"] = np.random.default_rng(0).normal(size=rows)
    if kind == "masks":
        return RewardedNpz(make_npz(lengths, masks=np.ones(rows), **options))
    ends = np.zeros(rows, bool)
    ends[499::500] = True
    if kind == "regular":
        states = np.random.default_rng(1).normal(size=(rows, 28)).astype(np.float32)
        options |= {"next_observations": states, "masks": np.ones(rows, bool)}
        return RewardedNpz(make_npz(lengths, terminals=ends, **options))
    if kind == "masked":
        options["masks"] = np.ones(rows, bool)
    options |= {"terminals": np.zeros(rows, bool), "timeouts": ends}
    return RewardedNpz(make_npz(lengths, **options))


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["ogbench", "masks", "timeouts", "regular", "masked"])
def test_no_part_costs_what_lies_before_it(make_npz, kind, compressed, inflated):
    source = make_source(kind, make_npz, compressed)
    assert isinstance(source, Divisible)
    parts = cut(source.describe().episodes, 2000)
    blocks = list(source.read(parts))
    size = sum(m.extent.size for m in source._read_listing().members.values())
    row_bytes = size / 20_000
    costs = []
    for part, starting in zip(parts, source.starting_at(parts), strict=True):
        inflated[0] = 0
        (block,) = starting.read([part])
        costs.append(inflated[0])
        for name, values in blocks[len(costs) - 1].rows.items():
            np.testing.assert_array_equal(block.rows[name], values)
    # Ends of episodes are read whole by each, a hundredth of the file.
    assert len(costs) == 10
    most = 2000 * row_bytes + 6 * 2 * SPACING + 20_000 * 3
    assert max(costs) < most < size / 3
    # Without places it grows with what lies before.
    inflated[0] = 0
    list(source.read(parts[-1:]))
    assert inflated[0] > 0.9 * size


def test_earlier_rows_are_read_all_the_same(make_npz):
    """Whoever explains a bad action asks what the whole file holds."""
    source = make_source("ogbench", make_npz, True)
    parts = cut(source.describe().episodes, 2000)
    later = source.starting_at(parts)[-1]
    assert dict(later.points)["observations"].position > 0
    for block, expected in zip(later.read(parts), source.read(parts), strict=True):
        for name, values in expected.rows.items():
            np.testing.assert_array_equal(block.rows[name], values)
