"""``sweep``: a grid of runs."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pipeline.output import Output, say
from trainer.commands.arguments import check_counts


@dataclass(frozen=True)
class Sweep:
    """Train and evaluate a grid of data sets, tasks, methods and seeds.

    Repeated, it goes on where it was: what is finished is left alone. A cell that fails
    does not end it; the failures are listed at the end.

    Attributes:
        sweep: The grid, such as configs/sweeps/cpu-evidence.toml.
        only: Cells whose names are like this pattern, such as 'cube-*-fql-*'.
        parallel: Cells that run side by side, such as one for each core; on CPUs XLA
            then computes each with one thread, which narrow networks are no slower
            with.
        dry_run: List the cells and how far each has come, and do nothing.
    """

    sweep: Annotated[Path, tyro.conf.Positional]
    only: str = "*"
    parallel: int = 1
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Trains and evaluates the cells, or lists them."""
        from trainer.sweep.cells import look, make_cells, read_sweep
        from trainer.sweep.run import Processes, run_sweep

        check_counts(self, "parallel")
        sweep = read_sweep(self.sweep)
        cells = make_cells(sweep, only=self.only)
        if self.dry_run:
            for cell in cells:
                say(output.results, f"{cell.name}: {look(cell)}")
            return 0
        processes = Processes(share_cores=self.parallel > 1)
        with processes.listening():
            code = run_sweep(
                cells,
                runner=processes,
                console=output.progress,
                parallel=self.parallel,
            )
        # No shell knows what is on gs://; quoted, the pattern reaches the command.
        runs = shlex.quote(f"{sweep.out}/*") if "://" in sweep.out else f"{sweep.out}/*"
        say(output.progress, f"to report: python -m trainer report {runs} --out REPORT")
        return code
