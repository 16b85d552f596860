"""Mean returns of recorded episodes, how sure they are, and D4RL's normalised score.

Pure arithmetic on records; knows no files.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000
# Draws held at once: episodes of many checkpoints and seeds may be pooled.
_BATCH = 1_000

Interval = tuple[float, float]


@dataclass(frozen=True)
class Returns:
    """Undiscounted returns of episodes, pooled.

    Attributes:
        mean: Of the returns.
        interval: Its 95 % bootstrap interval; None of a single episode, which says
            nothing about the spread.
        episodes: How many.
        reference: Returns that count as 0 and as 100; None if they are not known.
    """

    mean: float
    interval: Interval | None
    episodes: int
    reference: Interval | None = None

    @classmethod
    def of(
        cls, returns: Iterable[float], reference: Interval | None = None
    ) -> "Returns":
        """Pools returns of episodes, at least one."""
        values = tuple(returns)
        mean = sum(values) / len(values)
        return cls(mean, bootstrap_interval(values), len(values), reference)

    @property
    def normalised(self) -> float | None:
        """D4RL's score of the mean; None without reference scores."""
        if self.reference is None:
            return None
        return normalised_score(self.mean, self.reference)

    @property
    def normalised_interval(self) -> Interval | None:
        """The interval of the mean as normalised scores."""
        if self.reference is None or self.interval is None:
            return None
        low, high = (normalised_score(end, self.reference) for end in self.interval)
        return low, high

    def __str__(self) -> str:
        text = f"return {self.mean:.2f}"
        if self.interval is not None:
            low, high = self.interval
            text += f" (95 % interval {low:.2f} to {high:.2f})"
        if self.normalised is not None:
            text += f", normalised score {self.normalised:.1f}"
        return text


def bootstrap_interval(returns: Iterable[float]) -> Interval | None:
    """Percentile bootstrap interval of a mean, at 95 %.

    Args:
        returns: Of episodes, which are taken as independent.

    Returns:
        Lower and upper end; None of fewer than two episodes. Equal calls give equal
        results.

    References:
        Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapter 13.
    """
    from scipy.stats import bootstrap  # Half a second, and few commands need it.

    # In a fixed order: the interval is of the episodes, however they are pooled.
    values = np.sort(np.asarray(tuple(returns), np.float64))
    if len(values) < 2:
        return None
    interval = bootstrap(
        (values,),
        np.mean,
        method="percentile",
        n_resamples=_RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def normalised_score(value: float, reference: Interval) -> float:
    """D4RL's score: 0 for the lower reference return, 100 for the upper one.

    References:
        Fu et al. (2020), D4RL: Datasets for Deep Data-Driven Reinforcement Learning,
        section 5.

    Example:
        >>> normalised_score(75.0, (50.0, 100.0))
        50.0
    """
    low, high = reference
    return 100 * (value - low) / (high - low)


def show_interval(interval: Interval | None, without: str, *, digits: int) -> str:
    """An interval as a cell of a table, or what stands in its place."""
    if interval is None:
        return without
    low, high = interval
    return f"{low:.{digits}f} to {high:.{digits}f}"


def show_score(returns: Returns, without: str) -> str:
    """A normalised score with its interval, or what stands in its place."""
    if returns.normalised is None:
        return without
    if returns.normalised_interval is None:
        return f"{returns.normalised:.1f}"
    interval = show_interval(returns.normalised_interval, without, digits=1)
    return f"{returns.normalised:.1f} ({interval})"
