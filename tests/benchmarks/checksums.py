"""What checksums of a store's chunks cost: ``python -m tests.benchmarks.checksums``.

Writes and reads the same made-up rows in versions 1 and 2 of the format, which differ
only in checksums, in turns in one process. Prints the ratios of their throughputs, and
of their processor times, which hold on a machine that other programs load, too.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from pipeline.assembly.plan import describe_inputs, plan_inputs
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store.manifest import FieldSpec, Task, part_folder
from pipeline.store.reader import Store
from pipeline.store.writer import PartWriter
from tests.parts import write_alone
from tests.stores import version_1, write_store
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, make_feed, open_rows
from trainer.data.feed_config import FeedConfig
from trainer.data.horizon_windows import HorizonSampler
from trainer.data.table import RowTable, load_table

VERSIONS = (1, 2)
EPISODE_ROWS = 1001
DISCOUNT = 0.99
# Components of cube-triple.
STATE, ACTION = 46, 5


def write(folder: Path, rows: dict[str, np.ndarray]) -> None:
    """Writes one part from memory, as `shard` does."""
    fields = {
        name: FieldSpec(values.dtype.name, values.shape[1:])
        for name, values in rows.items()
    }
    count = len(rows["observations"])
    path = part_folder(0)
    writer = PartWriter(str(folder), path, fields, rows=count, tasks=0)
    writer.append(rows)
    writer.finish(np.array([count], np.int64))
    shutil.rmtree(folder)


def make_npz(path: Path, rows: int) -> Path:
    """Writes a compressed file of rows with rewards, as `shard` reads it."""
    random = np.random.default_rng(0)
    ends = np.arange(1, rows + 1) % EPISODE_ROWS == 0
    walk = np.cumsum(random.normal(size=(rows, STATE), scale=0.01), axis=0)
    np.savez_compressed(
        path,
        observations=walk.astype(np.float32),
        actions=random.uniform(-1, 1, (rows, ACTION)).astype(np.float32),
        rewards=-np.ones(rows, np.float32),
        masks=np.ones(rows, np.float32),
        terminals=ends,
    )
    return path


def shard(path: Path, folder: Path, task: Task) -> None:
    """Makes a store of a file, in this process."""
    inputs = describe_inputs([("train", RewardedNpz(str(path)))])
    plan = plan_inputs(
        str(folder),
        inputs,
        dataset="mine",
        environment_id=task.environment_id,
        tasks=[task],
        discounts=(DISCOUNT,),
    )
    for part in plan.parts:
        write_alone(part)
    shutil.rmtree(folder)


def evict(store: Store) -> None:
    """Drops a store's files from the page cache."""
    for path in Path(store.root).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(store: Store) -> RowTable:
    """Reads all of a task into memory."""
    return load_table(store, task=1, discount=DISCOUNT)


def load_from_disk(store: Store) -> RowTable:
    """Reads all of a task from the disk, with nothing in the page cache."""
    evict(store)
    return load(store)


def feed_window(store: Store, calls: int) -> None:
    """Draws batches from a window of a quarter of the rows, as training does."""
    limit = store.rows() * store.row_bytes(f"returns/{DISCOUNT}") // 4
    config = FeedConfig(memory_limit_bytes=limit, block_rows=16 * EPISODE_ROWS)
    rows = open_rows(
        store,
        config,
        task=1,
        discount=DISCOUNT,
        batch_size=1024,
        updates_per_call=10,
        seed=0,
    )
    assert isinstance(rows, ResidentRows)
    sampler = HorizonSampler(max_horizon=25, discount=DISCOUNT)
    source = BatchSource(
        rows, sampler, seeds=(0,), batch_size=1024, steps=10 * calls, gather=True
    )
    for _ in make_feed(source, config, updates_per_call=10):
        pass
    rows.close()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--work", type=Path, help="folder on the disk to be measured")
    given = parser.parse_args()
    console = Console(width=100)

    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        stores = {}
        half = [EPISODE_ROWS] * (given.episodes // 2)
        for version in VERSIONS:
            with version_1() if version == 1 else nullcontext():
                root = write_store(
                    Path(folder) / str(version), (half, half), S=STATE, A=ACTION
                )
            stores[version] = Store(str(root))
        rows = {
            name: stores[1].read(name)[: EPISODE_ROWS * given.episodes // 4]
            for name in ("observations", "actions")
        }
        file = make_npz(Path(folder) / "mine.npz", EPISODE_ROWS * given.episodes)
        task = Task(1, "stored", "mine", "stored")
        ways: dict[str, Callable[[int], object]] = {
            "loaded, cached": lambda v: load(stores[v]),
            "loaded from disk": lambda v: load_from_disk(stores[v]),
            "batches, window": lambda v: feed_window(stores[v], 40),
            "written": lambda v: write(Path(folder) / "written", rows),
            "sharded": lambda v: shard(file, Path(folder) / "sharded", task),
        }
        taken: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for turn in range(given.repeats + 1):
            for what, way in ways.items():
                for version in VERSIONS if turn % 2 else reversed(VERSIONS):
                    started, busy = time.perf_counter(), time.process_time()
                    with version_1() if version == 1 else nullcontext():
                        way(version)
                    spent = time.perf_counter() - started, time.process_time() - busy
                    if turn:  # The first one warms the caches.
                        taken[what, version].append(spent)

    table = Table(
        *("what", "version 1, s", "version 2, s", "throughput", "of processor time"),
        title=f"{given.episodes * EPISODE_ROWS:,} rows, median of {given.repeats}",
    )
    for what in ways:
        before, now = (np.array(taken[what, version]) for version in VERSIONS)
        # Ratios are taken turn by turn, since other load is nearly the same within one.
        ratios = np.median(before / now, axis=0)
        table.add_row(
            what,
            f"{statistics.median(before[:, 0]):.2f}",
            f"{statistics.median(now[:, 0]):.2f}",
            f"{ratios[0]:.3f}",
            f"{ratios[1]:.3f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
