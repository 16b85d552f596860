"""Twenty million rows on this machine: ``python -m tests.benchmarks.drill --work DIR``.

The drill grows files of cube-triple's layout and shards them with the local runner and
with a Dask cluster of this machine, in turns. It compares the two stores byte for byte,
trains from one of them, and prints a table. Files and stores stay in ``DIR`` (24 GB at
full size), so that an interrupted drill continues with the existing files.
"""

import argparse
import hashlib
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pipeline.store.reader import Store
from tests.benchmarks.pipeline import (
    DATASET,
    DISCOUNT,
    Report,
    collect,
    folder_bytes,
    grow,
    run,
)

RUNNERS = {"local": (), "dask": ("--runner", "dask")}
WORKERS = 2
# Size of the window; an agent reads 4.1 GB of 20M rows.
WINDOW_BYTES = 1 << 30
GOAL_ROWS = 100_000_000


def make_files(console: Console, work: Path, *, files: int, rows: int) -> Path:
    """Grows the files that are missing, and returns their folder."""
    folder = work / "npz"
    folder.mkdir(parents=True, exist_ok=True)
    collection = work / "collection.npz"
    if not collection.exists():
        console.print("collecting 24 episodes to grow the files from")
        collect(work / "collection", 24, WORKERS)
    for number in range(files):
        name = f"{DATASET}-v0-{number:03}.npz"
        console.print(f"{name}, {number + 1} of {files}")
        grow(collection, folder / name, rows, number=number, quick=True)
    return folder


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of each file of a store, except the one that has its date."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and name != "dataset.json":
            with path.open("rb") as stream:
                found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def shard(report: Report, folder: Path, work: Path, repeats: int) -> None:
    """Measures rows a second and memory on both runners, and compares the stores."""
    rates: dict[str, list[float]] = {name: [] for name in RUNNERS}
    memory: dict[str, list[int]] = {name: [] for name in RUNNERS}
    rows = 0
    for _ in range(repeats):
        for name, options in RUNNERS.items():
            out = work / f"store-{name}"
            shutil.rmtree(out, ignore_errors=True)
            seconds, peak, _ = run(
                *("-m", "pipeline", "shard", folder, "--dataset", DATASET),
                *("--out", out, "--discounts", DISCOUNT, "--workers", WORKERS),
                *options,
            )
            rows = Store(str(out)).rows()
            rates[name].append(rows / seconds)
            memory[name].append(peak.pss_bytes)
    for name in RUNNERS:
        report.add(
            f"{rows:,} rows to a store, {name}, {WORKERS} workers",
            f"{statistics.median(rates[name]):,.0f} rows/s, "
            f"{max(memory[name]) / 1e9:.2f} GB",
        )
    ratio = statistics.median(
        dask / local for dask, local in zip(rates["dask"], rates["local"], strict=True)
    )
    report.add("Dask against local", f"{ratio:.2f}", "at least 0.9", ratio >= 0.9)
    local, dask = (digests(work / f"store-{name}") for name in RUNNERS)
    same = sum(dask.get(name) == digest for name, digest in local.items())
    size = folder_bytes(work / "store-local")
    report.add(
        "files of equal bytes",
        f"{same:,} of {len(local):,}, {size / 1e9:.1f} GB",
        "all",
        same == len(local) == len(dask),
    )
    rate = statistics.median(rates["local"])
    report.add(
        f"{GOAL_ROWS:,} rows, at the local rate",
        f"{GOAL_ROWS / rate / 60:.0f} min, {GOAL_ROWS / rows * size / 1e9:.0f} GB",
    )


def train(report: Report, work: Path, updates: int) -> None:
    """Trains with all rows in memory, and with a window of a part of them."""
    for label, limit in (("whole in memory", None), ("in a window", WINDOW_BYTES)):
        out = work / "run"
        shutil.rmtree(out, ignore_errors=True)
        options = () if limit is None else ("--feed.memory-limit-bytes", limit)
        _, peak, _ = run(
            *("-m", "trainer", "train", f"configs/{DATASET}.toml", "--task", 1),
            *("--store", work / "store-local", "--out", out),
            *("--agent.width", 64, "--agent.discount", DISCOUNT),
            *("--trainer.batch-size", 256),
            *("--trainer.steps", updates, "--trainer.log-every", updates // 10),
            *options,
        )
        lines = (out / "metrics.jsonl").read_text().splitlines()
        # In the first tenth, the program is compiled and the window filled.
        records = [json.loads(line) for line in lines][1:]
        rate = statistics.median(record["updates_per_s"] for record in records)
        report.add(
            f"VAST, width 64, B = 256, {label}",
            f"{rate:.1f} updates/s, {peak.rss_bytes / 1e9:.2f} GB resident",
        )


def main(arguments: Sequence[str]) -> None:
    """Prepares, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the files")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a file")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--updates", type=int, default=2_000)
    options = parser.parse_args(arguments)
    console = Console()
    folder = make_files(console, options.work, files=options.files, rows=options.rows)
    report = Report(console)
    shard(report, folder, options.work, options.repeats)
    train(report, options.work, options.updates)
    report.show()


if __name__ == "__main__":
    main(sys.argv[1:])
