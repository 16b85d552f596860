"""Which rows a batch is made of: pure functions of (table, seed, step).

A counter-based generator keyed by what is trained on and by the seed draws the whole
global batch of a step, so neither workers, prefetching, hosts nor restarts can change
it. Sampling yields row numbers and scalars; ``gather`` turns them into states and is
one function for host and device.

Dimensions: B batch, D uniform numbers a window, M steps, Q seeds.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from trainer.data.table import RowTable

Array = Any  # NumPy on the host, jax.Array on a device.


IndexT = TypeVar("IndexT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Sampler(Protocol[IndexT, BatchT_co]):
    """What an agent trains on: row numbers and scalars, and the batch they stand for.

    Implementations are frozen dataclasses; their ``repr`` holds every setting, because
    it keys the random stream.
    """

    @property
    def numbers(self) -> int:
        """D: uniform numbers that a window is chosen by."""

    @property
    def discount(self) -> float:
        """Discount of rewards, and of the return sums of a table to draw from."""

    @property
    def rows_needed(self) -> int:
        """Rows of an episode that a window can start in."""

    def check(self, lengths: npt.NDArray[np.int64], *, discount: float) -> None:
        """Raises if batches cannot be drawn from data.

        Args:
            lengths: ``i64[E]``, rows of all episodes.
            discount: Of the data's return sums.
        """

    def draw(self, table: RowTable, uniform: npt.NDArray[np.float64]) -> IndexT:
        """Turns numbers in [0, 1) into row numbers and scalars, element by element.

        ``f64[D, ...]`` to a NamedTuple of ``[...]`` each.
        """

    def gather(self, observations: Array, actions: Array, index: IndexT) -> BatchT_co:
        """Looks up the states and actions of a batch, on the host or on a device."""


def step_generator(
    table: RowTable, sampler: Sampler[Any, Any], *, seed: int, step: int
) -> np.random.Generator:
    """The generator of one step of one seed: a pure function of its arguments.

    Args:
        table: What is sampled from; its fingerprint enters the key.
        sampler: How; its configuration enters the key.
        seed: Of the run.
        step: Number of the update, from 0.

    Returns:
        A Philox generator no other step or seed shares numbers with.
    """
    key = _stream_key(table.fingerprint, repr(sampler), seed)
    # The step is the counter's high word: streams are 2**192 draws apart.
    return np.random.Generator(
        np.random.Philox(key=key, counter=np.array([0, 0, 0, step], np.uint64))
    )


def uniform_numbers(
    table: RowTable,
    sampler: Sampler[Any, Any],
    *,
    seeds: Sequence[int],
    steps: range,
    batch_size: int,
) -> npt.NDArray[np.float64]:
    """What the batches of some steps are chosen by.

    Args:
        table: What is sampled from.
        sampler: How; D numbers a window.
        seeds: Q of them.
        steps: M of them.
        batch_size: B.

    Returns:
        ``f64[D, M, Q, B]``; those of one step and seed depend on no other's.
    """
    drawn = np.empty((len(steps), len(seeds), sampler.numbers, batch_size))
    for of_step, step in zip(drawn, steps, strict=True):
        for numbers, seed in zip(of_step, seeds, strict=True):
            step_generator(table, sampler, seed=seed, step=step).random(out=numbers)
    return np.moveaxis(drawn, 2, 0)


@lru_cache(maxsize=1024)
def _stream_key(fingerprint: str, sampler: str, seed: int) -> npt.NDArray[np.uint64]:
    digest = hashlib.sha256(f"{fingerprint}\n{sampler}\n{seed}".encode()).digest()
    return np.frombuffer(digest[:16], np.uint64)


def uniform_integers(
    uniform: npt.NDArray[np.float64], count: npt.NDArray[np.int64] | np.int64
) -> npt.NDArray[np.int64]:
    """Uniform integers in [0, count) from uniform numbers in [0, 1)."""
    return (uniform * count).astype(np.int64)
