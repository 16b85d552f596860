"""What a large npz costs: ``python -m tests.benchmarks.large_file FILE --work FOLDER``.

For one deflated file of cube-triple's layout, it measures planning, the bytes that each
part inflates if parts are written independently, with and without places where the
deflate streams can be entered, and the processor time of sharding by stage. Bytes hold
on any machine, processor time nearly so, and seconds only on an idle machine. A missing
file is grown from a collection, like those of `pipeline.py`.
"""

import argparse
import itertools
import os
import resource
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

from pipeline.assembly import known_episodes, parts
from pipeline.assembly.commit import commit_store
from pipeline.assembly.plan import PlanOptions, StorePlan, describe_inputs, plan_inputs
from pipeline.beam import pipelines, runners
from pipeline.domains.datasets import parse_dataset
from pipeline.domains.goals import read_tasks
from pipeline.sources.deflate import MemberReader
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.moments import Summary
from tests.benchmarks.pipeline import DATASET, DISCOUNT, grow, machine


class Meter:
    """Measures seconds, processor seconds and inflated bytes, and adds rows of them."""

    def __init__(self, table: Table, console: Console) -> None:
        self._table, self._console = table, console

    def measure(self, what: str, work: Callable[[], object]) -> None:
        """Does some work, and adds a row with its figures."""
        inflated = 0
        following = MemberReader._next

        def count(reader: MemberReader, most: int) -> bytes:
            nonlocal inflated
            piece = following(reader, most)
            inflated += len(piece)
            return piece

        with mock.patch.object(MemberReader, "_next", count):
            start, before = time.perf_counter(), _cpu()
            work()
            seconds, cpu = time.perf_counter() - start, _cpu() - before
        row = (
            what,
            f"{inflated / 1e9:.2f} GB",
            f"{cpu:.1f} s",
            f"{seconds:.1f} s",
        )
        self._table.add_row(*row)
        self._console.print(*row, highlight=False)


def _cpu() -> float:
    """Processor seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_plan(path: Path, root: Path, part_rows: int) -> StorePlan:
    """Plans a store of the file."""
    domain = parse_dataset(DATASET)
    return plan_inputs(
        str(root),
        describe_inputs([("train", OgbenchNpz(str(path)))]),
        dataset=domain.dataset,
        environment_id=domain.environment_id,
        tasks=read_tasks(domain),
        discounts=(DISCOUNT,),
        options=PlanOptions(part_rows),
    )


def read_by_zlib(path: Path) -> None:
    """Reads the file through as Python's zipfile does."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                while member.read(1 << 20):
                    pass


def parts_apart(meter: Meter, path: Path, work: Path, part_rows: int) -> None:
    """Measures reading the first, middle and last part, and preparing the parts."""
    plans: list[StorePlan] = []
    meter.measure(
        "planning", lambda: plans.append(make_plan(path, work / "store", part_rows))
    )
    runs = plans[0].runs(len(plans[0].parts))
    meter.measure("the file read through by zlib", lambda: read_by_zlib(path))
    meter.measure("the file read through by ISA-L", lambda: read(runs))
    chosen = {
        "first": 0,
        "middle": len(runs) // 2,
        "last": len(runs) - 1,
    }
    for name, index in chosen.items():
        meter.measure(f"{name} of {len(runs)} parts", lambda i=index: read([runs[i]]))
    divided: list[tuple[parts.PartPlan, ...]] = []
    meter.measure(
        "places noted (and the file inflated once, by zlib)",
        lambda: divided.extend(parts.divide(runs)),
    )
    for name, index in chosen.items():
        meter.measure(f"{name}, from its place", lambda i=index: read([divided[i]]))
    meter.measure("all, each from its place", lambda: [read([run]) for run in divided])


def read(runs: Sequence[Sequence[parts.PartPlan]]) -> None:
    """Reads runs of one source in one pass."""
    ranges = [block for run in runs for plan in run for block in plan.blocks()]
    for _ in runs[0][0].source.read(ranges):
        pass


def stages(meter: Meter, path: Path, work: Path) -> None:
    """Measures the processor time of sharding, each stage with all stages before it."""
    plan = make_plan(path, work / "store", 1_000_000)

    def walk(*, labels: bool, sums: bool) -> None:
        ranges = [block for part in plan.parts for block in part.blocks()]
        blocks = plan.parts[0].source.read(ranges)
        for part in plan.parts:
            summary = Summary()
            for block in itertools.islice(blocks, len(part.blocks())):
                if labels:
                    columns = parts.make_columns(part, block)
                if sums:
                    summary.add(columns, block.lengths)
                    known_episodes.digest_episodes(columns, block.lengths)

    def write(beam: bool) -> None:
        shutil.rmtree(work / "store", ignore_errors=True)
        if beam:
            runners.run(
                lambda root: pipelines.define_sharding(root, plan, runs=1),
                runners.make_options(1),
            )
        else:
            commit_store(plan, list(parts.write_parts(plan.parts)))

    meter.measure("inflated", lambda: walk(labels=False, sums=False))
    meter.measure("+ checked and labelled", lambda: walk(labels=True, sums=False))
    meter.measure("+ statistics and digests", lambda: walk(labels=True, sums=True))
    meter.measure("+ compressed and written", lambda: write(beam=False))
    meter.measure("+ Beam", lambda: write(beam=True))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="deflated npz of cube-triple's layout")
    parser.add_argument("--work", type=Path, required=True, help="folder for the store")
    parser.add_argument("--collection", type=Path, help="a real collection's npz")
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="rows of a new file"
    )
    parser.add_argument("--part-rows", type=int, default=1_000_000)
    parser.add_argument(
        "--stages", action="store_true", help="measure the stages of sharding instead"
    )
    options = parser.parse_args()
    console = Console(width=120)
    if options.collection is not None:
        grow(options.collection, options.file, options.rows, quick=True)
    table = Table("what", "inflated", "processor", "seconds", box=None)
    meter = Meter(table, console)
    if options.stages:
        stages(meter, options.file, options.work)
    else:
        parts_apart(meter, options.file, options.work, options.part_rows)
    console.print(
        f"\n{options.file.stat().st_size / 1e9:.2f} GB, {machine()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
