"""How fast and how large the data pipeline is: ``python tests/benchmarks/pipeline.py``.

Prints one table. Sizes and ratios hold on any machine, seconds only on the machine that
is named. Each measurement runs in a process of its own; ours and the one to compare
with take turns, and medians are shown.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from isal import isal_zlib
from rich.console import Console
from rich.table import Table

DATASET = "cube-triple-play"
EPISODE_ROWS = 1001
DISCOUNT = 0.99
WINDOW = 50
ROOT = Path(__file__).parents[2]
COLLECTED = (
    "cube-single-play",
    "cube-double-play",
    "cube-triple-play",
    "cube-quadruple-play",
    "scene-play",
    "puzzle-3x3-play",
    "puzzle-4x4-play",
    "pointmaze-medium-navigate",
)

# OGBench's own way: all in memory, nothing written, environments made in advance.
IN_MEMORY = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import gymnasium, ogbench
from ogbench.relabel_utils import relabel_dataset
from ogbench.utils import load_dataset
names = [f"cube-triple-play-singletask-task{i}-v0".replace("-play", "")
         for i in range(1, 6)]
environments = {name: gymnasium.make(name) for name in names}
start = time.perf_counter()
data = load_dataset(sys.argv[1], add_info=True)
for name, environment in environments.items():
    labelled = dict(data)
    relabel_dataset(name, environment, labelled)
print(json.dumps({"seconds": time.perf_counter() - start,
                  "rows": len(data["observations"])}))
"""

# Writes the same parts with Beam and without.
WITHOUT_BEAM = """
import json, sys, time, resource
from pipeline.assembly.commit import commit_store
from pipeline.assembly.parts import write_parts
from pipeline.assembly.plan import PlanOptions, describe_inputs, plan_inputs
from pipeline.beam import pipelines, runners
from pipeline.domains.datasets import parse_dataset
from pipeline.domains.goals import read_tasks
from pipeline.sources.ogbench_npz import OgbenchNpz
domain = parse_dataset("cube-triple-play")
plan = plan_inputs(sys.argv[2], describe_inputs([("train", OgbenchNpz(sys.argv[1]))]),
    dataset=domain.dataset, environment_id=domain.environment_id,
    tasks=read_tasks(domain), discounts=(0.99,), options=PlanOptions(100_000))
before = resource.getrusage(resource.RUSAGE_SELF)
start = time.perf_counter()
if sys.argv[3] == "beam":
    runners.run(lambda root: pipelines.define_sharding(root, plan, runs=1),
                runners.make_options(1))
else:
    commit_store(plan, list(write_parts(plan.parts)))
seconds = time.perf_counter() - start
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "rows": plan.rows}))
"""

# Collects one episode in an environment made in advance.
COLLECT = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from pipeline.collection.scripted import EpisodeCollector
from pipeline.domains.datasets import parse_dataset
collector = EpisodeCollector(parse_dataset(sys.argv[1]), rows=1001)
start = time.perf_counter()
collector.collect(0)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


class Peak(threading.Thread):
    """Largest resident and proportional memory of a process and its children.

    Shared pages count once in proportional memory, and once per process in resident
    memory.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.rss_bytes = 0
        self.pss_bytes = 0
        self._pid = pid
        self._over = threading.Event()

    def run(self) -> None:
        """Measures ten times a second."""
        while not self._over.wait(0.1):
            rss = pss = 0
            for pid in _family(self._pid):
                found = _memory(pid)
                rss, pss = rss + found[0], pss + found[1]
            self.rss_bytes = max(self.rss_bytes, rss)
            self.pss_bytes = max(self.pss_bytes, pss)

    def stop(self) -> None:
        """Stops measuring."""
        self._over.set()
        self.join()


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += _family(int(child))
        except OSError:
            continue
    return found


def _memory(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    values = {
        line.split()[0]: int(line.split()[1]) << 10
        for line in text.splitlines()[1:]
        if line.endswith("kB")
    }
    return values.get("Rss:", 0), values.get("Pss:", 0)


def run(*arguments: object) -> tuple[float, Peak, str]:
    """Runs Python; returns wall seconds, peak memory and its output."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        peak = Peak(process.pid)
        peak.start()
        out, _ = process.communicate()
        peak.stop()
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, arguments))[:200]}\n{out}")
    return time.perf_counter() - start, peak, out


def last_json(out: str) -> dict[str, float]:
    """Parses the last line that a measurement printed."""
    value: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    return value


def shard(path: Path, out: Path, workers: int = 2) -> tuple[float, Peak]:
    """Shards a file from the command line."""
    shutil.rmtree(out, ignore_errors=True)
    seconds, peak, _ = run(
        *("-m", "pipeline", "shard", path, "--dataset", DATASET, "--out", out),
        *("--discounts", DISCOUNT, "--workers", workers),
    )
    return seconds, peak


def collect(out: Path, episodes: int, workers: int) -> float:
    """Collects from the command line; returns seconds."""
    shutil.rmtree(out, ignore_errors=True)
    seconds, _, _ = run(
        *("-m", "pipeline", "collect", "cube-triple-v0", "--dataset-type", "play"),
        *("--episodes", episodes, "--out", out, "--workers", workers),
        *("--npz", f"{out}.npz"),
    )
    return seconds


