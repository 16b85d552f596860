"""Which runs are of one method: of one name and equal settings, whatever the seeds.

Runs of a sweep are of the method that their folder names, others of their agent. Where
settings of one name differ within a task, what differs becomes part of the name: two
variants of an agent are two methods.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.config import find_differences
from trainer.runs.evaluations import Evaluation
from trainer.runs.names import find_method
from trainer.runs.run import Run
from trainer.runs.success_rates import select_largest

Place = tuple[str, int]
Float64 = npt.NDArray[np.float64]

# Runs that differ in nothing else are of one method.
_SEEDS = ("trainer.seed", "trainer.seeds")
_DATA = "data"


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
    def place(self) -> Place:
        """Data set and task."""
        return self.run.dataset, self.run.task.task

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


@dataclass(frozen=True)
class Results:
    """Of one method in one task.

    Attributes:
        method: Its name.
        place: Data set and task.
        evaluations: Of all of its training seeds, each episode once.
        runs: Names of the runs pooled.
    """

    method: str
    place: Place
    evaluations: Sequence[Evaluation]
    runs: Sequence[str]

    @property
    def updates(self) -> int:
        """Of the last checkpoint evaluated."""
        return max((each.step for each in self.evaluations), default=0)

    @property
    def episodes(self) -> int:
        """Of each training seed at that checkpoint; the fewest."""
        last = [each.episodes for each in self.evaluations if each.step == self.updates]
        return min(last, default=0)

    def curve(self) -> tuple[npt.NDArray[np.int64], Float64]:
        """Success by update.

        Returns:
            Steps ``i64[N]`` and rates ``f64[Q, N]``, by training seed; NaN where a
            seed was not evaluated at a step.
        """
        told = [each for each in self.evaluations if each.successes is not None]
        steps = np.array(sorted({each.step for each in told}), np.int64)
        seeds = sorted({each.seed for each in told})
        rates = np.full((len(seeds), len(steps)), np.nan)
        for row, seed in enumerate(seeds):
            for column, step in enumerate(steps):
                outcomes = [
                    outcome
                    for each in told
                    if (each.seed, each.step) == (seed, step)
                    for outcome in each.successes or ()
                ]
                if outcomes:
                    rates[row, column] = np.mean(outcomes)
        return steps, rates


def pool_methods(runs: Sequence[EvaluatedRun]) -> list[Results]:
    """Sorts runs into methods, and pools those that differ in seeds alone.

    Args:
        runs: All runs of a report.

    Returns:
        One for each method and task that was evaluated. Runs of equal settings and
        overlapping seeds are told apart by name.
    """
    by_method: dict[str, list[EvaluatedRun]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    pooled: dict[tuple[str, Place], list[EvaluatedRun]] = defaultdict(list)
    for method, members in by_method.items():
        settings = _differing(members)
        for run in members:
            label = method + _describe(run, settings)
            if _overlaps(pooled[label, run.place], run):
                label = f"{label} ({run.name})"
            pooled[label, run.place].append(run)
    return [
        Results(
            method=method,
            place=place,
            evaluations=[
                each for run in members for each in select_largest(run.evaluations)
            ],
            runs=[run.name for run in members if run.evaluations],
        )
        for (method, place), members in pooled.items()
        if any(run.evaluations for run in members)
    ]


def _differing(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Settings that differ between two runs of a task, such as ``agent.temperature``.

    Those that differ between tasks alone are how a method is set for each task.
    """
    first: dict[Place, EvaluatedRun] = {}
    names: dict[str, None] = {}
    for run in runs:
        other = first.setdefault(run.place, run)
        found = find_differences(other.run.config, run.run.config)
        names |= {name: None for name, _, _ in found if name not in _SEEDS}
        if other.run.fingerprint != run.run.fingerprint:
            names[_DATA] = None
    return sorted(names)


def _describe(run: EvaluatedRun, settings: Sequence[str]) -> str:
    """Values of settings, in parentheses; nothing if there are none."""
    values = []
    for setting in settings:
        if setting == _DATA:
            values.append(f"data {run.run.fingerprint[:6]}")
            continue
        table, name = setting.split(".")
        value = getattr(getattr(run.run.config, table), name, None)
        if value is not None:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            values.append(f"{name}={shown}")
    return f" ({', '.join(values)})" if values else ""


def _overlaps(runs: Sequence[EvaluatedRun], run: EvaluatedRun) -> bool:
    seeds = set(run.run.config.trainer.seed_range)
    return any(seeds & set(other.run.config.trainer.seed_range) for other in runs)
