"""Mean returns of episodes with confidence intervals, and D4RL's normalised score.

This module is pure arithmetic and knows no files.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000
# Resamples that are in memory at once, since thousands of episodes may be pooled.
_BATCH = 1_000

Interval = tuple[float, float]


@dataclass(frozen=True)
class Returns:
    """Pooled undiscounted returns of episodes.

    Attributes:
        mean: Mean of the returns.
        interval: 95 % bootstrap interval of the mean; None for a single episode, which
            says nothing about the spread.
        episodes: Number of episodes.
        reference: Returns that count as a normalised score of 0 and of 100; None if
            they are not known.
    """

    mean: float
    interval: Interval | None
    episodes: int
    reference: Interval | None = None

    @classmethod
    def of(
        cls, returns: Iterable[float], reference: Interval | None = None
    ) -> "Returns":
        """Pools the returns of at least one episode."""
        values = tuple(returns)
        mean = sum(values) / len(values)
        return cls(mean, bootstrap_interval(values), len(values), reference)

    @property
    def normalised(self) -> float | None:
        """D4RL's normalised score of the mean; None without reference scores."""
        if self.reference is None:
            return None
        return normalise_score(self.mean, self.reference)

    @property
    def normalised_interval(self) -> Interval | None:
        """Interval of the mean as normalised scores; None if either is unknown."""
        if self.reference is None or self.interval is None:
            return None
        low, high = (normalise_score(end, self.reference) for end in self.interval)
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
    """Computes the 95 % percentile bootstrap interval of a mean.

    Args:
        returns: Returns of episodes, which are taken as independent.

    Returns:
        Lower and upper end; None for fewer than two episodes. The generator is seeded,
        so that equal returns give equal intervals.

    References:
        Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapter 13.
    """
    # Imported here: it takes half a second, and few commands need it.
    from scipy.stats import bootstrap

    # Sorted, so that the interval does not depend on the order of pooling.
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


def normalise_score(value: float, reference: Interval) -> float:
    """Computes D4RL's score: 0 for the lower reference return, 100 for the upper.

    References:
        Fu et al. (2020), D4RL: Datasets for Deep Data-Driven Reinforcement Learning,
        section 5.

    Example:
        >>> normalise_score(75.0, (50.0, 100.0))
        50.0
    """
    low, high = reference
    return 100 * (value - low) / (high - low)


def show_interval(interval: Interval | None, without: str, *, digits: int) -> str:
    """Formats an interval for a table; ``without`` stands in place of None."""
    if interval is None:
        return without
    low, high = interval
    return f"{low:.{digits}f} to {high:.{digits}f}"


def show_score(returns: Returns, without: str) -> str:
    """Formats a normalised score with its interval; ``without`` stands for none."""
    if returns.normalised is None:
        return without
    if returns.normalised_interval is None:
        return f"{returns.normalised:.1f}"
    interval = show_interval(returns.normalised_interval, without, digits=1)
    return f"{returns.normalised:.1f} ({interval})"