def grow(
    collection: Path, path: Path, rows: int, *, number: int = 0, quick: bool = False
) -> None:
    """Makes a large npz that compresses like a small real one.

    Every repetition of an episode is scaled and shifted a little, each component by
    its own amount: components that rest keep resting, the others get new digits.

    Args:
        collection: A real collection with episodes of 1001 rows.
        path: File to write, compressed as NumPy does.
        rows: Approximate number of rows.
        number: Number of the file among files of as many rows. No two of them share an
            episode, and only the first has the collection's own.
        quick: Whether to deflate with ISA-L, several times as fast as NumPy's zlib,
            to nearly the same size.
    """
    if path.exists():
        return
    with np.load(collection) as archive:
        members = {name: archive[name] for name in archive.files}
    there = len(members["terminals"]) // EPISODE_ROWS
    episodes = round(rows / (EPISODE_ROWS - 1))
    begin = number * episodes
    partial = path.with_suffix(".partial")
    with (
        mock.patch.object(zipfile, "zlib", isal_zlib if quick else zlib),
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for place, (name, values) in enumerate(members.items()):
            header = {
                "descr": np.lib.format.dtype_to_descr(values.dtype),
                "fortran_order": False,
                "shape": (episodes * EPISODE_ROWS, *values.shape[1:]),
            }
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for episode in range(begin, begin + episodes):
                    first = episode % there * EPISODE_ROWS
                    piece = values[first : first + EPISODE_ROWS]
                    if episode >= there and piece.dtype.kind == "f":
                        random = np.random.default_rng([place, episode])
                        scale, shift = random.normal(0, 1e-3, (2, *piece.shape[1:]))
                        piece = (piece * (1 + scale) + shift).astype(piece.dtype)
                        if name == "actions":  # Larger ones are refused.
                            piece = piece.clip(-1, 1)
                    stream.write(np.ascontiguousarray(piece).data)
    partial.rename(path)


def window_error(root: Path) -> float:
    """Largest error of window returns of task 1 against sums in long double."""
    from pipeline.store.reader import Store
    from pipeline.store.returns import next_solved, window_returns

    store = Store(str(root))
    rewards = store.read("rewards", column=0)
    masks = store.read("masks", column=0)
    sums = store.read(store.returns_field(DISCOUNT), column=0)
    episodes = store.episodes()
    solved = next_solved(masks)
    worst = 0.0
    step = 1_000_000
    last_rows = np.repeat(episodes.starts + episodes.lengths - 1, episodes.lengths)
    for first in range(0, len(rewards), step):
        starts = np.arange(first, min(first + step, len(rewards)))
        horizons = np.minimum(WINDOW, last_rows[starts] - starts)
        found, _ = window_returns(sums, solved, starts, horizons, discount=DISCOUNT)
        total = np.zeros(len(starts), np.longdouble)
        weight = np.ones(len(starts), np.longdouble)
        for k in range(WINDOW):
            inside = k < horizons
            rows = np.minimum(starts + k, len(rewards) - 1)
            total += np.where(inside, weight * rewards[rows], 0)
            weight = weight * np.longdouble(DISCOUNT) * masks[rows]
        worst = max(worst, float(np.abs(found - total).max()))
    return worst


def folder_bytes(root: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def deflated(path: Path) -> float:
    """Compressed size of an npz divided by the size of its members."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    return sum(i.compress_size for i in infos) / sum(i.file_size for i in infos)


def machine() -> str:
    """Describes cores, processor and Python."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


class Report:
    """A table that is filled row by row."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = Table("what", "figure", "bar", "met", box=None)

    def add(
        self, what: str, figure: str, bar: str = "", met: bool | None = None
    ) -> None:
        """Adds a row, and prints it at once."""
        verdict = "" if met is None else ("yes" if met else "NO")
        self._table.add_row(what, figure, bar, verdict)
        self._console.print(f"{what}: {figure} {bar} {verdict}", highlight=False)

    def show(self) -> None:
        """Prints the whole table."""
        self._console.print(f"\n{machine()}, load {os.getloadavg()[0]:.1f}")
        self._console.print(self._table)


def sharding(report: Report, work: Path, repeats: int) -> None:
    """Measures sharding against OGBench's way: speed, memory, size and accuracy."""
    small, large = work / "3m.npz", work / "5m.npz"
    ours, theirs, peaks, base_peaks = [], [], [], []
    rows = 0.0
    for _ in range(repeats):
        seconds, peak, out = run("-c", IN_MEMORY, small)
        theirs.append(last_json(out)["seconds"])
        base_peaks.append(peak.rss_bytes)
        seconds, peak = shard(small, work / "store-3m")
        ours.append(seconds)
        peaks.append(peak)
        from pipeline.store.reader import Store

        rows = Store(str(work / "store-3m")).rows()
    wall, base = statistics.median(ours), statistics.median(theirs)
    report.add(
        f"{rows:,} rows, npz to store, end to end",
        f"{wall:.1f} s, {rows / wall:,.0f} rows/s",
        "100,000 rows/s",
        rows / wall >= 100_000,
    )
    report.add(
        "in memory, nothing written (ogbench)",
        f"{base:.1f} s, {statistics.median(base_peaks) / 1e9:.1f} GB resident",
    )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    report.add("ratio of the two", f"{ratio:.2f}", "at most 2.5", ratio <= 2.5)
    rss = statistics.median(peak.rss_bytes for peak in peaks)
    pss = statistics.median(peak.pss_bytes for peak in peaks)
    report.add(
        "peak memory over all processes",
        f"{rss / 1e9:.2f} GB resident, {pss / 1e9:.2f} GB shared pages counted once",
        "under 2 GB",
        rss < 2e9,
    )
    _, peak = shard(large, work / "store-5m")
    growth = peak.rss_bytes / rss - 1
    report.add(
        "the same at 5M rows",
        f"{peak.rss_bytes / 1e9:.2f} GB resident, {growth:+.0%}",
        "within 20 %",
        growth <= 0.2,
    )
    share = folder_bytes(work / "store-3m") / small.stat().st_size
    report.add("store against npz, with labels of 5 tasks", f"{share:.2f} of its size")
    error = window_error(work / "store-5m")
    report.add(
        f"returns of windows of {WINDOW}, 5M rows, against long double",
        f"{error:.1e}",
        "1e-9",
        error <= 1e-9,
    )


def overhead(report: Report, work: Path, repeats: int) -> None:
    """Measures the time that Beam adds to each row."""
    figures: dict[str, list[dict[str, float]]] = {"beam": [], "pure": []}
    for _ in range(repeats):
        for kind, found in figures.items():
            out = work / "overhead"
            shutil.rmtree(out, ignore_errors=True)
            _, _, text = run("-c", WITHOUT_BEAM, work / "1m.npz", out, kind)
            found.append(last_json(text))
    rows = figures["pure"][0]["rows"]
    added = statistics.median(
        with_beam["seconds"] - pure["seconds"]
        for with_beam, pure in zip(figures["beam"], figures["pure"], strict=True)
    )
    pure = statistics.median(each["seconds"] for each in figures["pure"])
    report.add(
        f"Beam's own share, {rows:,.0f} rows in 10 parts",
        f"{added / rows * 1e6:+.2f} µs a row on {pure / rows * 1e6:.2f} µs of work",
    )


def collecting(report: Report, work: Path, repeats: int) -> None:
    """Measures scripted collection: rows a second, and the gain of a second worker."""
    for dataset in COLLECTED:
        _, _, out = run("-c", COLLECT, dataset)
        rate = EPISODE_ROWS / last_json(out)["seconds"]
        report.add(f"collect {dataset}, one core", f"{rate:,.0f} rows/s")
    few, many, scaling = 4, 16, []
    for _ in range(repeats):
        rates = []
        for workers in (1, 2):
            # With two sizes, the time to start processes cancels out.
            short = collect(work / "collected", few, workers)
            long = collect(work / "collected", many, workers)
            rates.append((many - few) * EPISODE_ROWS / (long - short))
        scaling.append(rates[1] / rates[0])
    factor = statistics.median(scaling)
    report.add(
        "two workers against one",
        f"{factor:.2f} times the rows/s",
        "at least 1.8",
        factor >= 1.8,
    )


def prepare(console: Console, work: Path, collection: Path | None) -> None:
    """Makes the files that are measured."""
    if collection is None:
        collection = work / "collection.npz"
        if not collection.exists():
            console.print("collecting 24 episodes to grow the files from")
            collect(work / "collection", 24, 2)
    for name, rows in (("1m", 1_000_000), ("3m", 3_000_000), ("5m", 5_000_000)):
        path = work / f"{name}.npz"
        console.print(f"{name}.npz")
        grow(collection, path, rows)
    whole = work / "recompressed.npz"
    with np.load(collection) as archive:
        np.savez_compressed(whole, **{name: archive[name] for name in archive.files})
    console.print(
        f"deflated to {deflated(work / '3m.npz'):.3f} of its size; the real "
        f"collection to {deflated(whole):.3f}"
    )


def main(arguments: Sequence[str]) -> None:
    """Prepares, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder to keep the files in")
    parser.add_argument("--collection", type=Path, help="a real collection's npz")
    parser.add_argument("--repeats", type=int, default=3)
    sections: dict[str, Callable[[Report, Path, int], None]] = {
        "shard": sharding,
        "overhead": overhead,
        "collect": collecting,
    }
    parser.add_argument("--only", nargs="*", default=list(sections), choices=sections)
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="vast-rl-bench-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        prepare(console, work, options.collection)
        report = Report(console)
        for name in options.only:
            sections[name](report, work, options.repeats)
        report.show()


if __name__ == "__main__":
    # Python puts this folder first, where this file hides the package `pipeline`.
    sys.path[0] = str(ROOT)
    main(sys.argv[1:])
