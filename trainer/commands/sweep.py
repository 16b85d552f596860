"""``sweep``: a grid of runs, trained and evaluated."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from trainer.commands.arguments import SweepPath, check_counts, read_environment
from trainer.cores import count_usable_cores
from trainer.errors import StorageError

if TYPE_CHECKING:
    from trainer.sweep.cells import Cell
    from trainer.sweep.states import State


@dataclass(frozen=True)
class Sweep:
    """Train and evaluate a grid of data sets, tasks, methods and seeds.

    A repeated command continues the sweep and leaves out finished cells. A cell that
    fails does not stop the others; the failures are listed at the end.

    Attributes:
        sweep: File of the grid, such as configs/sweeps/cpu-evidence.toml, or the name
            of a shipped one, such as cpu-evidence.
        out: Folder of the runs in place of the one that the file names.
        store: Store of a data set in place of the one that the file names; {dataset}
            stands for the data set's name.
        only: Pattern of the names of the cells to run, such as 'cube-*-fql-*'.
        jobs: Number of cells that run side by side. They share this machine's GPUs
            evenly, or else its cores. Narrow networks gain little from several cores:
            for those, give the number of cores.
        environment: Environment to evaluate in if it is not that of the sweep's file or
            of the stores: ID, or MODULE:ID to import the module that registers it.
        environment_arguments: Arguments of the environment, such as size=3.
        updates_per_s: Updates per second that a dry run estimates hours with, for
            methods whose speed has not been measured yet.
        dry_run: List the cells, the progress of each and the work that is left, and run
            nothing.
        json: With --dry-run, print one JSON object by cell instead of lines.
    """

    sweep: SweepPath
    only: str = "*"
    out: str | None = None
    store: str | None = None
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
        from trainer.sweep.run import ProcessRunner, run_sweep
        from trainer.sweep.states import read_state

        check_counts(self, "jobs")
        if self.json and not self.dry_run:
            raise UsageError("--json: expected --dry-run beside it, which lists cells")
        if self.updates_per_s is not None and not self.dry_run:
            raise UsageError(
                "--updates-per-s: expected --dry-run beside it, which estimates hours"
            )
        if self.updates_per_s is not None and not self.updates_per_s > 0:
            raise UsageError(
                f"--updates-per-s: expected a rate above 0, got {self.updates_per_s}"
            )
        sweep = read_sweep(self.sweep, out=self.out, store=self.store)
        # Replaced in the sweep, so that every cell and its two commands agree on it.
        environment = read_environment(self.environment, self.environment_arguments)
        if environment is not None:
            sweep = dataclasses.replace(
                sweep,
                environment=self.environment,
                environment_arguments=dict(environment.kwargs),
            )
        # Jobs that evaluate at the same time share the cores; results do not depend on
        # the number of workers.
        if self.jobs > 1 and sweep.evaluation.workers is None:
            workers = max(1, count_usable_cores() // self.jobs)
            evaluation = dataclasses.replace(sweep.evaluation, workers=workers)
            sweep = dataclasses.replace(sweep, evaluation=evaluation)
        cells = make_cells(sweep, only=self.only)
        if self.dry_run:
            states = [read_state(cell) for cell in cells]
            self._list(cells, states, output)
            for line in totals.describe_totals(
                cells,
                states,
                totals.measure_rates(cells, states),
                jobs=self.jobs,
                updates_per_s=self.updates_per_s,
            ):
                say(output.progress, line)
            return 0
        # Found without JAX, which would take the GPUs' memory from the cells.
        environments = devices.make_environments(self.jobs, devices.find_gpus())
        runner = ProcessRunner(environments)
        with runner.forward_signals():
            code = run_sweep(
                cells,
                runner=runner,
                console=output.progress,
                jobs=self.jobs,
                again=self.format_command(),
            )
        # A bucket that does not answer now must not replace the sweep's exit code.
        with suppress(OSError, StorageError):
            if any(cell.folder.exists() for cell in cells):
                # Quoted, since a shell would also expand the pattern to folders that
                # are no runs, which the command leaves out.
                runs = shlex.quote(f"{sweep.out}/*")
                say(
                    output.progress,
                    f"to report: python -m trainer report {runs} --out report",
                )
        return code

    def _list(
        self, cells: "Sequence[Cell]", states: "Sequence[State]", output: Output
    ) -> None:
        """Prints the progress of each cell."""
        if self.json:
            by_name = {
                cell.name: dataclasses.asdict(state)
                for cell, state in zip(cells, states, strict=True)
            }
            output.results.print_json(json.dumps(by_name))
            return
        for cell, state in zip(cells, states, strict=True):
            say(output.results, f"{cell.name}: {state}")

    def format_command(self) -> str:
        """Formats the command line that continues this sweep, quoted for a shell."""
        # Options with their default are left out: the line is to be read and pasted.
        given: tuple[str, ...] = ("python", "-m", "trainer", "sweep", str(self.sweep))
        for option in ("out", "store"):
            if (path := getattr(self, option)) is not None:
                given += (f"--{option}", path)
        given += () if self.only == "*" else ("--only", self.only)
        given += () if self.jobs == 1 else ("--jobs", str(self.jobs))
        if self.environment is not None:
            given += ("--environment", self.environment)
        if self.environment_arguments:
            given += ("--environment-arguments", *self.environment_arguments)
        return shlex.join(given)
