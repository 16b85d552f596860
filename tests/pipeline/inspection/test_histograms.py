"""Counts of a store equal NumPy's over all rows at once."""

import dataclasses

import numpy as np
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.inspection import histograms, plots
from pipeline.store import arrays
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


@pytest.fixture
def store(make_npz, make_plan, monkeypatch):
    plan = make_plan(make_npz(LENGTHS))
    commit_store(plan, write_alone(*plan.parts))
    monkeypatch.setattr(arrays, "shard_rows", lambda field: 3)  # Several blocks.
    return Store(plan.root)


def rows_of(store, field):
    return np.concatenate(
        [
            store.read_rows(part, field, 0, part.rows)
            for part in store.manifest.parts_of("train")
        ]
    )


def test_episodes_by_their_transitions(store):
    found = histograms.count_lengths(store.episodes().lengths)
    # Episodes of 0, 3, 4, 4, 5 and 6 steps; each length has a bin.
    assert found.whole
    assert found.counts.tolist() == [1, 0, 0, 1, 2, 1, 1]
    assert found.edges[:2].tolist() == [-0.5, 0.5]


def test_labels_of_each_task(store):
    for field in ("rewards", "returns/0.9"):
        for column in (0, 2):
            found = histograms.count_labels(store, field, column)
            values = rows_of(store, field)[:, column]
            counts = np.histogram(values, found.edges)[0]
            assert counts.sum() == len(values) == 28
            assert found.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("dense", [True, False])
def test_rewards_have_bins_of_whole_numbers_only_if_all_are_whole(
    store, monkeypatch, dense
):
    known = store.manifest.statistics["rewards"]
    statistics = dataclasses.replace(known, minimum=[-1.0], maximum=[1.0])
    store.manifest = dataclasses.replace(
        store.manifest, statistics={"rewards": statistics}
    )
    # Dense rewards from exactly -1; no row of the first block gives them away.
    blocks = [
        np.array([[-1.0], [0.0], [1.0]], np.float32),
        np.array([[-1.0], [-0.25 if dense else 0.0], [1.0]], np.float32),
    ]
    monkeypatch.setattr(histograms, "read_blocks", lambda store, field: iter(blocks))
    found = histograms.count_labels(store, "rewards", 0)
    assert found.whole is not dense
    assert found.counts.sum() == 6
    if dense:
        rows = np.concatenate(blocks).astype(np.float64)
        counts, edges = np.histogram(rows, histograms.BINS)
        assert found.edges.tolist() == edges.tolist()
        assert found.counts.tolist() == counts.tolist()
    else:
        assert found.edges.tolist() == [-1.5, -0.5, 0.5, 1.5]
        assert found.counts.tolist() == [2, 2, 2]


def test_places_in_a_maze_and_of_no_other_domain(store):
    maze = dataclasses.replace(
        store.manifest,
        tasks=tuple(
            dataclasses.replace(task, recipe="maze") for task in store.manifest.tasks
        ),
    )
    other = dataclasses.replace(
        maze, tasks=(dataclasses.replace(maze.tasks[0], recipe="cube"),)
    )
    store.manifest = maze
    floor = histograms.floor_of(store)
    assert floor is not None
    found = histograms.count_places(floor, histograms.read_blocks(store, "qpos"))
    assert found.rows.sum() == 28
    left, right, bottom, top = found.extent
    x, y = rows_of(store, "qpos")[:, :2].T
    width, height = (right - left, top - bottom) / np.array(found.rows.shape)
    # Cells are square, and reach beyond the places by half of one at least.
    assert width == pytest.approx(height)
    assert (left, bottom) == pytest.approx((x.min() - width / 2, y.min() - width / 2))
    assert right > x.max() + 0.49 * width
    assert top > y.max() + 0.49 * width
    store.manifest = other
    assert histograms.floor_of(store) is None


def test_a_store_without_rows_to_train_on_is_refused(store, tmp_path):
    store.manifest = dataclasses.replace(store.manifest, parts=())
    with pytest.raises(DataFormatError, match="got none to draw"):
        plots.plot_store(store, str(tmp_path / "a.png"))
