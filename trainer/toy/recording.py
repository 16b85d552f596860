"""Recorded episodes of finitely many states, as agents train on them."""

import numpy as np
import numpy.typing as npt

from pipeline.store.returns import next_solved, suffix_sums
from trainer.agents.base import DataFacts
from trainer.data.table import RowTable
from trainer.toy.tabular import FiniteData

Float32 = npt.NDArray[np.float32]


def table(
    data: FiniteData,
    observations: Float32,
    actions: Float32,
    *,
    recordings: int,
    noise: float,
    fingerprint: str,
) -> RowTable:
    """Records episodes many times over.

    Args:
        data: Episodes, recorded once.
        observations: ``f32[N, S]``, what is seen at each row.
        actions: ``f32[N, A]``.
        recordings: Times each episode was recorded, always the same.
        noise: Standard deviation of what was observed.
        fingerprint: Of the table.

    Returns:
        Rows of all episodes.
    """
    exact = np.tile(observations, (recordings, 1))
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


def facts(rows: RowTable) -> DataFacts:
    """Constants of the recorded data, for agents.

    Args:
        rows: Of ``table``.

    Returns:
        The constants.
    """
    mean, std = rows.observations.mean(axis=0), rows.observations.std(axis=0)
    return DataFacts(
        observation_dim=rows.observations.shape[1],
        action_dim=rows.actions.shape[1],
        observation_mean=tuple(float(x) for x in mean),
        observation_std=tuple(float(x) for x in std),
        reward_min=float(rows.rewards.min()),
        reward_max=float(rows.rewards.max()),
        return_max=rows.best_return(),
    )
