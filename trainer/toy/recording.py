"""Converts recorded episodes of finitely many states to rows that agents train on."""

import numpy as np
import numpy.typing as npt

from pipeline.store.returns import next_solved, suffix_sums
from trainer.agents.base import DataFacts
from trainer.data.table import RowTable
from trainer.toy.tabular import FiniteData

Float32 = npt.NDArray[np.float32]


def make_table(
    data: FiniteData,
    observations: Float32,
    actions: Float32,
    *,
    recordings: int,
    noise: float,
    fingerprint: str,
) -> RowTable:
    """Builds a table with several copies of recorded episodes.

    Args:
        data: Episodes, recorded once.
        observations: ``f32[N, S]``, observation of each row.
        actions: ``f32[N, A]``, action of each row.
        recordings: Number of copies of each episode.
        noise: Standard deviation of the noise on observations, in their units.
        fingerprint: Fingerprint of the table, which keys the random streams.

    Returns:
        Rows of all copies of all episodes.
    """
    exact = np.tile(observations, (recordings, 1))
    # Only observations are noisy: rewards and masks are those of the true states, so
    # exact solutions of the data without noise are what networks are compared with. The
    # seed is fixed, since a fingerprint must stand for one table.
    blur = np.random.default_rng(0).normal(scale=noise, size=exact.shape)
    rewards, masks = (np.tile(x, recordings) for x in (data.rewards, data.masks))
    lengths = np.tile(data.lengths, recordings)
    returns = suffix_sums(
        rewards[:, None], masks[:, None], lengths, discount=data.discount
    )
    return RowTable(
        observations=(exact + blur).astype(np.float32),
        actions=np.tile(actions, (recordings, 1)),
        rewards=rewards.astype(np.float32),
        masks=masks.astype(np.float32),
        returns=returns[:, 0],
        next_solved=next_solved(masks),
        episode_starts=np.cumsum(lengths) - lengths,
        episode_lengths=lengths,
        discount=data.discount,
        fingerprint=fingerprint,
    )


def compute_facts(rows: RowTable) -> DataFacts:
    """Computes the facts of the data that an agent is made from.

    Args:
        rows: A table that ``make_table`` has made.

    Returns:
        The facts.
    """
    # Real runs take these from the manifest of their store; a toy has no store.
    mean, std = rows.observations.mean(axis=0), rows.observations.std(axis=0)
    return DataFacts(
        observation_dim=rows.observations.shape[1],
        action_dim=rows.actions.shape[1],
        observation_mean=tuple(float(x) for x in mean),
        observation_std=tuple(float(x) for x in std),
        reward_min=float(rows.rewards.min()),
        reward_max=float(rows.rewards.max()),
        return_max=rows.find_best_return(),
    )
