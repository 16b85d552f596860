"""Which runs are pooled as one method: those of one name and equal settings.

The folder of a sweep's run names its method; other runs are named by their agent. Where
settings of one name differ within a task, the differing settings become part of the
name: two variants of an agent are two methods. So are runs of other data, for another
environment, or evaluated under other conditions. Seeds never tell methods apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.config import find_differences
from trainer.data.fingerprint import strip_window
from trainer.runs.evaluations import Evaluation
from trainer.runs.names import find_method
from trainer.runs.run import Run
from trainer.runs.success_rates import describe_conditions, select_largest

Place = tuple[str, int]
Float64 = npt.NDArray[np.float64]

# Settings in which runs of one method may differ.
_SEEDS = ("trainer.seed", "trainer.seeds")
# Names, among those of settings, of what a configuration does not hold: the fingerprint
# of the data, the environment trained for and its arguments, and the conditions of the
# evaluations.
_DATA = "data"
_ENVIRONMENT = "environment"
_CONDITIONS = "evaluated"


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with its evaluations in the task that it is trained for.

    Attributes:
        name: Name of the run in the report.
        run: The run.
        evaluations: Evaluations of the run in its own task, under equal conditions.
        folder: Name of its folder, if other runs of the report have that name as well
            and this one has another; else empty.
    """

    name: str
    run: Run
    evaluations: Sequence[Evaluation]
    folder: str = ""

    @property
    def place(self) -> Place:
        """Data set and task."""
        return self.run.dataset, self.run.task.task

    @property
    def conditions(self) -> str:
        """Conditions of the evaluations, if they are not the run's own; else empty."""
        return describe_conditions(self.run, self.evaluations)

    @property
    def method(self) -> str:
        """Its method, without the settings that tell variants apart."""
        method = find_method(
            self.folder or self.name,
            dataset=self.run.dataset,
            task=self.run.task.task,
            seeds=self.run.config.trainer.seed_range,
        )
        return method or self.run.config.agent.name


@dataclass(frozen=True)
class Results:
    """Results of one method in one task.

    Attributes:
        method: Name of the method.
        place: Data set and task.
        evaluations: Evaluations of all training seeds, each episode once.
        runs: Names of the runs that are pooled.
    """

    method: str
    place: Place
    evaluations: Sequence[Evaluation]
    runs: Sequence[str]

    @property
    def last_steps(self) -> dict[int, int]:
        """Step of the last checkpoint evaluated, by training seed."""
        return find_last_steps(self.evaluations)

    @property
    def updates(self) -> int:
        """Updates of the last checkpoint evaluated, of any training seed."""
        return max(self.last_steps.values(), default=0)

    @property
    def episodes(self) -> int:
        """Episodes of a training seed at its last checkpoint; the fewest of any."""
        # A checkpoint may have been evaluated several times, with other starts.
        steps, counts = self.last_steps, dict.fromkeys(self.last_steps, 0)
        for evaluation in self.evaluations:
            if evaluation.step == steps[evaluation.seed]:
                counts[evaluation.seed] += evaluation.episodes
        return min(counts.values(), default=0)

    def curve(self) -> tuple[npt.NDArray[np.int64], Float64]:
        """Computes success rates by step and training seed.

        Returns:
            Steps ``i64[N]`` at which the most seeds were evaluated, usually all, and
            rates ``f64[Q, N]``; NaN where a seed was not evaluated at a step.
        """
        outcomes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for evaluation in self.evaluations:
            if evaluation.successes is not None:
                outcomes[evaluation.seed, evaluation.step] += evaluation.successes
        steps = sorted({step for _, step in outcomes})
        seeds = sorted({seed for seed, _ in outcomes})
        rates = np.full((len(seeds), len(steps)), np.nan)
        for (seed, step), successes in outcomes.items():
            if successes:
                rates[seeds.index(seed), steps.index(step)] = np.mean(successes)
        # A mean jumps where a seed drops out of it: where those that fail are behind,
        # its end would be the success of the others.
        counts = np.isfinite(rates).sum(axis=0)
        kept = counts == counts.max(initial=0)
        return np.array(steps, np.int64)[kept], rates[:, kept]


