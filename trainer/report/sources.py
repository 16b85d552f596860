"""Folders of runs, read once for all parts of a report."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.report.methods import EvaluatedRun
from trainer.report.result_table import ResultRow, make_rows
from trainer.runs.evaluations import Evaluation, read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.history import History, read_history
from trainer.runs.run import Run, read_run
from trainer.runs.success_rates import select_own


@dataclass(frozen=True)
class Source:
    """Everything that one run wrote.

    Attributes:
        name: Name of the run in the report; no other run has it.
        folder: Folder of the run.
        run: Description of the run.
        history: Metrics of its training.
        evaluations: Evaluations of the run, in any task.
    """

    name: str
    folder: RunFolder
    run: Run
    history: History
    evaluations: list[Evaluation]

    @property
    def own(self) -> list[Evaluation]:
        """Evaluations in the task and environment that the run is trained for."""
        return select_own(self.run, self.evaluations)

    @property
    def rows(self) -> list[ResultRow]:
        """Rows of the run in the result table."""
        return make_rows(self.name, self.run, self.evaluations)

    @property
    def evaluated(self) -> EvaluatedRun:
        """The run as ``pool_methods`` takes it."""
        return EvaluatedRun(self.name, self.run, self.own, self.folder.name)


def read_sources(runs: Sequence[RunFolder]) -> list[Source]:
    """Reads runs, and gives runs whose folders have one name different names.

    Args:
        runs: Folders of the runs.

    Returns:
        The runs in the same order.

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
        for name, folder in zip(_choose_names(runs), runs, strict=True)
    ]


def _choose_names(runs: Sequence[RunFolder]) -> list[str]:
    """Names the sources by their folders, with more where a name is taken.

    Cells of two sweeps often have equal names: the sweep's folder tells them apart.
    Folders that lie in folders of equal names are numbered.
    """
    # Names are addresses of pictures, and headings: two may not be equal.
    names: dict[str, str] = {}
    for run in runs:
        name, parent = run.name or "run", run.parent_name
        if names.get(name, parent) != parent:
            name = f"{parent}-{name}"
        base, number = name, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names[name] = parent
    return list(names)
