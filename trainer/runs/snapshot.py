"""A copy of a state's arrays, which a save reads while training goes on."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")
# A CPU device uses memory of this alignment as it is; other memory would be copied.
_ALIGNMENT = 64


class Snapshot:
    """Memory that the arrays of CPU devices are copied to before each save.

    Arrays of accelerators are left as they are: Orbax copies their values to the host
    before a save returns.

    Args:
        like: Arrays of the shapes and shardings that will be copied; memory for them is
            allocated at once.
    """

    # On a CPU, a save reads arrays where they lie, and memory that is being read cannot
    # be donated: the next call would allocate memory for the whole state while the save
    # runs. The loop waited 10 s for a state of 3.8 GiB before there was a copy, and
    # waits 1.2 s now (tests/benchmarks/README.md). The copy's memory is kept from save
    # to save: getting it from the system takes many times as long as filling it.

    def __init__(self, like: Any) -> None:
        parts = _parts(jax.tree.leaves(like))
        self._memory: list[np.ndarray] = []
        if all(part.device.platform == "cpu" for part in parts):
            with ThreadPoolExecutor() as pool:
                self._memory = list(pool.map(_memory_like, parts))

    def take(self, tree: Tree) -> Tree:
        """Copies arrays over the previous copy, which must not be in use any more.

        Args:
            tree: Tree of the shapes and shardings of ``like``.

        Returns:
            The copy, with the same shardings; ``tree`` itself on accelerators.
        """
        if not self._memory:
            return tree
        # Copying releases the GIL, so that threads fill memory in parallel.
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
    """Allocates aligned memory of a part's shape and dtype."""
    data = part.data
    memory = np.empty(data.nbytes + _ALIGNMENT, np.uint8)
    # The system hands out pages only when they are first written.
    memory.fill(0)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)


def _copy(part: jax.Shard, memory: np.ndarray) -> jax.Array:
    np.copyto(memory, np.asarray(part.data))
    return jax.device_put(memory, part.device, may_alias=True)
