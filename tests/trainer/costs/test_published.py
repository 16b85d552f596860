"""The table of published data sets, against the paper's."""

import pytest

from trainer.costs import published

M = 1_000_000
# Appendix, "Data specifications": transitions, episodes, their length, S, A.
PAPER = {
    "scene-play": (1 * M, 1000, 1000, 40, 5),
    "cube-single-play": (1 * M, 1000, 1000, 28, 5),
    "cube-double-play": (1 * M, 1000, 1000, 37, 5),
    "puzzle-4x4-play": (1 * M, 1000, 1000, 83, 5),
    "antmaze-large-navigate": (1 * M, 1000, 1000, 29, 8),
    "antmaze-giant-navigate": (1 * M, 500, 2000, 29, 8),
    "cube-triple-play": (3 * M, 3000, 1000, 46, 5),
    "cube-quadruple-play": (5 * M, 5000, 1000, 55, 5),
    "puzzle-4x5-play": (3 * M, 3000, 1000, 99, 5),
    "puzzle-4x6-play": (5 * M, 5000, 1000, 115, 5),
}


@pytest.mark.parametrize("dataset", PAPER)
def test_facts_are_the_papers(dataset: str) -> None:
    facts = published.find_dataset(dataset)
    assert (
        facts.transitions,
        facts.episodes,
        facts.episode_length,
        facts.observation_dim,
        facts.action_dim,
    ) == PAPER[dataset]


@pytest.mark.parametrize("dataset", published.DATASETS)
def test_every_episode_is_whole(dataset: str) -> None:
    facts = published.DATASETS[dataset]
    assert facts.transitions == facts.episodes * facts.episode_length
    assert facts.rows == facts.episodes * (facts.episode_length + 1)


def test_unknown_names_get_their_neighbours() -> None:
    with pytest.raises(ValueError, match=r"'cube-singel-play'.*nearest: cube-single-p"):
        published.find_dataset("cube-singel-play")
    with pytest.raises(ValueError, match=r"'zzz'.*known: scene-play, "):
        published.find_dataset("zzz")
