"""``bench``: how fast this machine is."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bench:
    """Measure the feed on this machine.

    Attributes:
        what: feed.
        store: Trajectory store to feed from.
        task: Task number, 1 to 5.
        batch_size: Windows of a batch.
        seconds: Time given to each measurement.
        json: Print one JSON object instead of a table.
    """

    what: Annotated[Literal["feed"], tyro.conf.Positional]
    store: str
    task: int = 1
    batch_size: int = 1024
    seconds: float = 5.0
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from pipeline.store.reader import Store
        from trainer.bench import bench_feed

        with console.status("measuring") as status:
            report = bench_feed(
                Store(self.store),
                task=self.task,
                batch_size=self.batch_size,
                seconds=self.seconds,
                progress=status.update,
            )
        if self.json:
            Console().print_json(json.dumps(dataclasses.asdict(report)))
            return 0
        table = Table(
            "source",
            "batches/s",
            "rows/s",
            "blocked ms",
            "read/useful",
            "RSS MiB",
            title=f"batches of {report.batch_size:,} from {report.rows:,} rows; "
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
        Console().print(table)
        return 0