def find_last_steps(evaluations: Sequence[Evaluation]) -> dict[int, int]:
    """Finds the last step at which each training seed was evaluated.

    Args:
        evaluations: Evaluations of one method in one task.

    Returns:
        Steps by training seed, in the order of the seeds.
    """
    # Every seed has its own: a run that diverged or was preempted stays behind the
    # others, and would be left out at the last step of all. Means of those that are
    # left flatter the method.
    steps: dict[int, int] = {}
    for evaluation in sorted(evaluations, key=lambda other: (other.seed, other.step)):
        steps[evaluation.seed] = evaluation.step
    return steps


def pool_methods(runs: Sequence[EvaluatedRun]) -> list[Results]:
    """Sorts runs into methods, and pools runs that differ in seeds alone.

    Args:
        runs: All runs of a report.

    Returns:
        Results of each method in each task that was evaluated. Runs of equal settings
        and overlapping seeds are not pooled: their names tell them apart.
    """
    by_method: dict[str, list[EvaluatedRun]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    pooled: dict[tuple[str, Place], list[EvaluatedRun]] = defaultdict(list)
    for method, members in by_method.items():
        settings = _find_differences(members)
        for run in members:
            label = method + _describe(run, settings)
            # A seed that is counted twice would make an interval too narrow.
            if _overlaps(pooled[label, run.place], run):
                label = f"{label} ({run.name})"
            pooled[label, run.place].append(run)
    # Runs without evaluations took part above, so that names do not change with time.
    return [
        Results(
            method=method,
            place=place,
            evaluations=[
                evaluation
                for run in members
                for evaluation in select_largest(run.evaluations)
            ],
            runs=[run.name for run in members if run.evaluations],
        )
        for (method, place), members in pooled.items()
        if any(run.evaluations for run in members)
    ]


def _find_differences(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Finds settings that differ between runs of a task, such as ``agent.width``.

    Settings may differ between tasks: a method has its own for each task.
    """
    first: dict[Place, EvaluatedRun] = {}
    names: dict[str, None] = {}
    conditions: dict[Place, set[str]] = defaultdict(set)
    for run in runs:
        other = first.setdefault(run.place, run)
        settings = find_differences(other.run.config, run.run.config)
        names |= {name: None for name, _, _ in settings if name not in _SEEDS}
        # The window of blocks depends on the seed, which tells no methods apart.
        if strip_window(other.run.fingerprint) != strip_window(run.run.fingerprint):
            names[_DATA] = None
        ours, theirs = run.run.task, other.run.task
        if ours.environment_id != theirs.environment_id:
            names[_ENVIRONMENT] = None
        arguments = ours.environment_kwargs.items() ^ theirs.environment_kwargs.items()
        names |= {f"{_ENVIRONMENT}.{name}": None for name, _ in arguments}
        # A run that was not evaluated yet has no conditions that differ.
        if run.evaluations:
            conditions[run.place].add(run.conditions)
    if any(len(different) > 1 for different in conditions.values()):
        names[_CONDITIONS] = None
    return sorted(names)


def _describe(run: EvaluatedRun, settings: Sequence[str]) -> str:
    """Formats values of settings in parentheses; empty without settings."""
    values = [_describe_setting(run, setting) for setting in settings]
    shown = ", ".join(text for text in values if text)
    return f" ({shown})" if shown else ""


def _describe_setting(run: EvaluatedRun, setting: str) -> str:
    """Formats the value of a setting; empty if the run does not have it."""
    task = run.run.task
    if setting == _DATA:
        return f"data {run.run.fingerprint[:6]}"
    if setting == _ENVIRONMENT:
        return f"environment {task.environment_id}"
    if setting == _CONDITIONS:
        return run.conditions
    table, name = setting.split(".", 1)
    if table == _ENVIRONMENT:
        setting_value = task.environment_kwargs.get(name, "default")
    else:
        # Agents of different kinds share a method's name, but not all settings.
        setting_value = getattr(getattr(run.run.config, table), name, None)
        if setting_value is None:
            return ""
    is_float = isinstance(setting_value, float)
    return f"{name}={setting_value:g}" if is_float else f"{name}={setting_value}"


def _overlaps(runs: Sequence[EvaluatedRun], run: EvaluatedRun) -> bool:
    """Tells whether a run shares a training seed with any of some others."""
    seeds = set(run.run.config.trainer.seed_range)
    return any(seeds & set(other.run.config.trainer.seed_range) for other in runs)
