"""Methods against each other: performance profiles, probabilities of improvement.

Source: Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the
Statistical Precipice, sections 4.2 and 4.3. Their library rliable is not used because
both definitions are a line of NumPy. Scores are ``f64[Q]`` for each task, a score for
each of the Q training seeds.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Interval = tuple[float, float]

# A bootstrap of fewer scores draws the same few again and again, so that its interval
# is far too narrow: no interval is better.
MIN_SEEDS, MIN_SCORES = 3, 10
# As many as rliable draws for performance profiles.
_RESAMPLES = 2_000


def enough(scores: Sequence[Float64]) -> bool:
    """Tells whether scores, by task, are enough for an interval."""
    counts = [len(task) for task in scores]
    return min(counts, default=0) >= MIN_SEEDS and sum(counts) >= MIN_SCORES


def performance_profile(scores: Sequence[Float64], thresholds: Float64) -> Float64:
    """Computes the share of single training runs that score above each threshold.

    Args:
        scores: Scores of one method, by task.
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
    """Computes a profile's pointwise 95 % band; seeds are drawn within their task."""
    resampled = np.concatenate(_resample(scores, np.random.default_rng(0)), axis=1)
    # A threshold at a time: all at once would be an array of resamples, scores and
    # thresholds.
    shares = np.stack(
        [(resampled > threshold).mean(axis=1) for threshold in thresholds], axis=1
    )
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return low, high


def probability_of_improvement(
    ours: Sequence[Float64], theirs: Sequence[Float64]
) -> float:
    """Computes how probably a run of ours beats one of theirs in a random task.

    Args:
        ours: Scores by task.
        theirs: Scores of the other method in the same tasks, in the same order.

    Returns:
        The mean over tasks of Mann and Whitney's statistic, in [0, 1]; equal scores
        count half.

    Example:
        >>> probability_of_improvement([np.array([0.2, 0.8])], [np.array([0.2])])
        0.75
    """
    return float(np.mean([_share_won(a, b) for a, b in zip(ours, theirs, strict=True)]))


def improvement_interval(
    ours: Sequence[Float64], theirs: Sequence[Float64]
) -> Interval:
    """Computes the 95 % bootstrap interval of ``probability_of_improvement``.

    Equal calls give equal results.
    """
    rng = np.random.default_rng(0)
    resampled = zip(_resample(ours, rng), _resample(theirs, rng), strict=True)
    shares = np.mean([_share_won(a, b) for a, b in resampled], axis=0)
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(low), float(high)


def _share_won(ours: Float64, theirs: Float64) -> Float64:
    """Computes the share of pairs that ours win, ``[..., Q]`` by ``[..., P]``."""
    # An equal pair counts half: its sign is 0.
    signs = np.sign(ours[..., :, None] - theirs[..., None, :])
    return np.asarray((1 + signs.mean(axis=(-2, -1))) / 2)


def _resample(scores: Sequence[Float64], rng: np.random.Generator) -> list[Float64]:
    """Draws scores anew within each task: ``f64[resamples, Q]`` by task."""
    return [
        task[rng.integers(len(task), size=(_RESAMPLES, len(task)))] for task in scores
    ]
