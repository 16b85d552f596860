"""TensorStore arrays of a part: how they are laid out, created and opened.

Every array is zarr version 3 with the sharding codec: a shard is one object, large
enough for object storage, and a chunk is what a random read pays for. A chunk ends in a
checksum of its bytes: one that has changed cannot be read.
"""

import math
import os
from typing import Any

import numpy as np
import tensorstore as ts

from pipeline.store import files
from pipeline.store.manifest import FieldSpec

CHUNK_BYTES = 1 << 20
CHUNKS_PER_SHARD = 16
MAX_CHUNK_ROWS = 8192
_METADATA = "zarr.json"
# Byte shuffle brings the exponents of neighbouring floats together. Measured against
# raw and zstd in tests/benchmarks: smaller than raw, and the fastest to read back.
COMPRESSOR = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"},
}
# The index of a shard has one by itself.
CHECKSUM = {"name": "crc32c"}
# Of a chunk, in the order of writing. Arrays say theirs themselves, so that those of
# version 1 of the format, without a checksum, are read as any other.
CHUNK_CODECS = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    COMPRESSOR,
    CHECKSUM,
)


def chunk_rows(field: FieldSpec) -> int:
    """Rows of one chunk: a power of two near 1 MiB, at most 8192.

    Example:
        >>> chunk_rows(FieldSpec("float32", (28,)))
        8192
        >>> chunk_rows(FieldSpec("uint8", (64, 64, 3)))
        64
    """
    row_bytes = np.dtype(field.dtype).itemsize * max(1, math.prod(field.shape))
    rows = max(1, CHUNK_BYTES // row_bytes)
    return min(MAX_CHUNK_ROWS, 1 << (rows.bit_length() - 1))


def shard_rows(field: FieldSpec) -> int:
    """Rows of one shard: what a writer has to hold to write an object once."""
    return chunk_rows(field) * CHUNKS_PER_SHARD


def array_shape(field: FieldSpec, *, rows: int, tasks: int) -> tuple[int, ...]:
    """Full shape of a part's array."""
    return (rows, tasks) if field.per == "row_and_task" else (rows, *field.shape)


def create(
    root: str, path: str, field: FieldSpec, *, rows: int, tasks: int
) -> ts.TensorStore:
    """Opens an array for writing; it is there once `finish` has said of how many rows.

    Nothing is deleted: of two who write the same array at once, each writes the same
    objects whole, and neither can take away what the other has written.

    Args:
        root: The store.
        path: The array's folder within it, such as ``parts/00000/observations``.
        field: What one row is.
        rows: Most rows that will come.
        tasks: Tasks of the store, the second axis of ``row_and_task`` fields.

    Returns:
        The array, ``[rows, *shape]`` or ``[rows, tasks]``, to be written to alone.
    """
    spec = {
        "driver": "zarr3",
        "kvstore": files.kvstore_spec(root, path),
        "metadata": _metadata(field, rows=rows, tasks=tasks),
        # Zeros are data too: a chunk that was never written must not read as zeros
        # that somebody meant.
        "store_data_equal_to_fill_value": True,
    }
    # How many rows will come is not known before they have.
    with files.storage_errors(os.path.join(root, path)):
        return ts.open(spec, open=True, assume_metadata=True).result()


def finish(root: str, path: str, field: FieldSpec, *, rows: int, tasks: int) -> None:
    """Writes the description of an array whose shards are all written.

    Args:
        root: The store.
        path: As of `create`.
        field: As of `create`.
        rows: Rows that have come.
        tasks: As of `create`.
    """
    memory = {"driver": "memory"}
    metadata = _metadata(field, rows=rows, tasks=tasks)
    spec = {"driver": "zarr3", "kvstore": memory, "metadata": metadata}
    # TensorStore would compare with what is there, or delete it.
    context = ts.Context()
    ts.open(spec, create=True, context=context).result()
    described = ts.KvStore.open(memory, context=context).result().read(_METADATA)
    files.write(root, f"{path}/{_METADATA}", described.result().value)


def object_names(field: FieldSpec, *, rows: int, tasks: int) -> list[str]:
    """Names of the objects that an array consists of, within its folder.

    Example:
        >>> object_names(FieldSpec("float32", (28,)), rows=200_000, tasks=0)
        ['zarr.json', 'c/0/0', 'c/1/0']
    """
    trailing = "/0" * (len(array_shape(field, rows=rows, tasks=tasks)) - 1)
    shards = -(-rows // shard_rows(field))
    return [_METADATA, *(f"c/{shard}{trailing}" for shard in range(shards))]


def open_array(
    root: str, path: str, *, context: ts.Context | None = None
) -> ts.TensorStore:
    """Opens an array for reading.

    Args:
        root: The store.
        path: The array's folder within it.
        context: Shared limits on concurrency and cache, one for many arrays.

    Returns:
        The open array.

    Raises:
        ValueError: If there is no such array (TensorStore's own error).
    """
    spec = {
        "driver": "zarr3",
        "kvstore": files.kvstore_spec(root, path),
        # A lost object must fail to read, not read as zeros.
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, read=True, open=True, context=context).result()


def has_checksums(array: ts.TensorStore) -> bool:
    """Tells whether the chunks of an array of a store have checksums."""
    codec: Any = array.codec
    (sharding,) = codec.to_json()["codecs"]
    return CHECKSUM in sharding["configuration"]["codecs"]


def _metadata(field: FieldSpec, *, rows: int, tasks: int) -> dict[str, Any]:
    shape = array_shape(field, rows=rows, tasks=tasks)
    # One task of many is one column to read, yet a shard holds them all.
    trailing = (1,) if field.per == "row_and_task" else shape[1:]
    chunk = (chunk_rows(field), *trailing)
    shard = (shard_rows(field), *shape[1:])
    return {
        "shape": shape,
        "data_type": field.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": chunk,
                    "codecs": CHUNK_CODECS,
                },
            }
        ],
    }
