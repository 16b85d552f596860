"""Results of evaluations: pooled success rates and returns with intervals.

Success rates are computed where the environment reports success, mean returns always.
This module is pure arithmetic on evaluations; it knows no files and draws no charts.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.store.units import format_count
from trainer.runs.evaluations import Evaluation, Key
from trainer.runs.returns import Returns
from trainer.runs.run import Run

# 97.5 % quantile of the normal distribution: two-sided intervals of 95 %.
_Z = 1.959963984540054

Statistic = Literal["last", "mean of last three", "best"]
STATISTICS: tuple[Statistic, ...] = ("last", "mean of last three", "best")


@dataclass(frozen=True)
class Score:
    """Successes among episodes.

    Attributes:
        successes: Episodes that succeeded.
        episodes: Episodes played.
    """

    successes: int
    episodes: int

    @classmethod
    def of(cls, outcomes: Iterable[int]) -> "Score":
        """Counts outcomes of 0 and 1."""
        values = tuple(outcomes)
        return cls(sum(values), len(values))

    @property
    def rate(self) -> float:
        """Share of successes, in [0, 1]."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate, in [0, 1]."""
        return wilson_interval(self.successes, self.episodes)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{100 * self.rate:.0f} % success (95 % interval {100 * low:.0f} to "
            f"{100 * high:.0f} %)"
        )


@dataclass(frozen=True)
class ResultSummary:
    """One result of a run, as a table shows it.

    Attributes:
        statistic: Choice of checkpoints: the last one evaluated; the last three pooled;
            or the one with the highest success rate, or with the highest mean return
            where success is not reported. Of equally good ones the earliest is taken.
            The best of several noisy results is biased upwards, and its interval does
            not account for that.
        score: Success over all episodes of those checkpoints and all training seeds;
            None if the environment does not report success. The interval takes
            episodes as independent, so it covers the luck of the draw of episodes, but
            not that of training.
        returns: Returns of the same episodes.
        steps: Steps of the checkpoints.
        seeds: Training seeds that are pooled.
        seed_std: Standard deviation of the rate over training seeds (n - 1), in
            [0, 1]; None for a single seed, or if success is not reported.
    """

    statistic: Statistic
    score: Score | None
    returns: Returns
    steps: tuple[int, ...]
    seeds: tuple[int, ...]
    seed_std: float | None


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Computes Wilson's 95 % score interval of a success probability.

    Unlike the normal approximation, the interval stays within [0, 1] and does not
    shrink to a point at no successes or only successes.

    Args:
        successes: Number of successes.
        episodes: Number of trials, at least 1.

    Returns:
        Lower and upper end, in [0, 1].

    Raises:
        ValueError: If there are no episodes, or more successes than episodes.

    References:
        Wilson (1927), Probable inference, the law of succession, and statistical
        inference.

    Example:
        >>> low, high = wilson_interval(0, 10)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.278)
    """
    if episodes < 1 or not 0 <= successes <= episodes:
        raise ValueError(
            f"wilson_interval: expected 0 to {episodes} successes of at least 1 "
            f"episode, got {successes} of {episodes}; check the counts"
        )
    rate, z2 = successes / episodes, _Z**2 / episodes
    center = (rate + z2 / 2) / (1 + z2)
    spread = _Z * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes))
    half = spread / (1 + z2)
    # Without a success the lower end is 0, and with successes alone the upper end is 1.
    # Rounding would put them a little inside, and leave the paper's 0 or 100 % outside.
    low = max(0.0, center - half) if successes else 0.0
    high = min(1.0, center + half) if successes < episodes else 1.0
    return low, high


def select_largest(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Keeps the largest of evaluations that share episodes.

    Args:
        evaluations: Evaluations of one run.

    Returns:
        One evaluation for each step, training seed, evaluation seed, task,
        environment and number of candidates, in order.
    """
    # Episodes 0 to 9 are the same in evaluations of 10 and of 50 episodes with one
    # seed; pooling both would count these twice. The key's last part is the number.
    largest: dict[Key, Evaluation] = {}
    for evaluation in evaluations:
        key = evaluation.key[:-1]
        if key not in largest or largest[key].episodes < evaluation.episodes:
            largest[key] = evaluation
    return list(largest.values())


def pool_by_step(evaluations: Sequence[Evaluation]) -> dict[int, Score]:
    """Pools the successes of all training seeds at each step.

    Args:
        evaluations: Evaluations from ``select_largest``; those without success are
            left out.

    Returns:
        Scores by step, ascending.
    """
    reporting = [
        evaluation for evaluation in evaluations if evaluation.successes is not None
    ]
    return {step: _pool(group) for step, group in group_by_step(reporting).items()}


def group_by_step(evaluations: Iterable[Evaluation]) -> dict[int, list[Evaluation]]:
    """Groups evaluations by step, ascending."""
    groups: dict[int, list[Evaluation]] = {}
    for evaluation in sorted(evaluations, key=lambda other: other.step):
        groups.setdefault(evaluation.step, []).append(evaluation)
    return groups


def pool_returns(evaluations: Sequence[Evaluation]) -> Returns:
    """Pools the returns of evaluations.

    Args:
        evaluations: Evaluations from ``select_largest``, at least one.

    Returns:
        The pooled returns.
    """
    # Reference scores are kept only if all evaluations have the same: a mean of scores
    # on different scales would say nothing.
    references = {evaluation.reference_scores for evaluation in evaluations}
    return Returns.of(
        (episode for evaluation in evaluations for episode in evaluation.returns),
        references.pop() if len(references) == 1 else None,
    )


