"""``bench``: how fast this machine is."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from pipeline.store.errors import UsageError

# Columns of a table of figures: wrapped, they would not be read.
_LEAST_WIDTH = 140


@dataclass(frozen=True)
class Bench:
    """Measure the feed, or updates on random data, on this machine.

    Attributes:
        what: feed, or step.
        store: Trajectory store to feed from (feed).
        task: Task number, 1 to 5 (feed).
        batch_size: Windows of a batch (feed).
        seconds: Time given to each measurement (feed).
        agent: Method to update (step).
        widths: Of hidden layers, such as 512,2048 (step).
        depth: Hidden layers (step).
        flow_steps: Euler steps of a sampled flow, as published if not given (step).
        batches: Batch sizes, such as 256,1024 (step).
        seeds: Seeds side by side, such as 1,8 (step).
        precisions: float32, bfloat16 or float32,bfloat16 (step).
        mesh: Devices by what they hold, several such as data=8 seed=2,fsdp=4; one
            device if not given (step).
        updates: To measure in each setting (step).
        updates_per_call: Fused in one call, and fed together.
        observation_dim: Components of an observation (step).
        action_dim: Components of an action (step).
        json: Print one JSON value instead of a table.
    """

    what: Annotated[Literal["feed", "step"], tyro.conf.Positional]
    store: str | None = None
    task: int = 1
    batch_size: int = 1024
    seconds: float = 5.0
    agent: str = "vast"
    widths: str = "64,512"
    depth: int = 4
    flow_steps: int | None = None
    batches: str = "512"
    seeds: str = "1"
    precisions: str = "float32"
    mesh: tuple[str, ...] = ()
    updates: int = 100
    updates_per_call: int = 10
    observation_dim: int = 83
    action_dim: int = 5
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        return self._feed(console) if self.what == "feed" else self._step(console)

    def _feed(self, console: Console) -> int:
        from pipeline.store.reader import Store
        from trainer.costs.bench_feed import bench_feed

        if self.store is None:
            raise UsageError("--store: expected a trajectory store to feed from")
        with console.status("measuring") as status:
            report = bench_feed(
                Store(self.store),
                task=self.task,
                batch_size=self.batch_size,
                updates_per_call=self.updates_per_call,
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
            title=f"batches of {report.batch_size:,}, "
            f"{self.updates_per_call} at once, from {report.rows:,} rows; "
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

    def _step(self, console: Console) -> int:
        import jax

        from trainer.costs.bench_step import bench_step, table_of

        for name in ("updates", "updates_per_call"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"--{name.replace('_', '-')}: expected at least 1, got "
                    f"{getattr(self, name)}"
                )

        with console.status("measuring") as status:
            rows = bench_step(
                self.agent,
                widths=_numbers("widths", self.widths),
                batches=_numbers("batches", self.batches),
                seeds=_numbers("seeds", self.seeds),
                precisions=self.precisions.split(","),
                meshes=self.mesh,
                updates=self.updates,
                updates_per_call=self.updates_per_call,
                observation_dim=self.observation_dim,
                action_dim=self.action_dim,
                settings={"depth": self.depth}
                | ({} if self.flow_steps is None else {"flow_steps": self.flow_steps}),
                progress=status.update,
            )
        device = jax.devices()[0].device_kind
        if self.json:
            found: dict[str, Any] = {
                "agent": self.agent,
                "device": device,
                "figures": [dataclasses.asdict(row) for row in rows],
            }
            Console().print_json(json.dumps(found))
        else:
            out = Console()
            out.width = max(out.width, _LEAST_WIDTH)
            out.print(table_of(rows, title=f"{self.agent} on {device}"))
        return 0


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--{name}: expected whole numbers such as 64,128, got {text!r}"
        ) from error
    if min(numbers) < 1:
        raise UsageError(f"--{name}: expected numbers of at least 1, got {text!r}")
    return numbers
