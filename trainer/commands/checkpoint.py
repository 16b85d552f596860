"""``checkpoint``: what a run has saved, and its parameters for other programs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from pipeline.store.errors import UsageError

if TYPE_CHECKING:
    from trainer.runs.export import Inspection


@dataclass(frozen=True)
class Checkpoint:
    """Look into a run's checkpoints, or export their parameters.

    Attributes:
        what: inspect, or export to a safetensors file.
        run: Folder of the run, a local path or gs://bucket/path.
        step: Updates done; the last checkpoint by default.
        out: File to export to, such as policy.safetensors.
        seed: Export this one of the run's seeds only; all of them by default, on a
            leading axis.
        json: Print one JSON object instead of tables.
    """

    what: Annotated[Literal["inspect", "export"], tyro.conf.Positional]
    run: Annotated[str, tyro.conf.Positional]
    step: int | None = None
    out: Path | None = None
    seed: int | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from trainer.runs import export

        if self.what == "export":
            if self.out is None:
                raise UsageError("--out: expected a file to export to")
            step, arrays = export.export(
                self.run, self.out, step=self.step, seed=self.seed
            )
            console.print(f"{arrays} arrays of step {step} are in {self.out}")
            return 0
        for name in ("out", "seed"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name}: is for export only")
        found = export.inspect(self.run, step=self.step)
        if self.json:
            Console().print_json(json.dumps(found.to_json()))
        else:
            _show(found, Console())
        return 0


def _show(found: "Inspection", out: Console) -> None:
    run, trainer = found.run, found.run.config.trainer
    out.print(f"steps {', '.join(map(str, found.steps))}; this is step {found.step}")
    out.print(
        f"{run.config.agent.name} on {run.dataset} task {run.task.task} "
        f"({run.task.name}), seeds {trainer.seed} to {trainer.seed_range[-1]}, "
        f"batches of {trainer.batch_size}; data {run.fingerprint} from {run.store}"
    )
    out.print(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    table = Table("array", "shape", "dtype", "bytes")
    table.columns[0].overflow = "fold"
    for array in found.arrays:
        table.add_row(
            array.path,
            " × ".join(map(str, array.shape)),
            array.dtype,
            f"{array.size_bytes:,}",
        )
    out.print(table)
    total = sum(array.size_bytes for array in found.arrays)
    out.print(f"{len(found.arrays)} arrays, {total / 2**20:,.1f} MiB")
