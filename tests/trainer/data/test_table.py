from pathlib import Path

import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.references import window
from tests.stores import make_rows, make_table, write_store
from trainer.data.table import count_unread_successes, load_table


def test_load_table_reads_one_task(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", ((40, 30), (50,)))
    read: list[int] = []
    table = load_table(Store(str(root)), task=3, discount=0.99, progress=read.append)
    expected = [make_rows((40, 30), seed=0), make_rows((50,), seed=1)]
    for name in ("observations", "actions"):
        np.testing.assert_array_equal(
            getattr(table, name), np.concatenate([part[name] for part in expected])
        )
    rewards = np.concatenate([part["rewards"] for part in expected])[:, 2]
    np.testing.assert_array_equal(table.rewards, rewards)
    assert table.masks.dtype == np.float32
    assert table.episode_starts.tolist() == [0, 40, 70]
    assert table.episode_lengths.tolist() == [40, 30, 50]
    # Parts meet inside the arrays: the sums must be of their own episodes.
    for start, end in ((0, 39), (40, 69), (70, 119)):
        total, _ = window(table.rewards, table.masks, start, end - start, 0.99)
        assert table.returns[start] == pytest.approx(float(total), abs=1e-12)
    assert (
        sum(read)
        == sum(
            array.nbytes
            for array in (
                table.observations,
                table.actions,
                table.rewards,
                table.returns,
            )
        )
        + table.rows
    )


def test_successes_in_last_rows_are_counted(tmp_path: Path) -> None:
    parts = (2, 5, 1, 3), (4, 1, 2, 3)
    root = str(write_store(tmp_path / "store", parts, share=0.4))
    # Counted an episode at a time. The cases below must be there.
    kinds = set()
    for task in (1, 2, 3, 4, 5):
        store = Store(root)
        table = load_table(store, task=task, discount=0.99)
        unread = reaching = 0
        for first, length in zip(
            table.episode_starts, table.episode_lengths, strict=True
        ):
            solved = [mask == 0 for mask in table.masks[first : first + length]]
            if length == 1:
                kinds.add(("one row", *solved))
                continue
            unread += solved[-1] and not solved[-2]
            reaching += any(solved)
            kinds.add(tuple(solved[-2:]))
        assert count_unread_successes(store, task - 1) == (unread, reaching)
    assert {("one row", True), (False, True), (True, True), (True, False)} <= kinds


def test_fingerprint_tells_tasks_and_stores_apart(tmp_path: Path) -> None:
    one = write_store(tmp_path / "one")
    same = write_store(tmp_path / "same")
    other = write_store(tmp_path / "other", seed=9)
    prints = [
        load_table(Store(str(root)), task=task, discount=0.99).fingerprint
        for root, task in ((one, 1), (same, 1), (one, 2), (other, 1))
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_missing_task_and_discount_are_named(tmp_path: Path) -> None:
    store = Store(str(write_store(tmp_path / "store", tasks=2)))
    with pytest.raises(DataFormatError, match=r"task 3 is not.*holds tasks \[1, 2\]"):
        load_table(store, task=3, discount=0.99)
    with pytest.raises(
        DataFormatError, match=r"discount 0\.9 .*\[0\.99\].*--discounts"
    ):
        load_table(store, task=1, discount=0.9)
    with pytest.raises(DataFormatError, match=r"'val' is empty.*\['train'\]"):
        load_table(store, task=1, discount=0.99, split="val")


def test_best_return_leaves_out_rows_that_lead_nowhere() -> None:
    table = make_table([5], seed=1)
    assert table.returns[-1] == 0
    assert table.find_best_return() == table.returns[:-1].max() < 0
