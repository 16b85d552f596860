"""Random episodes of finitely many states, which exact solvers are tested on."""

import numpy as np

from trainer.toy.tabular import FiniteData


def random_data(
    rng: np.random.Generator,
    *,
    states: int,
    moves: int,
    episodes: int,
    longest: int,
    discount: float,
) -> FiniteData:
    """Draws episodes that share nothing but their state space.

    States, moves, rewards in [-1, 1) and masks (0 in a fifth of the rows) are all
    independent, so one pair of state and move may lead to any state.

    Args:
        rng: Generator that everything is drawn from.
        states: Number Z of states.
        moves: Number of different moves.
        episodes: Number E of episodes.
        longest: Most rows of an episode, at least 2.
        discount: Discount of rewards, in (0, 1).

    Returns:
        The data.
    """
    lengths = rng.integers(2, longest + 1, episodes)
    rows = int(lengths.sum())
    return FiniteData(
        states=rng.integers(0, states, rows),
        moves=rng.integers(0, moves, rows),
        rewards=rng.uniform(-1, 1, rows),
        masks=(rng.random(rows) >= 0.2).astype(np.float64),
        lengths=lengths,
        state_count=states,
        discount=discount,
    )
