"""``checkpoint``: lists the arrays of a run's checkpoints, and exports policies."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from pipeline.output import Output, say, show
from trainer.commands.arguments import RunPath

if TYPE_CHECKING:
    from rich.console import Console

    from trainer.runs.export import CheckpointContents


@dataclass(frozen=True)
class InspectCheckpoint:
    """List the arrays of a checkpoint.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        step: Step of the checkpoint; the last checkpoint if not given.
        json: Print one JSON object instead of tables.
    """

    run: RunPath
    step: int | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Prints tables or JSON."""
        from trainer.runs import export
        from trainer.runs.folder import RunFolder

        contents = export.inspect(RunFolder.open(self.run), step=self.step)
        if self.json:
            output.results.print_json(json.dumps(contents.to_json()))
        else:
            _show(contents, output.results)
        return 0


@dataclass(frozen=True)
class ExportCheckpoint:
    """Export the policy of a checkpoint, for programs without this package.

    A card that describes the policy is written beside it: into README.md or, if that
    file exists, into a file named after OUT.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        out: File to export to, such as policy.safetensors or policy.stablehlo.
        format: Format of the file: safetensors holds the parameters; stablehlo holds a
            program that acts, with the parameters inside, for jax.export on CPUs,
            NVIDIA's GPUs and TPUs.
        step: Step of the checkpoint; the last checkpoint if not given.
        seed: Training seed to export. If not given, safetensors hold all seeds on a
            leading axis, and a program holds the first one.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("out",)

    run: RunPath
    out: Path
    format: Literal["safetensors", "stablehlo"] = "safetensors"
    step: int | None = None
    seed: int | None = None

    def execute(self, output: Output) -> int:
        """Writes the file and its card."""
        from pipeline.store import files
        from trainer import api
        from trainer.report import card
        from trainer.runs import export
        from trainer.runs.folder import RunFolder

        folder = RunFolder.open(self.run)
        card_file = card.choose_card_path(self.out)
        # A program holds the parameters of one seed, as its inputs name no seed of
        # training; a file of arrays has a leading axis for all of them.
        if self.format == "stablehlo":
            # Refused before the policy is loaded, which may take minutes; for
            # safetensors, `export.export` refuses it.
            export.check_new(self.out)
            policy = api.load_policy(self.run, self.step, training_seed=self.seed)
            program = policy.export()
            with export.write_whole(self.out) as partial:
                partial.write_bytes(program)
            exported = export.Exported(policy.run, policy.step, (policy.training_seed,))
            subject = (
                f"the policy of step {policy.step}, seed {policy.training_seed}, is"
            )
        else:
            exported, arrays = export.export(
                folder, self.out, step=self.step, seed=self.seed
            )
            subject = f"{arrays} arrays of step {exported.step} are"
        text = card.make_card(folder, exported, self.out.name, self.format)
        files.write_local(card_file, text.encode())
        say(output.results, f"{subject} in {self.out}, described in {card_file}")
        return 0


@dataclass(frozen=True)
class Checkpoint:
    """List the arrays of a run's checkpoints, or export a policy.

    Attributes:
        action: Command to run: inspect or export.
    """

    action: (
        Annotated[InspectCheckpoint, tyro.conf.subcommand("inspect")]
        | Annotated[ExportCheckpoint, tyro.conf.subcommand("export")]
    )

    def execute(self, output: Output) -> int:
        """Runs the chosen command."""
        return self.action.execute(output)


def _show(contents: "CheckpointContents", out: "Console") -> None:
    """Prints the run of a checkpoint, and a table of the checkpoint's arrays."""
    from rich.table import Table

    from trainer.runs.names import describe_seeds

    run, trainer = contents.run, contents.run.config.trainer
    steps = ", ".join(map(str, contents.steps))
    say(out, f"steps {steps}; this is step {contents.step}")
    say(
        out,
        f"{run.config.agent.name} on {run.dataset} task {run.task.task} "
        f"({run.task.name}), {describe_seeds(trainer.seed_range)}, "
        f"batches of {trainer.batch_size}; data {run.fingerprint} from {run.store}",
    )
    say(out, ", ".join(f"{name} {version}" for name, version in run.versions.items()))
    table = Table("array", "shape", "dtype", "bytes")
    # Folded and not cut off: paths differ in their last part.
    table.columns[0].overflow = "fold"
    for array in contents.arrays:
        table.add_row(
            array.path,
            " × ".join(map(str, array.shape)),
            array.dtype,
            f"{array.size_bytes:,}",
        )
    show(out, table)
    total = sum(array.size_bytes for array in contents.arrays)
    say(out, f"{len(contents.arrays)} arrays, {total / 2**20:,.1f} MiB")
