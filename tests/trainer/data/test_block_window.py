"""Stores larger than memory: the schedule, the limit, and the same batches always."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.references import longest_window, window
from tests.stores import write_store
from trainer.data import block_window, table
from trainer.data import feed as feed_module
from trainer.data.block_window import ResidentRows, Schedule, cut_blocks
from trainer.data.feed import BatchSource, make_feed, open_rows
from trainer.data.feed_config import FeedConfig
from trainer.data.horizon_windows import (
    EndingHorizonSampler,
    HorizonIndex,
    HorizonSampler,
)
from trainer.data.nstep_windows import NStepSampler
from trainer.data.table import RowTable, load_table
from trainer.errors import ConfigError

SAMPLER = HorizonSampler(max_horizon=6, discount=0.99)
PARTS = ([20] * 10, [30] * 8, [10, 50, 40, 20])
# Arguments of `open_rows` beside the store and the feed.
OPTIONS = {
    "task": 2,
    "discount": 0.99,
    "batch_size": 8,
    "updates_per_call": 2,
    "seed": 0,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(write_store(tmp_path_factory.mktemp("data") / "store", PARTS)))


def open_resident(store: Store, *, blocks: int = 5, span: int = 4) -> ResidentRows:
    row_bytes = store.row_bytes("returns/0.99")
    return ResidentRows(
        store,
        task=2,
        discount=0.99,
        limit_bytes=blocks * 60 * row_bytes,
        block_rows=60,
        batch_size=8,
        reuse=0.5,
        span=span,
        seed=0,
    )


@given(blocks=st.integers(1, 12), resident=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_epoch_holds_each_block_once_and_no_window_one_twice(
    blocks: int, resident: int, seed: int
) -> None:
    resident = min(resident, blocks)
    schedule = Schedule(blocks, resident, swap_every=3, seed=seed)
    stream = [schedule.block(place) for place in range(5 * blocks)]
    for epoch in range(5):
        assert sorted(stream[epoch * blocks : (epoch + 1) * blocks]) == list(
            range(blocks)
        )
    for first in range(4 * blocks):
        assert len({*stream[first : first + resident]}) == resident
    assert schedule.window(0) == schedule.window(2) == range(resident)
    assert schedule.window(3) == range(1, 1 + resident)


def test_order_changes_from_epoch_to_epoch_and_seed_to_seed() -> None:
    streams = [
        [Schedule(20, 5, 1, seed).block(20 * epoch + i) for i in range(20)]
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(stream) for stream in streams}) == 4


def test_blocks_are_whole_episodes_of_every_part(store: Store) -> None:
    blocks = cut_blocks(store, split="train", block_rows=60)
    assert sum(block.rows for block in blocks) == store.rows()
    assert max(block.rows for block in blocks) <= 60
    assert [block.lengths for block in blocks[:2]] == [(20, 20, 20)] * 2
    rebuilt = [length for block in blocks for length in block.lengths]
    assert rebuilt == [length for part in PARTS for length in part]


def test_resident_rows_are_the_stores_rows(store: Store) -> None:
    whole = load_table(store, task=2, discount=0.99)
    by_content = {row.tobytes(): i for i, row in enumerate(whole.observations)}
    assert len(by_content) == whole.rows
    rows = open_resident(store)
    seen = set()
    for step in range(0, 200, rows.schedule.swap_every):
        with rows.at(step) as table:
            for start, length in zip(
                table.episode_starts, table.episode_lengths, strict=True
            ):
                first = by_content[table.observations[start].tobytes()]
                here, there = slice(start, start + length), slice(first, first + length)
                for name in ("observations", "actions", "rewards", "masks", "returns"):
                    np.testing.assert_array_equal(
                        getattr(table, name)[here], getattr(whole, name)[there]
                    )
                # Of a later episode, next solved rows differ, and matter to nobody.
                np.testing.assert_array_equal(
                    np.minimum(table.next_solved[here] - start, length),
                    np.minimum(whole.next_solved[there] - first, length),
                )
                seen.add(first)
    assert len(seen) == len(whole.episode_starts)
    rows.close()


def feed(
    rows: RowTable | ResidentRows,
    *,
    sampler: HorizonSampler = SAMPLER,
    **options: int,
) -> list:
    source = BatchSource(
        rows, sampler, seeds=(0, 1), batch_size=8, steps=120, gather=True
    )
    return list(make_feed(source, FeedConfig(**options), updates_per_call=2))


def test_threads_and_prefetch_change_nothing(store: Store) -> None:
    plain = feed(open_resident(store), threads=1, prefetch_calls=1)
    assert open_resident(store).schedule.swap_every == 4  # Many changes in 120 steps.
    assert len(plain) == 60
    for options in ({"threads": 4, "prefetch_calls": 16}, {"threads": 2}):
        other = feed(open_resident(store), **options)
        for one, two in zip(plain, other, strict=True):
            for a, b in zip(one, two, strict=True):
                np.testing.assert_array_equal(a, b)


def test_batches_are_windows_of_the_data(store: Store) -> None:
    whole = load_table(store, task=2, discount=0.99)
    by_content = {row.tobytes(): i for i, row in enumerate(whole.observations)}
    starts = set()
    for batch in feed(open_resident(store)):
        for b in range(8):
            t = by_content[batch.observations[0, 0, b].tobytes()]
            k = int(batch.horizons[0, 0, b])
            np.testing.assert_array_equal(
                batch.states_k[0, 0, b], whole.observations[t + k]
            )
            total, _ = window(whole.rewards, whole.masks, t, k, 0.99)
            assert batch.returns_k[0, 0, b] == pytest.approx(float(total), abs=1e-5)
            starts.add(t)
    assert len(starts) > 150  # Of the whole store, not of a part of it.


def test_windows_end_at_success_in_every_block(store: Store) -> None:
    whole = load_table(store, task=2, discount=0.99)
    last = np.repeat(
        whole.episode_starts + whole.episode_lengths - 1, whole.episode_lengths
    )
    by_content = {row.tobytes(): i for i, row in enumerate(whole.observations)}
    sampler = EndingHorizonSampler(max_horizon=6, discount=0.99)
    at_success, before_it = set(), set()
    for batch in feed(open_resident(store), sampler=sampler):
        for b in range(8):
            t = by_content[batch.observations[0, 0, b].tobytes()]
            end = by_content[batch.states_k[0, 0, b].tobytes()]
            longest = longest_window(whole.masks, t, last[t], 6)
            assert min(2, longest) <= end - t <= longest
            if whole.masks[end] == 0:
                at_success.add(end)
                before_it |= {t} if end == t + 1 else set()
    assert len(at_success) > 3
    assert before_it  # Windows of one step.


def test_going_back_reads_again_what_has_left(store: Store) -> None:
    rows = open_resident(store)
    with rows.at(0) as table:
        before = table.observations[table.episode_starts].copy()
    with rows.at(400):
        pass
    with rows.at(0) as table:
        np.testing.assert_array_equal(table.observations[table.episode_starts], before)
    rows.close()


def test_many_threads_at_many_steps_do_not_wait_for_each_other_for_ever(
    store: Store,
) -> None:
    rows = open_resident(store)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(first, first + 60, 7):
                with rows.at(step) as table:
                    assert np.isfinite(table.observations[table.episode_starts]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(50 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not failures
    rows.close()


def test_the_limit_decides_and_is_kept(store: Store) -> None:
    size = store.rows() * store.row_bytes("returns/0.99")
    whole = open_rows(store, FeedConfig(memory_limit_bytes=size), **OPTIONS)
    assert isinstance(whole, RowTable)
    limit = size * 3 // 4
    part = open_rows(
        store,
        FeedConfig(
            memory_limit_bytes=limit, block_rows=60, prefetch_calls=1, threads=1
        ),
        **OPTIONS,
    )
    assert isinstance(part, ResidentRows)
    assert part.nbytes <= limit
    assert part.fingerprint != whole.fingerprint
    with pytest.raises(ValueError, match=r"memory_limit_bytes: expected at least .*60"):
        open_rows(store, FeedConfig(memory_limit_bytes=5000, block_rows=60), **OPTIONS)
    with pytest.raises(ValueError, match=r"12 steps that are prepared.*every 4.*reuse"):
        open_rows(
            store,
            FeedConfig(memory_limit_bytes=limit, block_rows=60, reuse=0.5),
            **OPTIONS,
        )
    with pytest.raises(ValueError, match=r"above feed\.memory_limit_bytes"):
        BatchSource(part, SAMPLER, seeds=(0,), batch_size=8, steps=10, gather=False)


def test_lost_bytes_are_named(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", PARTS)
    rows = open_resident(Store(str(root)))
    for shard in (root / "parts/00001/observations/c").rglob("*"):
        if shard.is_file():
            shard.unlink()

    def walk() -> None:
        for step in range(0, 400, 4):
            with rows.at(step):
                pass

    with pytest.raises(DataFormatError, match=r"parts/00001/observations.*verify"):
        walk()


# Long episodes at both ends, and between them so many of two rows that whole blocks
# hold nothing else.
UNEVEN = ([40] * 6 + [2] * 120, [2] * 60 + [40] * 6)


def open_uneven(store: Store, *, blocks: int, seed: int) -> ResidentRows:
    return ResidentRows(
        store,
        task=1,
        discount=0.99,
        limit_bytes=blocks * 40 * store.row_bytes("returns/0.99"),
        block_rows=40,
        batch_size=16,
        reuse=4,
        span=4,
        seed=seed,
    )


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("uneven") / "store"
    return Store(str(write_store(root, UNEVEN)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "sampler",
    [
        HorizonSampler(max_horizon=6, discount=0.99),
        NStepSampler(steps=3, discount=0.99, rule="published"),
    ],
)
def test_windows_stay_within_their_episodes_whichever_blocks_are_there(
    uneven: Store, seed: int, sampler: HorizonSampler | NStepSampler
) -> None:
    """Refused or drawn: whatever the seed, and by every window there will be."""
    short = 9  # Of 21 blocks; (120 + 60) episodes of 2 rows, 20 to a block.
    few, many = (open_uneven(uneven, blocks=n + 2, seed=seed) for n in (short, 10))
    empty = [max(block.lengths) < sampler.rows_needed for block in few._blocks]
    assert (sum(empty), len(empty)) == (short, 21)
    options = {"seeds": (seed,), "batch_size": 16, "steps": 400, "gather": False}
    with pytest.raises(ConfigError, match=r"got 9 of 21; raise feed\.block_rows"):
        BatchSource(few, sampler, **{**options, "gather": True})
    source = BatchSource(many, sampler, **{**options, "gather": True})
    source._gather = False  # Row numbers are what is looked at.
    windows = {many.schedule.window(step).start for step in range(400)}
    assert len(windows) > 21  # All blocks come by.
    for step in range(400):
        with many.at(step) as table:
            index = source._draw(table, range(step, step + 1))
            ends = table.episode_starts + table.episode_lengths
            owner = np.full(len(table.observations), -1)
            for episode, (a, b) in enumerate(
                zip(table.episode_starts, ends, strict=True)
            ):
                owner[a:b] = episode
            last = index.rows_k if isinstance(index, HorizonIndex) else index.rows_n
            assert (owner[index.rows] >= 0).all()
            np.testing.assert_array_equal(owner[index.rows], owner[last])
    few.close()
    many.close()


@pytest.mark.parametrize("seed", range(20))
def test_an_untrue_reason_is_given_with_no_seed(uneven: Store, seed: int) -> None:
    """The longest episode is that of the data, not that of the first blocks."""
    rows = open_uneven(uneven, blocks=3, seed=seed)
    assert rows.schedule.resident == 1
    longer = HorizonSampler(max_horizon=40, discount=0.99)
    options = {"seeds": (0,), "batch_size": 8, "steps": 10, "gather": True}
    with pytest.raises(DataFormatError, match="longest episode has 40 rows, got"):
        BatchSource(rows, longer, **options)
    with pytest.raises(ConfigError, match="got 9 of 21"):
        BatchSource(rows, SAMPLER, **options)
    rows.close()


def test_no_more_rows_are_in_memory_than_32_bits_can_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (block_window, feed_module, table):
        monkeypatch.setattr(module, "MOST_ROWS", 400)
    assert store.rows() > 400
    with pytest.raises(ConfigError, match=r"memory_limit_bytes: expected a limit"):
        open_rows(store, FeedConfig(), **OPTIONS)
    config = FeedConfig(
        memory_limit_bytes=1 << 30, block_rows=60, prefetch_calls=1, threads=1
    )
    rows = open_rows(store, config, **OPTIONS)
    assert isinstance(rows, ResidentRows)
    with rows.at(0) as resident:
        assert resident.rows <= 400
    rows.close()
