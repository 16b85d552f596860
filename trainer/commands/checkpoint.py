"""``checkpoint``: what a run has saved, and its parameters for other programs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pipeline.output import Output, say, show

if TYPE_CHECKING:
    from rich.console import Console

    from trainer.runs.export import Inspection


@dataclass(frozen=True)
class Inspect:
    """List what a checkpoint holds.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        step: Updates done; the last checkpoint by default.
        json: Print one JSON object instead of tables.
    """

    run: Annotated[str, tyro.conf.Positional]
    step: int | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Prints tables or JSON."""
        from trainer.runs import export
        from trainer.runs.folder import RunFolder

        inspection = export.inspect(RunFolder.open(self.run), step=self.step)
        if self.json:
            output.results.print_json(json.dumps(inspection.to_json()))
        else:
            _show(inspection, output.results)
        return 0


@dataclass(frozen=True)
class Export:
    """Export the policy of a checkpoint, for programs without this package.

    A card goes beside it, in README.md or, if there is one, in a file named after OUT.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        out: File to export to, such as policy.safetensors or policy.stablehlo.
        format: Parameters as safetensors; or acting as a program in StableHLO, with the
            parameters inside, which jax.export runs on CPUs, NVIDIA's GPUs and TPUs.
        step: Updates done; the last checkpoint by default.
        seed: Export this one of the run's seeds only; by default, safetensors hold all
            of them, on a leading axis, and a program the first.
    """

    run: Annotated[str, tyro.conf.Positional]
    out: Path
    format: Literal["safetensors", "stablehlo"] = "safetensors"
    step: int | None = None
    seed: int | None = None

    def execute(self, output: Output) -> int:
        """Writes the file and its card."""
        from trainer import api
        from trainer.report import card
        from trainer.runs import export
        from trainer.runs.folder import RunFolder

        folder = RunFolder.open(self.run)
        place = card.choose_place(self.out)
        if self.format == "stablehlo":
            export.check_new(self.out)
            policy = api.load_policy(self.run, self.step, training_seed=self.seed)
            self.out.write_bytes(policy.export())
            exported = export.Exported(policy.run, policy.step, (policy.training_seed,))
            what = f"acting by step {policy.step}, seed {policy.training_seed}, is"
        else:
            exported, arrays = export.export(
                folder, self.out, step=self.step, seed=self.seed
            )
            what = f"{arrays} arrays of step {exported.step} are"
        place.write_text(card.make_card(folder, exported, self.out.name, self.format))
        say(output.results, f"{what} in {self.out}, described in {place}")
        return 0


@dataclass(frozen=True)
class Checkpoint:
    """Look into a run's checkpoints, or export their parameters.

    Attributes:
        what: What to do.
    """

    what: (
        Annotated[Inspect, tyro.conf.subcommand("inspect")]
        | Annotated[Export, tyro.conf.subcommand("export")]
    )

    def execute(self, output: Output) -> int:
        """Does it."""
        return self.what.execute(output)


def _show(found: "Inspection", out: "Console") -> None:
    from rich.table import Table

    run, trainer = found.run, found.run.config.trainer
    say(out, f"steps {', '.join(map(str, found.steps))}; this is step {found.step}")
    say(
        out,
        f"{run.config.agent.name} on {run.dataset} task {run.task.task} "
        f"({run.task.name}), seeds {trainer.seed} to {trainer.seed_range[-1]}, "
        f"batches of {trainer.batch_size}; data {run.fingerprint} from {run.store}",
    )
    say(out, ", ".join(f"{name} {version}" for name, version in run.versions.items()))
    table = Table("array", "shape", "dtype", "bytes")
    table.columns[0].overflow = "fold"
    for array in found.arrays:
        table.add_row(
            array.path,
            " × ".join(map(str, array.shape)),
            array.dtype,
            f"{array.size_bytes:,}",
        )
    show(out, table)
    total = sum(array.size_bytes for array in found.arrays)
    say(out, f"{len(found.arrays)} arrays, {total / 2**20:,.1f} MiB")
