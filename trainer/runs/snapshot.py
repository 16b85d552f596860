"""A copy of arrays that a save may read while training goes on."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")
# A CPU device takes memory so aligned as it is, without copying it once more.
_ALIGNMENT = 64


class Snapshot:
    """Memory that the arrays of CPU devices are copied to, again and again.

    A save reads those arrays where they lie, and memory that somebody reads cannot be
    donated: the next call would have to get memory for the whole state, page by page,
    beside the save that holds it up. So the save gets a copy. Its memory is kept, as
    getting it may take many times as long as filling it.

    Arrays of accelerators are left as they are: their values are copied to the host
    before a save returns.

    Args:
        like: The arrays that will be copied; their memory is got at once.
    """

    def __init__(self, like: Any) -> None:
        parts = _parts(jax.tree.leaves(like))
        self._memory: list[np.ndarray] = []
        if all(part.device.platform == "cpu" for part in parts):
            with ThreadPoolExecutor() as pool:
                self._memory = list(pool.map(_memory_like, parts))

    def take(self, tree: Tree) -> Tree:
        """Copies arrays over those taken before, which nobody may read any more.

        Args:
            tree: Of the shapes and shardings of ``like``.

        Returns:
            The same tree, laid out as it was.
        """
        if not self._memory:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        with ThreadPoolExecutor() as pool:
            copied = pool.map(_copy, _parts(leaves), self._memory)
            taken: Tree = jax.tree.unflatten(
                structure,
                [
                    jax.make_array_from_single_device_arrays(
                        leaf.shape,
                        leaf.sharding,
                        [next(copied) for _ in leaf.addressable_shards],
                    )
                    for leaf in leaves
                ],
            )
        return taken


def _parts(leaves: list[jax.Array]) -> list[jax.Shard]:
    return [part for leaf in leaves for part in leaf.addressable_shards]


def _memory_like(part: jax.Shard) -> np.ndarray:
    """Memory of a part's shape and dtype, every page of it there already."""
    data = part.data
    memory = np.empty(data.nbytes + _ALIGNMENT, np.uint8)
    memory.fill(0)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)


def _copy(part: jax.Shard, memory: np.ndarray) -> jax.Array:
    np.copyto(memory, np.asarray(part.data))
    return jax.device_put(memory, part.device, may_alias=True)
