"""``sweep``: a grid of runs."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from trainer.commands.arguments import check_counts, read_environment

if TYPE_CHECKING:
    from trainer.sweep.cells import Cell
    from trainer.sweep.states import State


@dataclass(frozen=True)
class Sweep:
    """Train and evaluate a grid of data sets, tasks, methods and seeds.

    Repeated, it goes on where it was: what is finished is left alone. A cell that fails
    does not end it; the failures are listed at the end.

    Attributes:
        sweep: The grid, such as configs/sweeps/cpu-evidence.toml; or the name of one
            that is shipped, such as cpu-evidence.
        only: Cells whose names are like this pattern, such as 'cube-*-fql-*'.
        jobs: Cells that run side by side. GPUs of this machine are shared out among
            them; on CPUs XLA computes each with one thread, which narrow networks are
            no slower with, so take one for each core.
        environment: Environment to evaluate in, where that is not the one of the
            sweep's file or of the stores: ID, or MODULE:ID to have the module imported
            that registers it.
        environment_arguments: Arguments of the environment, such as size=3.
        updates_per_s: Speed for the hours of a dry run, where none was measured yet.
        dry_run: List the cells, how far each has come and what is left, and do nothing.
        json: With --dry-run, print one JSON object by cell instead of lines.
    """

    sweep: Annotated[Path, tyro.conf.Positional]
    only: str = "*"
    jobs: Annotated[int, tyro.conf.arg(aliases=("--parallel",))] = 1
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    updates_per_s: float | None = None
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Trains and evaluates the cells, or lists them."""
        from trainer.sweep import devices, totals
        from trainer.sweep.cells import make_cells, read_sweep
        from trainer.sweep.run import Processes, run_sweep
        from trainer.sweep.states import look

        check_counts(self, "jobs")
        if self.json and not self.dry_run:
            raise UsageError("--json: expected --dry-run beside it, which lists cells")
        if self.updates_per_s is not None and not self.updates_per_s > 0:
            raise UsageError(
                f"--updates-per-s: expected a rate above 0, got {self.updates_per_s}"
            )
        sweep = read_sweep(self.sweep)
        environment = read_environment(self.environment, self.environment_arguments)
        if environment is not None:
            sweep = dataclasses.replace(
                sweep,
                environment=self.environment,
                environment_arguments=dict(environment.kwargs),
            )
        cells = make_cells(sweep, only=self.only)
        if self.dry_run:
            states = [look(cell) for cell in cells]
            self._list(cells, states, output)
            for line in totals.describe_totals(
                cells,
                states,
                totals.measure(cells, states),
                jobs=self.jobs,
                updates_per_s=self.updates_per_s,
            ):
                say(output.progress, line)
            return 0
        environments = devices.make_environments(self.jobs, devices.find_gpus())
        processes = Processes(environments)
        with processes.listening():
            code = run_sweep(
                cells,
                runner=processes,
                console=output.progress,
                jobs=self.jobs,
                again=self.again(),
            )
        if any(cell.folder.exists() for cell in cells):
            # Quoted, the pattern reaches the command, which leaves out what is no run.
            runs = shlex.quote(f"{sweep.out}/*")
            say(
                output.progress,
                f"to report: python -m trainer report {runs} --out report",
            )
        return code

    def _list(
        self, cells: "Sequence[Cell]", states: "Sequence[State]", output: Output
    ) -> None:
        """Says how far each cell has come."""
        if self.json:
            by_name = {
                cell.name: dataclasses.asdict(state)
                for cell, state in zip(cells, states, strict=True)
            }
            output.results.print_json(json.dumps(by_name))
            return
        for cell, state in zip(cells, states, strict=True):
            say(output.results, f"{cell.name}: {state}")

    def again(self) -> str:
        """The command line that goes on with this sweep, as a shell takes it."""
        only = () if self.only == "*" else ("--only", self.only)
        jobs = () if self.jobs == 1 else ("--jobs", str(self.jobs))
        given = ("python", "-m", "trainer", "sweep", str(self.sweep), *only, *jobs)
        if self.environment is not None:
            given += ("--environment", self.environment)
        if self.environment_arguments:
            given += ("--environment-arguments", *self.environment_arguments)
        return shlex.join(given)
