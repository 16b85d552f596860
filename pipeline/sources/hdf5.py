"""Opening HDF5 files, and refusing early what cannot be read from them.

Every call of h5py stands here. A file may say anything of itself: that its bytes are
those of other files on this machine, or that it holds more rows than any memory. What
a data set declares is held against what the file stores before anything is read.
Knows nothing of what the data sets mean.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files
from pipeline.store.errors import DataFormatError, MissingPackageError
from pipeline.store.files import is_remote

SUFFIXES = (".hdf5", ".h5")
SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The most that deflate, the densest of HDF5's own filters, makes of one byte.
MAX_COMPRESSION = 1032
# A soft link to a soft link to ... is a loop.
MAX_LINKS = 16
_MAX_ITEM_BYTES = 8
# What h5py raises of bytes that HDF5 cannot make sense of, besides OSError.
_DAMAGE = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
)


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Says in one line what h5py could not read.

    Raises:
        DataFormatError: For whatever it raises of damaged bytes.
    """
    try:
        yield
    except _DAMAGE as error:
        raise DataFormatError(
            f"{where}: cannot be read ({error}); the file is damaged, fetch it again"
        ) from error


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
            # By its path where it has one: HDF5 may be called by HDF5 only, and a file
            # of Python's is read by Python.
            there = stream if is_remote(path) else path
            file = h5py.File(there, "r", locking=False)
        except _DAMAGE as error:
            raise DataFormatError(
                f"{path}: expected a whole HDF5 file, got {files.size(path):,} bytes "
                f"that are none ({error}). It was cut short or is of another kind; "
                "compare its size with the original and fetch it again"
            ) from error
        with file:
            yield file


