"""Opening HDF5 files, and refusing early what cannot be read from them.

Knows nothing of what the data sets mean.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files
from pipeline.store.errors import DataFormatError, MissingPackageError

SUFFIXES = (".hdf5", ".h5")


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """Opens a file for reading, on disk or gs://.

    Args:
        path: The file.

    Yields:
        An ``h5py.File``.

    Raises:
        MissingPackageError: If h5py is not installed.
        UsageError: If there is no such file.
        DataFormatError: If it is cut short or no HDF5 file.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: reading HDF5 needs h5py ({error}); install it with "
            "`pip install 'vast-rl[pipeline]'`"
        ) from error
    with files.open_file(path) as stream:
        try:
            file = h5py.File(stream, "r")
        except OSError as error:
            raise DataFormatError(
                f"{path}: expected a whole HDF5 file, got {files.size(path):,} bytes "
                f"that are none ({error}). It was cut short or is of another kind; "
                "compare its size with the original and fetch it again"
            ) from error
        with file:
            yield file


def dataset(group: Any, name: str, where: str) -> Any:
    """Finds a data set of numbers, one row per step.

    Args:
        group: An ``h5py`` group.
        name: Path of the data set within it.
        where: File and group, for the error.

    Returns:
        The ``h5py`` data set, not read.

    Raises:
        DataFormatError: If it is missing, or holds anything but numbers.
    """
    import h5py

    found = group.get(name)
    if not isinstance(found, h5py.Dataset):
        kind = "nothing" if found is None else f"a group of {', '.join(found)}"
        raise DataFormatError(
            f"{where}: expected a data set {name}, got {kind}; the file holds "
            f"{', '.join(group)}"
        )
    if found.dtype.kind not in "biuf" or not found.shape:
        raise DataFormatError(
            f"{where}: {name}: expected numbers, one row per step, got dtype "
            f"{found.dtype} and shape {list(found.shape)}; nothing is ever unpickled "
            "here, write it as a plain numeric array"
        )
    return found


def read(found: Any, first: int, last: int, where: str) -> npt.NDArray[Any]:
    """Reads rows ``first`` to ``last`` (exclusive) of a data set.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    try:
        rows: npt.NDArray[Any] = np.asarray(found[first:last])
    except (OSError, RuntimeError) as error:
        raise DataFormatError(
            f"{where}: {found.name}: rows {first} to {last - 1} cannot be read "
            f"({error}); fetch the file again"
        ) from error
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
