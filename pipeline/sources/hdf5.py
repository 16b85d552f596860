"""Opens HDF5 files and reads their data sets safely.

A file may come from a stranger and declare anything: that its values lie in other files
of this machine, or that it holds more rows than any memory. So every declaration is
compared with the bytes that the file stores before anything is read. This module knows
nothing of what the data sets mean.
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
# Deflate, the densest of HDF5's own filters, inflates one byte to at most 1032.
MAX_COMPRESSION = 1032
# More soft links in a row than this are taken for a loop.
MAX_LINKS = 16
_MAX_ITEM_BYTES = 8
# Exceptions that h5py raises for damaged bytes, as fuzzed files showed.
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
def explain_damage(where: str) -> Iterator[None]:
    """Turns h5py's exceptions into one line with advice.

    Args:
        where: File and data set that the block reads, for the error.

    Raises:
        DataFormatError: If the block raised an exception that damaged bytes cause.
    """
    try:
        yield
    except _DAMAGE as error:
        raise DataFormatError(
            f"{where}: cannot be read ({error}); the file is damaged, fetch it again"
        ) from error


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Any]:
    """Opens a file for reading, on disk or gs://.

    Args:
        path: The file.

    Yields:
        An ``h5py.File``.

    Raises:
        MissingPackageError: If h5py is not installed.
        UsageError: If there is no such file.
        DataFormatError: If the file is cut short or not HDF5.
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
            # A local file is opened by its path, so that the HDF5 library reads it.
            # Through a Python stream HDF5 calls back into Python for every read, and
            # virtual data sets read that way have ended the process.
            target = stream if is_remote(path) else path
            file = h5py.File(target, "r", locking=False)
        except _DAMAGE as error:
            raise DataFormatError(
                f"{path}: expected a whole HDF5 file, got {files.size(path):,} bytes "
                f"that are none ({error}). It was cut short or is of another kind; "
                "compare its size with the original and fetch it again"
            ) from error
        with file:
            yield file


