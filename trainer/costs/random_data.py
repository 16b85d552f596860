"""Random rows in memory, for measurements and compilations that need only shapes.

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pipeline.store.returns import next_solved, suffix_sums
from trainer.agents.base import Agent, DataFacts
from trainer.data.sampling import draw_uniform_numbers
from trainer.data.table import RowTable

# Enough rows for any horizon and batch, in a table that is drawn in milliseconds.
_EPISODES = 8
_EPISODE_ROWS = 501


def make_random_table(facts: DataFacts, *, discount: float) -> RowTable:
    """Makes a table of independent random rows, never solved, with reward -1.

    Args:
        facts: Facts whose shapes the rows have.
        discount: Discount of the return sums.

    Returns:
        A table of a few thousand rows.
    """
    rng = np.random.default_rng(0)
    lengths = np.full(_EPISODES, _EPISODE_ROWS, np.int64)
    rows = int(lengths.sum())
    # Masks of 1: no task is solved, so every window is as long as it can be.
    masks = np.ones((rows, 1), np.uint8)
    rewards = np.full((rows, 1), -1, np.float32)
    return RowTable(
        observations=rng.normal(size=(rows, facts.observation_dim)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, facts.action_dim)).astype(np.float32),
        rewards=rewards[:, 0],
        masks=masks[:, 0].astype(np.float32),
        returns=suffix_sums(rewards, masks, lengths, discount=discount)[:, 0],
        next_solved=next_solved(masks[:, 0]),
        episode_starts=np.cumsum(lengths) - lengths,
        episode_lengths=lengths,
        discount=discount,
        fingerprint="random",
    )


def make_shape_facts(observation_dim: int, action_dim: int) -> DataFacts:
    """Makes facts of data for computations that depend on shapes alone."""
    return DataFacts(
        observation_dim=observation_dim,
        action_dim=action_dim,
        observation_mean=(0.0,) * observation_dim,
        observation_std=(1.0,) * observation_dim,
        reward_min=-1.0,
        reward_max=0.0,
        return_max=0.0,
    )


def draw_batches(
    agent: Agent[Any],
    table: RowTable,
    *,
    updates: int,
    seeds: Sequence[int],
    size: int,
    gathered: bool = True,
) -> Any:
    """Draws the batches of one call of the trainer.

    Args:
        agent: Agent whose sampler draws.
        table: Table to draw from.
        updates: Number M of updates per call.
        seeds: The Q seeds.
        size: Rows B of a batch.
        gathered: Whether rows are looked up on the host; otherwise the devices do it.

    Returns:
        A batch of the agent's kind, or its index batch, of NumPy arrays
        ``[M, Q, B, ...]``.
    """
    sampler = agent.sampler
    numbers = draw_uniform_numbers(
        table, sampler, seeds=seeds, steps=range(updates), batch_size=size
    )
    index = sampler.draw(table, numbers)
    if not gathered:
        return index
    return sampler.gather(table.observations, table.actions, index)


def make_batch_shapes(
    agent: Agent[Any],
    facts: DataFacts,
    *,
    updates: int,
    seeds: int,
    size: int,
    gathered: bool = True,
) -> Any:
    """Makes the abstract arrays of what ``draw_batches`` returns."""
    # One row is drawn for its shapes: batches of wide agents may exceed this machine's
    # memory.
    table = make_random_table(facts, discount=agent.sampler.discount)
    row = draw_batches(agent, table, updates=1, seeds=(0,), size=1, gathered=gathered)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (updates, seeds, size, *leaf.shape[3:]), leaf.dtype
        ),
        row,
    )
