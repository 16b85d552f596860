"""Methods against each other: how often a score is reached, and who is better.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the
Statistical Precipice, sections 4.2 and 4.3, and their library rliable, whose two
definitions are a line of NumPy each. Scores are ``f64[Q]`` of each task, one a training
seed.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Interval = tuple[float, float]

# A bootstrap of fewer draws the same few scores again and again, and its interval is
# far too narrow: none is better.
MIN_SEEDS, MIN_SCORES = 3, 10
_RESAMPLES = 2_000


def enough(scores: Sequence[Float64]) -> bool:
    """Whether there are scores enough for an interval."""
    counts = [len(task) for task in scores]
    return min(counts, default=0) >= MIN_SEEDS and sum(counts) >= MIN_SCORES


def performance_profile(scores: Sequence[Float64], thresholds: Float64) -> Float64:
    """Share of single training runs that score above each threshold.

    Args:
        scores: Of one method, by task.
        thresholds: ``f64[N]``.

    Returns:
        ``f64[N]`` in [0, 1].

    Example:
        >>> scores = [np.array([0.1, 0.5]), np.array([0.5, 0.9])]
        >>> performance_profile(scores, np.array([0.0, 0.5])).tolist()
        [1.0, 0.25]
    """
    pooled = np.concatenate(scores)
    return (pooled[None, :] > thresholds[:, None]).mean(axis=1)


def profile_band(
    scores: Sequence[Float64], thresholds: Float64
) -> tuple[Float64, Float64]:
    """Pointwise 95 % bootstrap band of a profile; seeds are drawn within their task."""
    drawn = np.concatenate(_draw(scores, np.random.default_rng(0)), axis=1)
    shares = np.stack([(drawn > each).mean(axis=1) for each in thresholds], axis=1)
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return low, high


def probability_of_improvement(
    ours: Sequence[Float64], theirs: Sequence[Float64]
) -> float:
    """How probably a run of ours beats one of theirs in a task drawn at random.

    Args:
        ours: Scores by task.
        theirs: Of the same tasks, in the same order.

    Returns:
        In [0, 1]: the mean over tasks of Mann and Whitney's statistic, where equal
        scores count half.

    Example:
        >>> probability_of_improvement([np.array([0.2, 0.8])], [np.array([0.2])])
        0.75
    """
    return float(np.mean([_beats(a, b) for a, b in zip(ours, theirs, strict=True)]))


def improvement_interval(
    ours: Sequence[Float64], theirs: Sequence[Float64]
) -> Interval:
    """Bootstrap interval of that probability, at 95 %. Equal calls, equal results."""
    rng = np.random.default_rng(0)
    drawn = zip(_draw(ours, rng), _draw(theirs, rng), strict=True)
    found = np.mean([_beats(a, b) for a, b in drawn], axis=0)
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _beats(ours: Float64, theirs: Float64) -> Float64:
    """Share of pairs won, of ``[..., Q]`` against ``[..., P]``; ties count half."""
    signs = np.sign(ours[..., :, None] - theirs[..., None, :])
    return np.asarray((1 + signs.mean(axis=(-2, -1))) / 2)


def _draw(scores: Sequence[Float64], rng: np.random.Generator) -> list[Float64]:
    """Scores drawn anew within each task: ``f64[resamples, Q]`` each."""
    return [
        task[rng.integers(len(task), size=(_RESAMPLES, len(task)))] for task in scores
    ]