def list_names(group: Any, where: str) -> list[str]:
    """Lists the names of groups and data sets in a group.

    Args:
        group: An ``h5py`` group.
        where: Path of the file, for the error.

    Returns:
        The names, in the file's order.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    with explain_damage(where):
        # h5py returns bytes for a name that is no valid UTF-8. No layout has such
        # names, so they only have to be printable.
        return [n if isinstance(n, str) else n.decode(errors="replace") for n in group]


def find_group(parent: Any, name: str, where: str) -> Any:
    """Finds a group.

    Args:
        parent: An ``h5py`` group.
        name: Name of a group in it.
        where: Path of the file, for the error.

    Returns:
        The ``h5py`` group.

    Raises:
        DataFormatError: If the group is missing, or the name is a data set's.
    """
    import h5py

    node = follow(parent, name, where)
    if not isinstance(node, h5py.Group):
        raise DataFormatError(
            f"{where}: expected a group {name}, got {_describe(node, where)}; write "
            "the file again"
        )
    return node


def find_dataset(group: Any, name: str, where: str) -> Any:
    """Finds a data set of numbers, one row per step; its values are not yet checked.

    Args:
        group: An ``h5py`` group.
        name: Name of a data set in it.
        where: File and group, for the error.

    Returns:
        The ``h5py`` data set, not read. ``check_stored`` tells whether its values are
        in the file.

    Raises:
        DataFormatError: If the data set is missing, or does not hold rows of numbers.
    """
    import h5py

    node = follow(group, name, where)
    if not isinstance(node, h5py.Dataset):
        raise DataFormatError(
            f"{where}: expected a data set {name}, got {_describe(node, where)} (the "
            f"file holds {', '.join(list_names(group, where))}); add the data set, or "
            "name another kind with --source"
        )
    with explain_damage(f"{where}: {name}"):
        dtype, shape = node.dtype, node.shape
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
    return node


def read_names(parent: Any, name: str, where: str) -> list[str]:
    """Reads a data set of names, such as those of the episodes of a split.

    Args:
        parent: An ``h5py`` group.
        name: Name of the data set in it.
        where: Path of the file, for the error.

    Returns:
        The names, in the file's order.

    Raises:
        DataFormatError: If the data set is missing, damaged or holds no names.
    """
    import h5py

    node = follow(parent, name, where)
    with explain_damage(f"{where}: {name}"):
        is_names = (
            isinstance(node, h5py.Dataset)
            and node.ndim == 1
            and h5py.check_string_dtype(node.dtype) is not None
        )
    if not is_names:
        raise DataFormatError(
            f"{where}: expected a data set {name} of names, got "
            f"{_describe(node, where)}; write the file again"
        )
    check_stored(node, f"{where}: {name}")
    with explain_damage(f"{where}: {name}"):
        return [text.decode(errors="replace") for text in node[:].tolist()]


def read_attribute(node: Any, name: str, where: str) -> str | None:
    """Reads the text of an attribute.

    Args:
        node: An ``h5py`` group or data set.
        name: Name of the attribute.
        where: Path of the file, for the error.

    Returns:
        The text; None if there is no such attribute, or it holds no text.

    Raises:
        DataFormatError: If bytes are damaged.
    """
    import h5py

    with explain_damage(f"{where}: {name}"):
        if name not in node.attrs:
            return None
        header = node.attrs.get_id(name)
        # Attributes are not covered by `check_stored`: a damaged or hostile array may
        # declare more elements than any memory. A single string cannot.
        if header.shape != () or h5py.check_string_dtype(header.dtype) is None:
            return None
        text = node.attrs[name]
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def read(dataset: Any, first: int, last: int, where: str) -> npt.NDArray[Any]:
    """Reads consecutive rows of a data set.

    Args:
        dataset: A data set that was checked.
        first: First row.
        last: End of the rows, exclusive.
        where: Path of the file, for the error.

    Returns:
        ``[last - first, ...]``, in native byte order.

    Raises:
        DataFormatError: If bytes are damaged, or compressed in a way that is not
            installed here.
    """
    try:
        rows: npt.NDArray[Any] = np.asarray(dataset[first:last])
    except _DAMAGE as error:
        if missing := _list_missing_filters(dataset):
            raise DataFormatError(
                f"{where}: {dataset.name}: expected values that HDF5 itself can "
                f"inflate, got filter {', '.join(missing)}, which is not installed "
                "here; write the file with gzip, such as with `h5repack -f GZIP=4`, or "
                "set HDF5_PLUGIN_PATH to the folder of that filter"
            ) from error
        raise DataFormatError(
            f"{where}: {dataset.name}: rows {first} to {last - 1} cannot be read "
            f"({error}); fetch the file again"
        ) from error
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _list_missing_filters(dataset: Any) -> list[str]:
    """Lists number and name of the filters of a data set that are not installed."""
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        return []
    try:
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    except _DAMAGE:
        return []  # The damage that is being reported goes further.
    return [
        f"{code} {name.decode(errors='replace')}".strip()
        for code, _, _, name in filters
        if not h5py.h5z.filter_avail(code)
    ]


def follow(group: Any, path: str, where: str, links: int = 0) -> Any:
    """Follows a path within the file, refusing links that leave the file.

    h5py by itself would follow an external link into any file of this machine.

    Args:
        group: Group that the path starts in.
        path: Names joined by slashes.
        where: Path of the file, for the error.
        links: Soft links that were followed already.

    Returns:
        The group, data set or type at the path; None if nothing is there.

    Raises:
        DataFormatError: If a link leads out of the file, or in a circle.
    """
    import h5py

    node = group
    for name in path.split("/"):
        if not name:
            continue
        with explain_damage(f"{where}: {path}"):
            is_group = isinstance(node, h5py.Group)
            link = node.get(name, getlink=True) if is_group else None
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
            start = node.file if link.path.startswith("/") else node
            node = follow(start, link.path, where, links + 1)
        else:
            with explain_damage(f"{where}: {path}"):
                node = node[name]
    return node


def _describe(node: Any, where: str) -> str:
    """Describes what is at a path, for errors."""
    import h5py

    if node is None:
        return "nothing"
    if isinstance(node, h5py.Group):
        return f"a group of {', '.join(list_names(node, where)) or 'nothing'}"
    return "a data set" if isinstance(node, h5py.Dataset) else "a type"


def check_stored(dataset: Any, where: str) -> None:
    """Refuses a data set whose values are not all in the file.

    Args:
        dataset: The ``h5py`` data set.
        where: File and data set, for the error.

    Raises:
        DataFormatError: If values lie in other files, or the file stores fewer values
            than the data set declares.
    """
    with explain_damage(where):
        external, is_virtual = dataset.external, dataset.is_virtual
        stored = dataset.id.get_storage_size()
        file_bytes = dataset.file.id.get_filesize()
        filtered = dataset.id.get_create_plist().get_nfilters() > 0
        grid = dataset.chunks
        chunks = None if grid is None else dataset.id.get_num_chunks()
    if external or is_virtual:
        what = "external storage" if external else "a virtual data set"
        raise DataFormatError(
            f"{where} is {what}: its values are in other files, and they are looked "
            "for in the file itself; copy them in, such as with `h5repack -l CONTI`"
        )
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    most = stored * (MAX_COMPRESSION if filtered else 1)
    # HDF5 reads a chunk that is missing as zeros, so the chunks are counted too.
    expected = None
    if grid is not None:
        expected = math.prod(
            -(-n // width) for n, width in zip(dataset.shape, grid, strict=True)
        )
    if declared > most or stored > file_bytes or (chunks or 0) < (expected or 0):
        raise DataFormatError(
            f"{where}: expected {declared:,} bytes, as its shape {list(dataset.shape)} "
            f"says, got {stored:,} stored in a file of {file_bytes:,}"
            + (f" and {chunks:,} of {expected:,} chunks" if expected else "")
            + "; it was never written in full, or is damaged: fetch or write it again"
        )