def mean_return(evaluations: Sequence[Evaluation]) -> float:
    """Computes the mean return of all episodes of evaluations, at least one."""
    # Not by `pool_returns`, whose bootstrap would take its time at each checkpoint.
    returns = [episode for evaluation in evaluations for episode in evaluation.returns]
    return sum(returns) / len(returns)


def select_own(run: Run, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Selects the evaluations of the task that a run was trained for.

    Args:
        run: The run.
        evaluations: Evaluations of the run.

    Returns:
        Evaluations of the run's task in the run's environment, with as many candidates
        as its configuration says; if there are none, those of the conditions that it
        was evaluated under most often.
    """
    own = [evaluation for evaluation in evaluations if evaluation.task == run.task.task]
    counts = Counter(evaluation.conditions for evaluation in own)
    # A run of data that name no environment is evaluated in one that is given each
    # time, so that none of its evaluations are in its own.
    chosen = (run.task.environment_id, 0)
    if chosen not in counts:
        chosen = max(counts, key=lambda conditions: counts[conditions], default=chosen)
    return [evaluation for evaluation in own if evaluation.conditions == chosen]


def describe_conditions(run: Run, evaluations: Sequence[Evaluation]) -> str:
    """Says under which conditions a run was evaluated, unless they are its own.

    Args:
        run: The run.
        evaluations: Evaluations of the run in its task, under equal conditions.

    Returns:
        Text such as ``evaluated in Walk-v0 with 8 candidates``; empty for the run's
        own conditions, and without evaluations.
    """
    if not evaluations:
        return ""
    environment, candidates = evaluations[0].conditions
    text = ""
    if environment != run.task.environment_id:
        text += f" in {environment}"
    if candidates:
        text += f" with {format_count(candidates, 'candidate')}"
    return text and f"evaluated{text}"


def summarize(evaluations: Sequence[Evaluation]) -> list[ResultSummary]:
    """Computes the results of a run.

    Args:
        evaluations: Evaluations of one run and task, under equal conditions.

    Returns:
        A summary for each of ``STATISTICS``; none without evaluations.
    """
    chosen = select_largest(evaluations)
    if not chosen:
        return []
    by_step = group_by_step(chosen)
    steps = tuple(by_step)
    reported = all(evaluation.successes is not None for evaluation in chosen)

    def rank(step: int) -> tuple[float, int]:
        at_step = by_step[step]
        return (_pool(at_step).rate if reported else mean_return(at_step)), -step

    best = max(steps, key=rank)
    picked: dict[Statistic, tuple[int, ...]] = {
        "last": steps[-1:],
        "mean of last three": steps[-3:],
        "best": (best,),
    }
    return [
        _summary(
            statistic,
            [evaluation for step in picked[statistic] for evaluation in by_step[step]],
        )
        for statistic in STATISTICS
    ]


def describe_outcome(run: Run, evaluations: Sequence[Evaluation]) -> str:
    """Says in one line whether the last evaluated checkpoint solves a task.

    Args:
        run: The run.
        evaluations: Evaluations of the run in the task that it is trained for.

    Returns:
        The line; it says ``solved`` only if every episode of every training seed of the
        run succeeded, and ``solved so far`` if some seeds were not evaluated. It names
        conditions that are not the run's own.
    """
    place = f"{run.dataset} task {run.task.task}"
    if conditions := describe_conditions(run, evaluations):
        place += f" ({conditions})"
    summaries = summarize(evaluations)
    if not summaries:
        return f"not evaluated yet: {place}"
    last = summaries[0]
    score, (step,) = last.score, last.steps
    # An evaluation that was stopped has the last checkpoint of some seeds only.
    evaluated, all_seeds = len(last.seeds), run.config.trainer.seeds
    of_seeds = ""
    if evaluated < all_seeds:
        of_seeds = f" of {evaluated} of {all_seeds} training seeds"
    if score is None:
        return (
            f"success not reported: {place}, {last.returns} of {last.returns.episodes} "
            f"episodes{of_seeds} after {step:,} updates"
        )
    verdict = "solved in part"
    if not score.successes:
        verdict = "not solved"
    elif score.successes == score.episodes:
        verdict = "solved so far" if of_seeds else "solved"
    return (
        f"{verdict}: {place}, {score.successes} of {score.episodes} episodes{of_seeds} "
        f"after {step:,} updates"
    )


def _summary(statistic: Statistic, evaluations: list[Evaluation]) -> ResultSummary:
    seeds = sorted({evaluation.seed for evaluation in evaluations})
    reported = all(evaluation.successes is not None for evaluation in evaluations)
    rates = [
        _pool(evaluation for evaluation in evaluations if evaluation.seed == seed).rate
        for seed in seeds
        if reported
    ]
    return ResultSummary(
        statistic=statistic,
        score=_pool(evaluations) if reported else None,
        returns=pool_returns(evaluations),
        steps=tuple(sorted({evaluation.step for evaluation in evaluations})),
        seeds=tuple(seeds),
        seed_std=statistics.stdev(rates) if len(rates) > 1 else None,
    )


def _pool(evaluations: Iterable[Evaluation]) -> Score:
    return Score.of(
        outcome for evaluation in evaluations for outcome in evaluation.successes or ()
    )
