"""One figure for a method over tasks: the interquartile mean, and how sure it is.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the
Statistical Precipice, sections 4.1 and 4.3: the mean of the middle half of all scores
of single training runs is moved less by outliers than the mean, and wastes less of them
than the median; runs are drawn anew within each task, as tasks are no sample.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from trainer.report.comparisons import MIN_SCORES, MIN_SEEDS, enough
from trainer.report.methods import Results
from trainer.runs.evaluations import Evaluation
from trainer.runs.returns import normalised_score
from trainer.runs.success_rates import select_largest

_RESAMPLES = 10_000
Measure = Literal["success", "normalised score"]
_SUCCESS: Measure = "success"
_SCORE: Measure = "normalised score"

HEADINGS = ("method", "of", "tasks", "training seeds", "IQM", "95 % interval", "mean")
NOTES = (
    "IQM: mean of the middle half of the last success rates, or normalised scores, of "
    "all single training seeds and tasks. The interval is of a bootstrap that draws "
    f"training seeds anew within each task; there is none of fewer than {MIN_SEEDS} "
    f"seeds in a task or {MIN_SCORES} in all.",
    "A method is called as its sweep calls it, or by its agent. Runs of one name whose "
    "settings differ within a task are methods of their own, named by what differs; "
    "runs that differ in their seeds alone are one.",
)


@dataclass(frozen=True)
class Aggregate:
    """A method over tasks.

    Attributes:
        agent: Its name.
        measure: What is aggregated: success rates, or normalised scores.
        tasks: How many it was evaluated in.
        runs: Scores in all: a task's training seeds, summed over tasks.
        iqm: Interquartile mean of success rates, in [0, 1], or of scores.
        interval: Its stratified bootstrap interval, at 95 %; None of too few seeds.
        mean: Of the same rates.
    """

    agent: str
    measure: Measure
    tasks: int
    runs: int
    iqm: float
    interval: tuple[float, float] | None
    mean: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, one cell for each of ``HEADINGS``."""
        scale, unit = (100, " %") if self.measure == "success" else (1, "")
        interval = "too few seeds"
        if self.interval is not None:
            low, high = self.interval
            interval = f"{scale * low:.1f} to {scale * high:.1f}{unit}"
        return (
            self.agent,
            self.measure,
            str(self.tasks),
            str(self.runs),
            f"{scale * self.iqm:.1f}{unit}",
            interval,
            f"{scale * self.mean:.1f}{unit}",
        )


def aggregate(results: Sequence[Results]) -> list[Aggregate]:
    """Aggregates results of methods over tasks.

    Args:
        results: One of each method and task.

    Returns:
        By method: of success, and of normalised scores where there are reference
        scores.
    """
    scores: dict[tuple[str, Measure], list[npt.NDArray[np.float64]]] = {}
    for each in results:
        for measure, figures in (
            (_SUCCESS, last_rates(each.evaluations)),
            (_SCORE, last_scores(each.evaluations)),
        ):
            if len(figures):
                scores.setdefault((each.method, measure), []).append(figures)
    found = []
    for (method, measure), of in sorted(scores.items(), key=lambda item: item[0]):
        pooled = np.concatenate(of)
        found.append(
            Aggregate(
                agent=method,
                measure=measure,
                tasks=len(of),
                runs=len(pooled),
                iqm=interquartile_mean(pooled),
                interval=stratified_interval(of) if enough(of) else None,
                mean=float(pooled.mean()),
            )
        )
    return found


def last_rates(evaluations: Sequence[Evaluation]) -> npt.NDArray[np.float64]:
    """Success rate of every training seed at the last step evaluated: ``f64[Q]``.

    Empty if none was, or success is not reported.
    """
    return _mean_by_seed(
        (evaluation.seed, evaluation.successes)
        for evaluation in _last(evaluations)
        if evaluation.successes is not None
    )


def last_scores(evaluations: Sequence[Evaluation]) -> npt.NDArray[np.float64]:
    """Normalised score of every training seed at the last step evaluated: ``f64[Q]``.

    Empty if none was, or there are no reference scores.
    """
    return _mean_by_seed(
        (
            evaluation.seed,
            [normalised_score(each, reference) for each in evaluation.returns],
        )
        for evaluation in _last(evaluations)
        if (reference := evaluation.reference_scores) is not None
    )


def _mean_by_seed(
    values: Iterable[tuple[int, Sequence[float]]],
) -> npt.NDArray[np.float64]:
    """Means of each training seed's episodes, in the order of the seeds."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    for seed, episodes in values:
        by_seed[seed].extend(episodes)
    return np.array([np.mean(by_seed[seed]) for seed in sorted(by_seed)])


def _last(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Evaluations of the last step, each episode once."""
    chosen = select_largest(evaluations)
    last = max((evaluation.step for evaluation in chosen), default=None)
    return [evaluation for evaluation in chosen if evaluation.step == last]


def interquartile_mean(scores: npt.NDArray[np.float64]) -> float:
    """Mean of the middle half of all scores, of any shape.

    Example:
        >>> interquartile_mean(np.array([0.0, 0.2, 0.4, 1.0]))
        0.30000000000000004
    """
    return float(trim_mean(scores, 0.25, axis=None))


def stratified_interval(
    scores: Sequence[npt.NDArray[np.float64]], *, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the interquartile mean, at 95 %.

    Args:
        scores: ``f64[Q]`` of each task; Q may differ.
        resamples: How often all scores are drawn anew.

    Returns:
        Lower and upper end. Equal calls give equal results.
    """
    rng = np.random.default_rng(0)
    drawn = [
        task[rng.integers(len(task), size=(resamples, len(task)))] for task in scores
    ]
    means = trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
