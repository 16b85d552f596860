"""Results of recorded evaluations: what is pooled, and how sure one can be.

Success rates where the environment reports success, and mean returns always.

Pure arithmetic on records; knows no files and draws nothing.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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
class Summary:
    """One result of a run, as a table shows it.

    Attributes:
        statistic: Which checkpoints it is of: the last one evaluated; the last three
            pooled; or the one with the highest rate, or the highest mean return where
            success is not reported, the earliest of several. The best of several noisy
            figures is biased upwards, and its interval ignores that.
        score: Success of all episodes of those checkpoints and all training seeds
            pooled; None if the environment does not report it. Its interval takes
            episodes as independent: it holds the luck of the draw of episodes, not
            that of training.
        returns: Returns of the same episodes, likewise.
        steps: The checkpoints.
        seeds: Training seeds pooled.
        seed_std: Standard deviation of the rate over training seeds (n - 1), in
            [0, 1]; None for a single seed, or without success.
    """

    statistic: Statistic
    score: Score | None
    returns: Returns
    steps: tuple[int, ...]
    seeds: tuple[int, ...]
    seed_std: float | None


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a success probability.

    Unlike the normal approximation it stays within [0, 1] and is no point at 0 or all
    successes.

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
            f"expected 0 to {episodes} successes of at least 1 episode, got "
            f"{successes} of {episodes}"
        )
    rate, z2 = successes / episodes, _Z**2 / episodes
    center = (rate + z2 / 2) / (1 + z2)
    spread = _Z * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes))
    half = spread / (1 + z2)
    return max(0.0, center - half), min(1.0, center + half)


def select_largest(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Of evaluations that share episodes, keeps that with most.

    Episodes 0 to 9 are the same in an evaluation of 10 and one of 50 with the same
    seed; pooling both would count them twice.

    Args:
        evaluations: Of one run.

    Returns:
        One for each step, training seed, evaluation seed, task and environment, in
        order.
    """
    largest: dict[Key, Evaluation] = {}
    for evaluation in evaluations:
        key = evaluation.key[:-1]
        if key not in largest or largest[key].episodes < evaluation.episodes:
            largest[key] = evaluation
    return list(largest.values())


def pool_by_step(evaluations: Sequence[Evaluation]) -> dict[int, Score]:
    """Pools successes of all training seeds at each step.

    Args:
        evaluations: As ``select_largest`` returns them; what reports no success is
            left out.

    Returns:
        Scores by step, ascending.
    """
    reporting = [each for each in evaluations if each.successes is not None]
    steps = sorted({evaluation.step for evaluation in reporting})
    return {step: _pool(_at(reporting, (step,))) for step in steps}


def pool_returns(evaluations: Sequence[Evaluation]) -> Returns:
    """Pools the returns of evaluations.

    Args:
        evaluations: As ``select_largest`` returns them, at least one.

    Returns:
        Theirs; with reference scores only if all were scored by the same.
    """
    references = {evaluation.reference_scores for evaluation in evaluations}
    return Returns.of(
        (value for evaluation in evaluations for value in evaluation.returns),
        references.pop() if len(references) == 1 else None,
    )


def select_own(run: Run, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Chooses the evaluations that tell how well a run does what it is trained for.

    Args:
        run: The run.
        evaluations: Of it.

    Returns:
        Those of its task, in its own environment; if it was never evaluated there, as
        where the environment was named only when it was evaluated, in the one that it
        was evaluated in most.
    """
    own = [each for each in evaluations if each.task == run.task.task]
    counts: dict[str, int] = {}
    for evaluation in own:
        name = evaluation.environment
        counts[name] = counts.get(name, 0) + 1
    chosen = run.task.environment_id
    if chosen not in counts:
        chosen = max(counts, key=lambda name: counts[name], default=chosen)
    return [each for each in own if each.environment == chosen]


def summarize(evaluations: Sequence[Evaluation]) -> list[Summary]:
    """The three results of a run.

    Args:
        evaluations: Of one run, task and environment.

    Returns:
        One summary for each of ``STATISTICS``; none without evaluations.
    """
    chosen = select_largest(evaluations)
    if not chosen:
        return []
    steps = tuple(sorted({evaluation.step for evaluation in chosen}))
    by_step = {step: _at(chosen, (step,)) for step in steps}
    reported = all(evaluation.successes is not None for evaluation in chosen)

    def rank(step: int) -> tuple[float, int]:
        there = by_step[step]
        return (_pool(there).rate if reported else _mean_return(there)), -step

    best = max(steps, key=rank)
    picked: dict[Statistic, tuple[int, ...]] = {
        "last": steps[-1:],
        "mean of last three": steps[-3:],
        "best": (best,),
    }
    return [
        _summary(statistic, _at(chosen, picked[statistic])) for statistic in STATISTICS
    ]


def describe_outcome(dataset: str, task: int, evaluations: Sequence[Evaluation]) -> str:
    """Says in one line whether the last checkpoint that was evaluated solves a task.

    Args:
        dataset: Data-set name.
        task: Task number.
        evaluations: Of one run, in that task.

    Returns:
        ``solved`` only if every episode was, of all training seeds.
    """
    summaries = summarize(evaluations)
    if not summaries:
        return f"not evaluated yet: {dataset} task {task}"
    score, (step,) = summaries[0].score, summaries[0].steps
    if score is None:
        returns = summaries[0].returns
        return (
            f"success not reported: {dataset} task {task}, {returns} of "
            f"{returns.episodes} episodes after {step:,} updates"
        )
    verdict = "solved in part"
    if score.successes in (0, score.episodes):
        verdict = "solved" if score.successes else "not solved"
    return (
        f"{verdict}: {dataset} task {task}, {score.successes} of {score.episodes} "
        f"episodes after {step:,} updates"
    )


def _summary(statistic: Statistic, evaluations: list[Evaluation]) -> Summary:
    seeds = sorted({evaluation.seed for evaluation in evaluations})
    reported = all(evaluation.successes is not None for evaluation in evaluations)
    rates = [
        _pool([each for each in evaluations if each.seed == seed]).rate
        for seed in seeds
        if reported
    ]
    return Summary(
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


def _mean_return(evaluations: Sequence[Evaluation]) -> float:
    """Mean return of all episodes."""
    values = [value for evaluation in evaluations for value in evaluation.returns]
    return sum(values) / len(values)


def _at(evaluations: Sequence[Evaluation], steps: Sequence[int]) -> list[Evaluation]:
    return [evaluation for evaluation in evaluations if evaluation.step in steps]
