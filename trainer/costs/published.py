"""Published data sets by name: how much they hold, and of what shape.

For planning before there is a store; training takes its facts from the store itself.

Source: *OGBench: Benchmarking Offline Goal-Conditioned RL*, appendix, table of data
sets; the ten of *Horizon Adaptive Offline Policy Learning via Value Stitching* stand
there in the table of data specifications, with the same numbers.
"""

import difflib
from dataclasses import dataclass

from pipeline.domains.datasets import parse_dataset
from pipeline.store.errors import UsageError


@dataclass(frozen=True)
class DatasetFacts:
    """Size and shape of one published data set.

    Attributes:
        transitions: Of the training split.
        episodes: Of the training split.
        episode_length: Transitions of an episode; it has one row more.
        observation_dim: S.
        action_dim: A.
    """

    transitions: int
    episodes: int
    episode_length: int
    observation_dim: int
    action_dim: int

    @property
    def rows(self) -> int:
        """Rows of a store of it: the last row of an episode leads nowhere."""
        return self.transitions + self.episodes


_ARM, _ANT, _POINT = 5, 8, 2
# Millions of transitions, S and A.
_SIZES = {
    "scene-play": (1, 40, _ARM),
    "cube-single-play": (1, 28, _ARM),
    "cube-double-play": (1, 37, _ARM),
    "cube-triple-play": (3, 46, _ARM),
    "cube-quadruple-play": (5, 55, _ARM),
    "puzzle-4x4-play": (1, 83, _ARM),
    "puzzle-4x5-play": (3, 99, _ARM),
    "puzzle-4x6-play": (5, 115, _ARM),
    "antmaze-large-navigate": (1, 29, _ANT),
    "antmaze-giant-navigate": (1, 29, _ANT),
    "pointmaze-medium-navigate": (1, 2, _POINT),
    "pointmaze-large-navigate": (1, 2, _POINT),
    "pointmaze-giant-navigate": (1, 2, _POINT),
    "pointmaze-teleport-navigate": (1, 2, _POINT),
}


def _facts(
    dataset: str, millions: int, observation_dim: int, action_dim: int
) -> DatasetFacts:
    transitions = millions * 1_000_000
    length = parse_dataset(dataset).episode_rows - 1
    return DatasetFacts(
        transitions=transitions,
        episodes=transitions // length,
        episode_length=length,
        observation_dim=observation_dim,
        action_dim=action_dim,
    )


DATASETS = {dataset: _facts(dataset, *sizes) for dataset, sizes in _SIZES.items()}


def find(dataset: str) -> DatasetFacts:
    """Looks up a data set.

    Args:
        dataset: Name without version, such as ``"cube-single-play"``.

    Returns:
        Its facts.

    Raises:
        UsageError: If it is not in the table; names the nearest that are.

    Example:
        >>> find("antmaze-giant-navigate").rows
        1000500
    """
    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=3, cutoff=0.5)
        raise UsageError(
            f"unknown data set {dataset!r}; choose a published one, "
            f"{'nearest' if near else 'known'}: {', '.join(near or DATASETS)}"
        )
    return DATASETS[dataset]
