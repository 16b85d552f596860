"""Tells by the name of a file whether it belongs to a store.

People keep other files beside a store. A file whose name matches no pattern of this
module is a user's, and no command deletes it. The functions are pure: they see names
and never open a file.
"""

import re

# The manifest, and the claim files of the commands that write a store.
_TOP = r"(dataset|shard|append|relabel|collect|merge|upgrade)\.json"
_ARRAY = r"(zarr\.json|c(/\d+)+)"
_FIELD = r"([a-z][a-z0-9_]*|returns/[0-9.e+-]+)"
_FOLDER = r"parts/\d{5,}(-[0-9a-f]{16})?/(labels-[0-9a-f]{16}/)?"
_PART = rf"{_FOLDER}(part\.json|{_FIELD}/{_ARRAY})"
# Patterns stay as narrow as the names that are written. Deleting by folder has cost
# users the photos that they kept in `parts/`.
_STAGED = r"staging/(recipe\.json|(train|val)/\d{6,}\.npz)"
# TensorStore writes to a temporary name in the same folder and renames the file. A
# writer that is killed leaves the temporary file, and its name ends like this.
_TEMPORARY = r"(_[0-9a-f]+)?\.__lock"
_LOCK = rf"({_TEMPORARY})?"
_UNFINISHED = re.compile(_PART + _TEMPORARY)
_FILE_OF_PART = re.compile(_PART + _LOCK)
_FILE_OF_STAGING = re.compile(_STAGED + _LOCK)
_FILE_OF_STORE = re.compile(f"({_TOP}|{_PART}|{_STAGED}){_LOCK}")


def is_part_file(name: str) -> bool:
    """Tells whether a file belongs to a part, by its name relative to the store.

    Example:
        >>> is_part_file("parts/00007/returns/0.99/c/0/0")
        True
        >>> is_part_file("parts/photos/a.jpg"), is_part_file("dataset.json")
        (False, False)
    """
    return _FILE_OF_PART.fullmatch(name) is not None


def is_unfinished_file(name: str) -> bool:
    """Tells whether a file of a part is the temporary file of a killed writer.

    Example:
        >>> is_unfinished_file("parts/00007/part.json_1f.__lock")
        True
        >>> is_unfinished_file("parts/00007/part.json")
        False
    """
    return _UNFINISHED.fullmatch(name) is not None


def is_staged_file(name: str) -> bool:
    """Tells whether a file belongs to a collection, by its name relative to the store.

    Example:
        >>> is_staged_file("staging/train/000003.npz"), is_staged_file("staging/a.npz")
        (True, False)
    """
    return _FILE_OF_STAGING.fullmatch(name) is not None


def is_store_file(name: str) -> bool:
    """Tells whether a file belongs to a store, finished or not, by its relative name.

    Example:
        >>> is_store_file("dataset.json"), is_store_file("notes.txt")
        (True, False)
    """
    return _FILE_OF_STORE.fullmatch(name) is not None
