"""Everything runs left behind, read once for all parts of a report."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.report.methods import EvaluatedRun
from trainer.report.result_table import ResultRow, result_rows
from trainer.runs.evaluations import Evaluation, read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.history import History, read_history
from trainer.runs.run import Run, read_run
from trainer.runs.success_rates import select_own


@dataclass(frozen=True)
class Source:
    """Everything one run left behind.

    Attributes:
        name: How the report calls it; no other is called so.
        folder: RUN.
        run: What it is.
        history: What it logged.
        evaluations: Of it, in any task.
    """

    name: str
    folder: RunFolder
    run: Run
    history: History
    evaluations: list[Evaluation]

    @property
    def own(self) -> list[Evaluation]:
        """Evaluations in the task and environment it is trained for."""
        return select_own(self.run, self.evaluations)

    @property
    def rows(self) -> list[ResultRow]:
        """Its rows of the result table."""
        return result_rows(self.name, self.run, self.evaluations)

    @property
    def evaluated(self) -> EvaluatedRun:
        """What decides which runs it is pooled with."""
        return EvaluatedRun(self.name, self.run, self.own)


def read_sources(runs: Sequence[RunFolder]) -> list[Source]:
    """Reads runs, and names those apart whose folders are called the same.

    Raises:
        DataFormatError: If a folder is no run's, or a file in it is damaged.
    """
    return [
        Source(
            name=name,
            folder=folder,
            run=read_run(folder),
            history=read_history(folder),
            evaluations=read_evaluations(folder),
        )
        for name, folder in zip(_names(runs), runs, strict=True)
    ]


def _names(runs: Sequence[RunFolder]) -> list[str]:
    names: list[str] = []
    for run in runs:
        base = run.name or "run"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names
