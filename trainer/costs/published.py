"""Published data sets by name: how much they hold, and of what shape.

For planning before there is a store; training takes its facts from the store itself.

Source: *OGBench: Benchmarking Offline Goal-Conditioned RL*, appendix, table of data
sets; the ten of *Horizon Adaptive Offline Policy Learning via Value Stitching* stand
there in the table of data specifications, with the same numbers.
"""

import difflib
from dataclasses import dataclass

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


def _facts(
    millions: int, observation_dim: int, action_dim: int, *, length: int = 1_000
) -> DatasetFacts:
    transitions = millions * 1_000_000
    return DatasetFacts(
        transitions=transitions,
        episodes=transitions // length,
        episode_length=length,
        observation_dim=observation_dim,
        action_dim=action_dim,
    )


DATASETS: dict[str, DatasetFacts] = {
    "scene-play": _facts(1, 40, _ARM),
    "cube-single-play": _facts(1, 28, _ARM),
    "cube-double-play": _facts(1, 37, _ARM),
    "cube-triple-play": _facts(3, 46, _ARM),
    "cube-quadruple-play": _facts(5, 55, _ARM),
    "puzzle-4x4-play": _facts(1, 83, _ARM),
    "puzzle-4x5-play": _facts(3, 99, _ARM),
    "puzzle-4x6-play": _facts(5, 115, _ARM),
    "antmaze-large-navigate": _facts(1, 29, _ANT),
    "antmaze-giant-navigate": _facts(1, 29, _ANT, length=2_000),
    "pointmaze-medium-navigate": _facts(1, 2, _POINT),
    "pointmaze-large-navigate": _facts(1, 2, _POINT),
    "pointmaze-giant-navigate": _facts(1, 2, _POINT, length=2_000),
    "pointmaze-teleport-navigate": _facts(1, 2, _POINT),
}


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
            f"unknown data set {dataset!r}; "
            f"{'nearest' if near else 'known'}: {', '.join(near or DATASETS)}"
        )
    return DATASETS[dataset]
