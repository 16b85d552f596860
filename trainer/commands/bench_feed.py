"""``bench feed``: the speed at which batches are made from a store."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, show, working
from pipeline.store.errors import UsageError
from trainer.commands.arguments import check_counts

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.costs.bench_feed import FeedReport


@dataclass(frozen=True)
class BenchFeed:
    """Measure how fast batches are made from a store.

    Attributes:
        store: Trajectory store, a local path or gs://bucket/path.
        task: Task number.
        batch_size: Windows of a batch.
        seconds: Seconds that each measurement takes.
        updates_per_call: Batches that are made together, for one call of the trainer.
        json: Print one JSON value instead of a table.
    """

    store: str
    task: int = 1
    batch_size: int = 1024
    seconds: float = 5.0
    updates_per_call: int = 10
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Measures the feed, and prints a table or JSON."""
        from pipeline.store.reader import Store
        from trainer.costs.bench_feed import bench_feed

        check_counts(self, "batch_size", "updates_per_call")
        if not 0 < self.seconds < math.inf:
            raise UsageError(
                f"--seconds: expected a finite time above 0, got {self.seconds}"
            )
        with working(output.progress, "measuring") as say_now:
            report = bench_feed(
                Store(self.store),
                task=self.task,
                batch_size=self.batch_size,
                updates_per_call=self.updates_per_call,
                seconds=self.seconds,
                progress=say_now,
            )
        if self.json:
            output.results.print_json(json.dumps(dataclasses.asdict(report)))
        else:
            show(output.results, _make_table(report, self.updates_per_call))
        return 0


def _make_table(report: "FeedReport", updates_per_call: int) -> "Table":
    """Makes a table with a row for each way of making batches."""
    from rich.table import Table

    table = Table(
        "source",
        "batches/s",
        "rows/s",
        "blocked ms",
        "read/useful",
        "RSS MiB",
        title=f"batches of {report.batch_size:,}, "
        f"{updates_per_call} at once, from {report.rows:,} rows; "
        f"store to memory in {report.load_s:.1f} s, "
        f"{report.load_mib_per_s:,.0f} MiB/s",
    )
    for row in report.figures:
        table.add_row(
            row.source,
            f"{row.batches_per_s:,.1f}",
            f"{row.rows_per_s:,.0f}",
            f"{row.blocked_ms:.3f}",
            f"{row.read_per_useful_byte:.3f}",
            f"{row.rss_mib:,.0f}",
        )
    return table
