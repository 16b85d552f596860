"""Inputs of many parts that are read through once, and then taken up anywhere."""

import pytest

from pipeline.assembly import parts
from pipeline.assembly.parts import write_parts
from pipeline.beam import pipelines, runners
from pipeline.sources import seek_points
from pipeline.store.errors import BadEpisodeError, DataFormatError

LENGTHS = (500,) * 20


@pytest.fixture(autouse=True)
def _close_together(monkeypatch):
    monkeypatch.setattr(seek_points, "_SPACING_BYTES", (32 << 10) + 1)


@pytest.fixture
def plan(make_npz, make_plan):
    """Of ten parts."""
    return make_plan(make_npz(LENGTHS), part_rows=1000)


@pytest.fixture
def whole(plan, make_plan):
    """The same in another folder, written in one pass."""
    return make_plan(plan.parts[0].source.path, part_rows=1000, out="whole")


def test_a_divided_input_makes_the_same_parts(plan, whole, read_tree):
    assert len(list(write_parts(whole.parts))) == 10
    runs = parts.divide(plan.runs(len(plan.parts)))
    assert [len(run) for run in runs] == [1] * 10
    later = dict(runs[-1][0].source.points)
    assert later["observations"].position > 0.8 * 10_000 * 28 * 4
    for run in reversed(runs):
        list(write_parts(run))
    assert read_tree(plan.root) == read_tree(whole.root)


def test_what_is_written_is_not_divided(plan):
    runs = plan.runs(len(plan.parts))
    list(write_parts([plan.parts[3]]))
    divided = parts.divide(runs)
    kept = [run[0].index for run in divided if run in runs]
    assert kept == [3]
    # Of a few that are left, each reads what is before it.
    list(write_parts(plan.parts[:6]))
    assert parts.divide(runs) == runs


def test_a_bad_action_of_a_divided_input_is_explained_by_the_whole_file(
    make_npz, make_plan, make_rows
):
    rows = make_rows(LENGTHS)
    rows["actions"][0, 0], rows["actions"][9998, 1] = 2.0, 3.0
    plan = make_plan(make_npz(LENGTHS, **rows), part_rows=1000)
    last = parts.divide(plan.runs(len(plan.parts)))[-1]
    with pytest.raises(BadEpisodeError, match=r"0\.02% of the file's 9,9.* to 3\."):
        list(write_parts(last))


def shard(plan, *, runs, divided):
    runners.run(
        lambda root: pipelines.define_sharding(root, plan, runs=runs, divided=divided),
        runners.make_options(1),
    )


def test_a_pipeline_divides_and_goes_on_where_another_one_was_stopped(
    plan, whole, read_tree, monkeypatch
):
    shard(whole, runs=1, divided=False)
    write = parts._write

    def stop(part, blocks):
        if part.index == 6:
            raise OSError("stopped")
        return write(part, blocks)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "_write", stop)
        with pytest.raises(OSError, match="stopped"):
            shard(plan, runs=10, divided=True)
    # Nothing is left but parts that are whole: places are in memory alone.
    left = read_tree(plan.root)
    assert 0 < len(left) < len(read_tree(whole.root))
    assert left.items() <= read_tree(whole.root).items()
    shard(plan, runs=10, divided=True)
    assert read_tree(plan.root) == read_tree(whole.root)


def test_damage_in_the_middle_is_named_by_whoever_reads_it_through(plan, tmp_path):
    file = tmp_path / "cube-single-play.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataFormatError, match=r"npz: \w+: bytes are damaged"):
        shard(plan, runs=10, divided=True)
    assert not list(tmp_path.glob("store/parts/*"))
