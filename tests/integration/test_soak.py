"""Memory of the feed over a long run, from a store four times larger than its limit."""

from pathlib import Path

import psutil
import pytest

from pipeline.store.reader import Store
from tests.stores import write_store
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, make_feed, open_rows
from trainer.data.feed_config import FeedConfig
from trainer.data.horizon_windows import HorizonSampler

BATCHES = 100_000
BATCH_SIZE = 64


@pytest.mark.slow
def test_resident_memory_is_flat_over_a_hundred_thousand_batches(
    tmp_path: Path,
) -> None:
    store = Store(str(write_store(tmp_path / "store", [[500] * 40] * 4, S=32)))
    needed = store.rows() * store.row_bytes(store.returns_field(0.99))
    config = FeedConfig(
        memory_limit_bytes=needed // 4, block_rows=2_000, prefetch_calls=2, reuse=2.0
    )
    rows = open_rows(
        store,
        config,
        task=1,
        discount=0.99,
        batch_size=BATCH_SIZE,
        updates_per_call=10,
        seed=0,
    )
    assert isinstance(rows, ResidentRows)
    assert rows.nbytes <= needed // 4
    feed = make_feed(
        BatchSource(
            rows,
            HorizonSampler(max_horizon=25, discount=0.99),
            seeds=(0,),
            batch_size=BATCH_SIZE,
            steps=BATCHES,
            gather=True,
        ),
        config,
        updates_per_call=10,
    )
    process, used = psutil.Process(), []
    for number, _ in enumerate(feed):
        if number % (BATCHES // 100) == 0:
            used.append(process.memory_info().rss)
    rows.close()
    assert number == BATCHES // 10 - 1
    # Blocks were exchanged many times, so a block that is kept would show.
    assert BATCHES // rows.schedule.swap_every > 10 * rows.schedule.blocks
    settled = used[len(used) // 5 :]
    assert max(settled) - min(settled) < 32 * 2**20
