"""Which files may lie in the folder of a store, by the shape of their names.

A store is written where people also keep other things. What is not of these shapes is
not ours, and is never deleted. Pure: knows names and nothing of disks.
"""

import re

# The manifest, and the claims of those who write.
_TOP = r"(dataset|shard|append|relabel|collect|merge|upgrade)\.json"
_ARRAY = r"(zarr\.json|c(/\d+)+)"
_FIELD = r"([a-z][a-z0-9_]*|returns/[0-9.e+-]+)"
_FOLDER = r"parts/\d{5,}(-[0-9a-f]{16})?/(labels-[0-9a-f]{16}/)?"
_PART = rf"{_FOLDER}(part\.json|{_FIELD}/{_ARRAY})"
_STAGED = r"staging/(recipe\.json|(train|val)/\d{6,}\.npz)"
# TensorStore writes a file beside its place and renames it; a killed one stays.
_TEMPORARY = r"(_[0-9a-f]+)?\.__lock"
_LOCK = rf"({_TEMPORARY})?"
_UNFINISHED = re.compile(_PART + _TEMPORARY)
_FILE_OF_PART = re.compile(_PART + _LOCK)
_FILE_OF_STAGING = re.compile(_STAGED + _LOCK)
_FILE_OF_STORE = re.compile(f"({_TOP}|{_PART}|{_STAGED}){_LOCK}")


def is_part_file(name: str) -> bool:
    """Tells whether a file is of a part, by its name within the store.

    Example:
        >>> is_part_file("parts/00007/returns/0.99/c/0/0")
        True
        >>> is_part_file("parts/photos/a.jpg"), is_part_file("dataset.json")
        (False, False)
    """
    return _FILE_OF_PART.fullmatch(name) is not None


def is_unfinished_file(name: str) -> bool:
    """Tells whether a file is what a killed writer left of one of a part.

    Example:
        >>> is_unfinished_file("parts/00007/part.json_1f.__lock")
        True
        >>> is_unfinished_file("parts/00007/part.json")
        False
    """
    return _UNFINISHED.fullmatch(name) is not None


def is_staged_file(name: str) -> bool:
    """Tells whether a file is of a collection, by its name within the store.

    Example:
        >>> is_staged_file("staging/train/000003.npz"), is_staged_file("staging/a.npz")
        (True, False)
    """
    return _FILE_OF_STAGING.fullmatch(name) is not None


def is_store_file(name: str) -> bool:
    """Tells whether a file is of a store, finished or begun, by its name within it.

    Example:
        >>> is_store_file("dataset.json"), is_store_file("notes.txt")
        (True, False)
    """
    return _FILE_OF_STORE.fullmatch(name) is not None
