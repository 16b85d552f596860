"""Blocks of whole episodes, which bound the memory of whatever reads rows."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.store import arrays
from pipeline.store.manifest import FieldSpec

# A worker holds one block of whole episodes in memory at a time, of about so many rows
# or bytes, whichever is less. Rows of images are large, so rows alone do not bound it.
BLOCK_ROWS = 32_768
BLOCK_BYTES = 16 << 20


def cut_blocks(
    episodes: EpisodeRange, fields: Mapping[str, FieldSpec]
) -> list[EpisodeRange]:
    """Cuts episodes into blocks of whole episodes, of bounded rows and bytes."""
    row_bytes = sum(arrays.row_bytes(field, 0) for field in fields.values())
    return cut(episodes, max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes)))


def cut_part(
    lengths: npt.NDArray[np.int64], fields: Mapping[str, FieldSpec]
) -> list[EpisodeRange]:
    """Cuts the episodes of a part of a store into blocks.

    Args:
        lengths: ``i64[E]``, rows of each episode.
        fields: Fields of which rows are read.

    Returns:
        The blocks, in order; rows are counted within the part.
    """
    return cut_blocks(EpisodeRange(0, 0, tuple(lengths.tolist())), fields)
