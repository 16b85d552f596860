"""Which runs are of one method: of one name and equal settings, whatever the seeds.

Runs of a sweep are of the method that their folder names, others of their agent. Where
settings of one name differ within a task, what differs becomes part of the name: two
variants of an agent are two methods.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import differences
from trainer.runs.evaluations import Evaluation
from trainer.runs.names import find_method
from trainer.runs.run import Run

# Runs that differ in nothing else are of one method.
_SEEDS = ("trainer.seed", "trainer.seeds")


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, and its evaluations in the task that it is trained for.

    Attributes:
        name: Of its folder.
        run: The run.
        evaluations: Of it.
    """

    name: str
    run: Run
    evaluations: Sequence[Evaluation]

    @property
    def task(self) -> str:
        """Data set and task."""
        return f"{self.run.dataset} {self.run.task.task}"

    @property
    def method(self) -> str:
        """Its method, as far as its name and agent say."""
        named = find_method(
            self.name,
            dataset=self.run.dataset,
            task=self.run.task.task,
            seeds=self.run.config.trainer.seed_range,
        )
        return named or self.run.config.agent.name


def pool_methods(
    runs: Sequence[EvaluatedRun],
) -> list[tuple[str, str, list[Evaluation]]]:
    """Sorts runs into methods, and pools those that differ in seeds alone.

    Args:
        runs: All runs of a report.

    Returns:
        Method, task, and evaluations of all seeds that the method was trained with in
        the task. Runs of equal settings and overlapping seeds are told apart by name.
    """
    by_method: dict[str, list[EvaluatedRun]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    pooled: dict[tuple[str, str], list[EvaluatedRun]] = defaultdict(list)
    for method, members in by_method.items():
        settings = _differing(members)
        for run in members:
            label = method + _describe(run, settings)
            if _overlaps(pooled[label, run.task], run):
                label = f"{label} ({run.name})"
            pooled[label, run.task].append(run)
    return [
        (method, task, [each for run in members for each in run.evaluations])
        for (method, task), members in pooled.items()
        if members
    ]


def _differing(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Settings that differ between two runs of a task, such as ``agent.temperature``.

    Those that differ between tasks alone are how a method is set for each task.
    """
    first: dict[str, EvaluatedRun] = {}
    names: dict[str, None] = {}
    for run in runs:
        other = first.setdefault(run.task, run)
        found = differences(other.run.config, run.run.config)
        names |= {name: None for name, _, _ in found if name not in _SEEDS}
    return sorted(names)


def _describe(run: EvaluatedRun, settings: Sequence[str]) -> str:
    """Values of settings, in parentheses; nothing if there are none."""
    values = []
    for setting in settings:
        table, name = setting.split(".")
        value = getattr(getattr(run.run.config, table), name, None)
        if value is not None:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            values.append(f"{name}={shown}")
    return f" ({', '.join(values)})" if values else ""


def _overlaps(runs: Sequence[EvaluatedRun], run: EvaluatedRun) -> bool:
    seeds = set(run.run.config.trainer.seed_range)
    return any(seeds & set(other.run.config.trainer.seed_range) for other in runs)
