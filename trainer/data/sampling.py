"""The choice of a batch's rows, as a pure function of (table, sampler, seed, step).

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
    """Chooses the windows that an agent trains on, and looks up their rows.

    Implementations are frozen dataclasses; their ``repr`` holds every setting, because
    it keys the random stream. Renaming a class or a field therefore changes every
    batch that is drawn.
    """

    @property
    def numbers(self) -> int:
        """Uniform numbers D that one window is chosen by."""

    @property
    def discount(self) -> float:
        """Discount of rewards; the table's return sums must have the same."""

    @property
    def rows_needed(self) -> int:
        """Rows that an episode must have for a window to start in it."""

    def check(self, lengths: npt.NDArray[np.int64], *, discount: float) -> None:
        """Refuses data that no batch can be drawn from.

        Args:
            lengths: ``i64[E]``, rows of each episode.
            discount: Discount of the data's return sums.

        Raises:
            DataFormatError: If every episode is too short.
        """

    def draw(self, table: RowTable, uniform: npt.NDArray[np.float64]) -> IndexT:
        """Turns uniform numbers into row numbers and scalars, element by element.

        Args:
            table: Rows of one task.
            uniform: ``f64[D, ...]`` in [0, 1).

        Returns:
            A NamedTuple of arrays ``[...]``.
        """

    def gather(self, observations: Array, actions: Array, index: IndexT) -> BatchT_co:
        """Looks up the states and actions of a batch, on the host or on a device."""


def make_step_generator(
    table: RowTable, sampler: Sampler[Any, Any], *, seed: int, step: int
) -> np.random.Generator:
    """Makes the random generator of one step of one seed, a pure function.

    Args:
        table: Rows to sample from; the table's fingerprint enters the key.
        sampler: Sampler of the windows; its ``repr`` enters the key.
        seed: Training seed.
        step: Number of the update, from 0.

    Returns:
        A Philox generator whose numbers no other step or seed draws.
    """
    key = _stream_key(table.fingerprint, repr(sampler), seed)
    # Philox is counter-based: any step's numbers are reached without drawing those
    # before, which is what makes a restart exact. The step is the counter's highest
    # word, so streams are 2**192 draws apart and cannot overlap.
    return np.random.Generator(
        np.random.Philox(key=key, counter=np.array([0, 0, 0, step], np.uint64))
    )


def draw_uniform_numbers(
    table: RowTable,
    sampler: Sampler[Any, Any],
    *,
    seeds: Sequence[int],
    steps: range,
    batch_size: int,
) -> npt.NDArray[np.float64]:
    """Draws the uniform numbers that choose the windows of some steps.

    Args:
        table: Rows to sample from.
        sampler: Sampler of the windows, which takes D numbers for each.
        seeds: Training seeds, Q of them.
        steps: Numbers of the updates, M of them.
        batch_size: Windows B of each seed at a step.

    Returns:
        ``f64[D, M, Q, B]``; the numbers of one step and seed depend on no other's.
    """
    # One array for all steps: samplers then work on it at once, and NumPy's cost of a
    # call is paid once for thousands of windows.
    drawn = np.empty((len(steps), len(seeds), sampler.numbers, batch_size))
    for drawn_at_step, step in zip(drawn, steps, strict=True):
        for numbers, seed in zip(drawn_at_step, seeds, strict=True):
            make_step_generator(table, sampler, seed=seed, step=step).random(
                out=numbers
            )
    return np.moveaxis(drawn, 2, 0)


@lru_cache(maxsize=1024)
def _stream_key(fingerprint: str, sampler: str, seed: int) -> npt.NDArray[np.uint64]:
    # Hashed, since Philox takes 128 bits: similar inputs get unrelated streams.
    digest = hashlib.sha256(f"{fingerprint}\n{sampler}\n{seed}".encode()).digest()
    return np.frombuffer(digest[:16], np.uint64)


def scale_to_integers(
    uniform: npt.NDArray[np.float64], count: npt.NDArray[np.int64] | np.int64
) -> npt.NDArray[np.int64]:
    """Turns uniform numbers in [0, 1) into uniform integers in [0, count).

    Args:
        uniform: ``f64[...]``.
        count: ``i64[...]`` or a scalar, at least 1.

    Returns:
        ``i64[...]``.
    """
    # Scaled, not drawn by `Generator.integers`: that rejects some draws, and the
    # numbers taken by one window would depend on the windows before it.
    return (uniform * count).astype(np.int64)
