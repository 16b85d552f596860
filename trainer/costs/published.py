"""Sizes and shapes of the published data sets, by name.

They are for planning without a store; training reads the sizes from its store.

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
        transitions: Number of transitions of the training split.
        episodes: Number of episodes of the training split.
        episode_length: Transitions of an episode, which has one row more.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
    """

    transitions: int
    episodes: int
    episode_length: int
    observation_dim: int
    action_dim: int

    @property
    def rows(self) -> int:
        """Rows in a store; the last row of an episode starts no transition."""
        return self.transitions + self.episodes


_ARM, _ANT, _POINT = 5, 8, 2
# Millions of transitions, components of an observation, components of an action.
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


def _make_facts(
    dataset: str, millions: int, observation_dim: int, action_dim: int
) -> DatasetFacts:
    transitions = millions * 1_000_000
    # All episodes of a published data set are equally long.
    length = parse_dataset(dataset).episode_rows - 1
    return DatasetFacts(
        transitions=transitions,
        episodes=transitions // length,
        episode_length=length,
        observation_dim=observation_dim,
        action_dim=action_dim,
    )


DATASETS = {dataset: _make_facts(dataset, *sizes) for dataset, sizes in _SIZES.items()}


def find_dataset(dataset: str) -> DatasetFacts:
    """Finds a published data set by its name.

    Args:
        dataset: Name without version, such as ``"cube-single-play"``.

    Returns:
        Size and shape of the data set.

    Raises:
        UsageError: If the table has no such data set; the error gives similar names.

    Example:
        >>> find_dataset("antmaze-giant-navigate").rows
        1000500
    """
    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=3, cutoff=0.5)
        raise UsageError(
            f"unknown data set {dataset!r}; choose a published one, "
            f"{'nearest' if near else 'known'}: {', '.join(near or DATASETS)}"
        )
    return DATASETS[dataset]