def names(group: Any, where: str) -> list[str]:
    """Names of what is in a group.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    with damage(where):
        # A name that is no text is one of nobody's: it is for people to read.
        return [n if isinstance(n, str) else n.decode(errors="replace") for n in group]


def group(parent: Any, name: str, where: str) -> Any:
    """Finds a group.

    Args:
        parent: An ``h5py`` group.
        name: Of the group in it.
        where: File, for the error.

    Returns:
        The ``h5py`` group.

    Raises:
        DataFormatError: If it is missing or anything else.
    """
    import h5py

    found = follow(parent, name, where)
    if not isinstance(found, h5py.Group):
        raise DataFormatError(
            f"{where}: expected a group {name}, got {_kind(found, where)}; write the "
            "file again"
        )
    return found


def find_dataset(group: Any, name: str, where: str) -> Any:
    """Finds a data set of numbers, one row per step, whether or not they are there.

    Args:
        group: An ``h5py`` group.
        name: Of the data set in it.
        where: File and group, for the error.

    Returns:
        The ``h5py`` data set, not read.

    Raises:
        DataFormatError: If it is missing, or holds anything but rows of numbers.
    """
    import h5py

    found = follow(group, name, where)
    if not isinstance(found, h5py.Dataset):
        raise DataFormatError(
            f"{where}: expected a data set {name}, got {_kind(found, where)}; the file "
            f"holds {', '.join(names(group, where))}"
        )
    with damage(f"{where}: {name}"):
        dtype, shape = found.dtype, found.shape
    if dtype.kind not in "biuf" or dtype.itemsize > _MAX_ITEM_BYTES or not shape:
        raise DataFormatError(
            f"{where}: {name}: expected numbers of at most 64 bits, one row per step, "
            f"got dtype {dtype} and shape {list(shape or ())}; nothing is ever "
            "unpickled here, write it as a plain numeric array"
        )
    if math.prod(shape[1:]) < 1:
        raise DataFormatError(
            f"{where}: {name}: expected at least one number a row, got shape "
            f"{list(shape)}; write the file again"
        )
    return found


def read_names(parent: Any, name: str, where: str) -> list[str]:
    """Reads a data set of names, such as those of the episodes of a split.

    Args:
        parent: An ``h5py`` group.
        name: Of the data set in it.
        where: File, for the error.

    Returns:
        The names, in the file's order.

    Raises:
        DataFormatError: If it is missing, holds anything but names, or is damaged.
    """
    import h5py

    found = follow(parent, name, where)
    with damage(f"{where}: {name}"):
        is_names = (
            isinstance(found, h5py.Dataset)
            and found.ndim == 1
            and h5py.check_string_dtype(found.dtype) is not None
        )
    if not is_names:
        raise DataFormatError(
            f"{where}: expected a data set {name} of names, got {_kind(found, where)}; "
            "write the file again"
        )
    check_stored(found, f"{where}: {name}")
    with damage(f"{where}: {name}"):
        return [each.decode(errors="replace") for each in found[:].tolist()]


def attribute(found: Any, name: str, where: str) -> str | None:
    """Reads the text of an attribute.

    Args:
        found: An ``h5py`` group or data set.
        name: Of the attribute.
        where: File, for the error.

    Returns:
        The text; None if there is no such attribute, or it is no text.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    import h5py

    with damage(f"{where}: {name}"):
        if name not in found.attrs:
            return None
        header = found.attrs.get_id(name)
        # Of one value alone: what an array declares may be larger than any memory.
        if header.shape != () or h5py.check_string_dtype(header.dtype) is None:
            return None
        text = found.attrs[name]
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def read(found: Any, first: int, last: int, where: str) -> npt.NDArray[Any]:
    """Reads rows ``first`` to ``last`` (exclusive) of a data set.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    try:
        rows: npt.NDArray[Any] = np.asarray(found[first:last])
    except _DAMAGE as error:
        raise DataFormatError(
            f"{where}: {found.name}: rows {first} to {last - 1} cannot be read "
            f"({error}); fetch the file again"
        ) from error
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def follow(group: Any, path: str, where: str, links: int = 0) -> Any:
    """Follows a path within the file, and never a link that leaves it.

    Args:
        group: Where it begins.
        path: Names, joined by slashes.
        where: File, for the error.
        links: Soft links that were followed already.

    Returns:
        What is there; None if nothing is.

    Raises:
        DataFormatError: If a link leads out of the file, or round.
    """
    import h5py

    found = group
    for name in path.split("/"):
        if not name:
            continue
        with damage(f"{where}: {path}"):
            is_group = isinstance(found, h5py.Group)
            link = found.get(name, getlink=True) if is_group else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise DataFormatError(
                f"{where}: {path} is a link to {link.filename}, another file, and only "
                "what is in the file itself is read; copy it in, such as with h5copy"
            )
        if isinstance(link, h5py.SoftLink):
            if links == MAX_LINKS:
                raise DataFormatError(
                    f"{where}: {path} is a link to a link to a link, more than "
                    f"{MAX_LINKS} of them; write the file again"
                )
            start = found.file if link.path.startswith("/") else found
            found = follow(start, link.path, where, links + 1)
        else:
            with damage(f"{where}: {path}"):
                found = found[name]
    return found


def _kind(found: Any, where: str) -> str:
    import h5py

    if found is None:
        return "nothing"
    if isinstance(found, h5py.Group):
        return f"a group of {', '.join(names(found, where)) or 'nothing'}"
    return "a data set" if isinstance(found, h5py.Dataset) else "a type"


def check_stored(found: Any, where: str) -> None:
    """Refuses a data set whose values are not all in the file.

    Args:
        found: The ``h5py`` data set.
        where: File and data set, for the error.

    Raises:
        DataFormatError: If they are elsewhere, or are fewer than it says.
    """
    with damage(where):
        external, is_virtual = found.external, found.is_virtual
        stored = found.id.get_storage_size()
        file_bytes = found.file.id.get_filesize()
        filtered = found.id.get_create_plist().get_nfilters() > 0
        grid = found.chunks
        chunks = None if grid is None else found.id.get_num_chunks()
    if external or is_virtual:
        what = "external storage" if external else "a virtual data set"
        raise DataFormatError(
            f"{where} is {what}: its values are in other files, and they are looked "
            "for in the file itself; copy them in, such as with `h5repack -l CONTI`"
        )
    declared = math.prod(found.shape) * found.dtype.itemsize
    most = stored * (MAX_COMPRESSION if filtered else 1)
    expected = None
    if grid is not None:
        expected = math.prod(
            -(-n // each) for n, each in zip(found.shape, grid, strict=True)
        )
    if declared > most or stored > file_bytes or (chunks or 0) < (expected or 0):
        raise DataFormatError(
            f"{where}: expected {declared:,} bytes, as its shape {list(found.shape)} "
            f"says, got {stored:,} stored in a file of {file_bytes:,}"
            + (f" and {chunks:,} of {expected:,} chunks" if expected else "")
            + "; it was never written in full, or is damaged"
        )
