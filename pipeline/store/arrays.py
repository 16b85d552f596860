"""Lays out, creates and opens the TensorStore arrays of a part.

Every array is zarr version 3 with the sharding codec. A shard is one file or object,
large enough for the cost of a request to an object store; a chunk within it is the
least that a random read fetches and decompresses. A chunk ends in a checksum of its
bytes, so that TensorStore refuses to read a chunk that has changed.
"""

import math
import os
from typing import Any

import numpy as np
import tensorstore as ts

from pipeline.store import files
from pipeline.store.manifest import FieldSpec

CHUNK_BYTES = 1 << 20
# A writer holds two shards of each field in memory, one filling and one being written:
# 16 chunks of 1 MiB keep that near 32 MiB a field.
CHUNKS_PER_SHARD = 16
MAX_CHUNK_ROWS = 8192
_METADATA = "zarr.json"
# Byte shuffle groups the exponents of neighbouring floats, which compress well
# together. Against raw bytes and zstd (tests/benchmarks) lz4 with shuffle was smaller
# than raw and the fastest to read back.
COMPRESSOR = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"},
}
# TensorStore adds a checksum to the index of a shard by itself, and to chunks only on
# request. The checksum costs 0.25 ns a byte to read: the throughput of `shard` and of
# training batches falls by 3 %, which tests/benchmarks measures.
CHECKSUM = {"name": "crc32c"}
# Codecs of a chunk in the order of writing: the checksum covers the compressed bytes.
# An array's metadata names its own codecs, so that arrays of version 1, without
# checksums, are read by the same code.
CHUNK_CODECS = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    COMPRESSOR,
    CHECKSUM,
)


def chunk_rows(field: FieldSpec) -> int:
    """Computes the rows of one chunk: a power of two of at most 1 MiB and 8192 rows.

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
    """Computes the rows of one shard, which a writer buffers to write it once."""
    return chunk_rows(field) * CHUNKS_PER_SHARD


def array_shape(field: FieldSpec, *, rows: int, tasks: int) -> tuple[int, ...]:
    """Returns the shape of a part's array: ``[rows, tasks]`` or ``[rows, *shape]``."""
    return (rows, tasks) if field.per == "row_and_task" else (rows, *field.shape)


def row_bytes(field: FieldSpec, tasks: int) -> int:
    """Computes the bytes of one row of a part's array before compression."""
    shape = array_shape(field, rows=1, tasks=tasks)
    return np.dtype(field.dtype).itemsize * math.prod(shape)


def create(
    root: str, path: str, field: FieldSpec, *, rows: int, tasks: int
) -> ts.TensorStore:
    """Opens an array for writing; ``finish`` later writes its metadata.

    Opening deletes nothing. Two processes that write the same array at once write the
    same shards, each shard in one atomic step, so that neither can harm the other.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        path: Folder of the array relative to the store, such as
            ``parts/00000/observations``.
        field: Dtype and shape of the array.
        rows: Upper bound on the number of rows.
        tasks: Tasks of the store, the second axis of ``row_and_task`` fields.

    Returns:
        The array, ``[rows, *shape]`` or ``[rows, tasks]``, which can be written to and
        not read.

    Raises:
        OSError: If the disk or the bucket fails.
    """
    spec = {
        "driver": "zarr3",
        "kvstore": files.kvstore_spec(root, path),
        "metadata": _metadata(field, rows=rows, tasks=tasks),
        # By default TensorStore leaves out chunks that equal the fill value, zero. A
        # chunk of zeros could then not be told from a chunk that was lost.
        "store_data_equal_to_fill_value": True,
    }
    # `assume_metadata` opens the array without writing metadata, which needs the number
    # of rows: episodes may still be dropped on the way.
    with files.storage_errors(os.path.join(root, path)):
        return ts.open(spec, open=True, assume_metadata=True).result()


def finish(root: str, path: str, field: FieldSpec, *, rows: int, tasks: int) -> None:
    """Writes the metadata of an array, once all its shards are written.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        path: Folder of the array, as for ``create``.
        field: Dtype and shape, as for ``create``.
        rows: Rows that were written.
        tasks: Tasks of the store, as for ``create``.

    Raises:
        OSError: If the disk or the bucket fails.
    """
    memory = {"driver": "memory"}
    metadata = _metadata(field, rows=rows, tasks=tasks)
    spec = {"driver": "zarr3", "kvstore": memory, "metadata": metadata}
    # The metadata is created in memory and its bytes are copied. Created in place,
    # TensorStore would either refuse to replace a twin's metadata or first delete the
    # twin's shards.
    context = ts.Context()
    ts.open(spec, create=True, context=context).result()
    described = ts.KvStore.open(memory, context=context).result().read(_METADATA)
    files.write(root, f"{path}/{_METADATA}", described.result().value)


def object_names(field: FieldSpec, *, rows: int, tasks: int) -> list[str]:
    """Lists the objects that an array consists of, by name relative to its folder.

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
        root: Local path or ``gs://bucket/path`` of the store.
        path: Folder of the array relative to the store.
        context: TensorStore context, which holds the limits on concurrency and cache
            that several arrays share.

    Returns:
        The open array.

    Raises:
        ValueError: If there is no such array; TensorStore raises it.
    """
    array: ts.TensorStore = begin_opening(root, path, context=context).result()
    return array


def begin_opening(root: str, path: str, *, context: ts.Context | None) -> Any:
    """Begins to open an array, as ``open_array`` does; returns a future of it."""
    spec = {
        "driver": "zarr3",
        "kvstore": files.kvstore_spec(root, path),
        # By default TensorStore reads a lost shard as zeros; it must fail instead.
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, read=True, open=True, context=context)


def has_checksums(array: ts.TensorStore) -> bool:
    """Tells whether the chunks of an array have checksums, as those of version 2 do."""
    codec: Any = array.codec
    (sharding,) = codec.to_json()["codecs"]
    return CHECKSUM in sharding["configuration"]["codecs"]


def _metadata(field: FieldSpec, *, rows: int, tasks: int) -> dict[str, Any]:
    """Builds the zarr metadata of an array."""
    shape = array_shape(field, rows=rows, tasks=tasks)
    # Training reads one task. Chunks of a single column let it read only that column,
    # while shards of all columns keep the number of objects small.
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
