"""Figures of a method over tasks: the interquartile mean and its interval.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the
Statistical Precipice, sections 4.1 and 4.3. The mean of the middle half of all scores
of single training runs depends less on outliers than the mean, and uses more of the
scores than the median. Runs are resampled within each task, because the tasks are a
fixed set and no sample of one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from trainer.report.comparisons import MIN_SCORES, MIN_SEEDS, enough
from trainer.report.methods import Place, Results, find_last_steps
from trainer.runs.evaluations import Evaluation
from trainer.runs.returns import normalise_score
from trainer.runs.success_rates import select_largest

_RESAMPLES = 10_000
Measure = Literal["success", "normalised score"]
# Last success rates f64[Q] of training seeds, by method and by data set and task.
Rates = dict[str, dict[Place, npt.NDArray[np.float64]]]
_SUCCESS: Measure = "success"
_SCORE: Measure = "normalised score"

HEADINGS = (
    *("method", "measure", "tasks", "training seeds"),
    *("IQM", "95 % interval", "mean"),
)
NOTES = (
    "IQM, the interquartile mean, is the mean of the middle half of the last success "
    "rates (or normalised scores) of all training seeds in all tasks, each at its own "
    "last checkpoint evaluated. Its 95 % interval is a bootstrap's, which draws "
    "training seeds anew within each task. It is left out unless every task has at "
    f"least {MIN_SEEDS} training seeds and all tasks together have {MIN_SCORES}: with "
    "fewer seeds it would be far too narrow. It has no width where nearly all scores "
    "are equal, which is no certainty.",
    "A method is named by its sweep, or else by its agent. Runs that differ in their "
    "seeds alone are one method; where other settings, the environment or the "
    "candidates differ within a task, each variant is a method of its own, and its "
    "name says what differs.",
)


@dataclass(frozen=True)
class Aggregate:
    """Figures of one method over tasks.

    Attributes:
        agent: Name of the method.
        measure: What is aggregated: success rates, or normalised scores.
        tasks: Number of tasks in which the method was evaluated.
        runs: Number of scores: training seeds, summed over tasks.
        iqm: Interquartile mean of the scores; success rates are in [0, 1].
        interval: Its stratified bootstrap interval, at 95 %; None with too few seeds.
        mean: Mean of the scores.
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
        """The figures as text, a cell for each of ``HEADINGS``."""
        # Success rates are shown in percent; normalised scores are on that scale.
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
    """Aggregates the last scores of methods over tasks.

    Args:
        results: Results of each method in each task.

    Returns:
        Figures by method: of success where it is reported, and of normalised scores
        where there are reference scores.
    """
    scores: dict[tuple[str, Measure], list[npt.NDArray[np.float64]]] = {}
    for result in results:
        for measure, by_seed in (
            (_SUCCESS, last_rates(result.evaluations)),
            (_SCORE, last_scores(result.evaluations)),
        ):
            if len(by_seed):
                scores.setdefault((result.method, measure), []).append(by_seed)
    aggregated = []
    for (method, measure), by_task in sorted(scores.items(), key=lambda item: item[0]):
        # Scores of all tasks together, as in rliable: a task of more seeds counts more.
        pooled = np.concatenate(by_task)
        aggregated.append(
            Aggregate(
                agent=method,
                measure=measure,
                tasks=len(by_task),
                runs=len(pooled),
                iqm=interquartile_mean(pooled),
                interval=stratified_interval(by_task) if enough(by_task) else None,
                mean=float(pooled.mean()),
            )
        )
    return aggregated


def list_rates(results: Sequence[Results]) -> Rates:
    """Lists the last success rate of every training seed, by method and place."""
    rates: Rates = {}
    for result in results:
        by_seed = last_rates(result.evaluations)
        if len(by_seed):
            rates.setdefault(result.method, {})[result.place] = by_seed
    return rates


def find_common_places(rates: Rates) -> list[Place]:
    """Finds the places in which every method has success rates, sorted."""
    if not rates:
        return []
    return sorted(set.intersection(*(set(by_place) for by_place in rates.values())))


def last_rates(evaluations: Sequence[Evaluation]) -> npt.NDArray[np.float64]:
    """Computes success rates by training seed, each at its own last step evaluated.

    Args:
        evaluations: Evaluations of one method in one task.

    Returns:
        ``f64[Q]``, by seed; empty without evaluations that report success.
    """
    return _mean_by_seed(
        (evaluation.seed, evaluation.successes)
        for evaluation in _select_last(evaluations)
        if evaluation.successes is not None
    )


def last_scores(evaluations: Sequence[Evaluation]) -> npt.NDArray[np.float64]:
    """Computes normalised scores by training seed, each at its own last step.

    Args:
        evaluations: Evaluations of one method in one task.

    Returns:
        ``f64[Q]``, by seed; empty without evaluations that have reference scores.
    """
    return _mean_by_seed(
        (
            evaluation.seed,
            [normalise_score(total, reference) for total in evaluation.returns],
        )
        for evaluation in _select_last(evaluations)
        if (reference := evaluation.reference_scores) is not None
    )


def _mean_by_seed(
    values: Iterable[tuple[int, Sequence[float]]],
) -> npt.NDArray[np.float64]:
    """Averages the episodes of each training seed, in the order of the seeds."""
    # A run may have been evaluated in several calls, of a few episodes each.
    by_seed: dict[int, list[float]] = defaultdict(list)
    for seed, episodes in values:
        by_seed[seed].extend(episodes)
    return np.array([np.mean(by_seed[seed]) for seed in sorted(by_seed)])


def _select_last(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Selects the evaluations of each seed's last step, each episode once."""
    # Of repeated evaluations the largest counts: pooled, episodes would count twice.
    chosen = select_largest(evaluations)
    last = find_last_steps(chosen)
    return [
        evaluation for evaluation in chosen if evaluation.step == last[evaluation.seed]
    ]


def interquartile_mean(scores: npt.NDArray[np.float64]) -> float:
    """Computes the mean of the middle half of all scores, of any shape.

    Example:
        >>> interquartile_mean(np.array([0.0, 0.2, 0.4, 1.0]))
        0.30000000000000004
    """
    return float(trim_mean(scores, 0.25, axis=None))


def stratified_interval(
    scores: Sequence[npt.NDArray[np.float64]], *, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """Computes the 95 % percentile bootstrap interval of the interquartile mean.

    Args:
        scores: ``f64[Q]`` of each task; Q may differ.
        resamples: Number of times that all scores are drawn anew.

    Returns:
        Lower and upper end. Equal calls give equal results.
    """
    # A fixed seed: a report that is written twice must have the same bytes.
    rng = np.random.default_rng(0)
    drawn = [
        task[rng.integers(len(task), size=(resamples, len(task)))] for task in scores
    ]
    means = trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
