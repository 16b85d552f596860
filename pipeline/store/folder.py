"""Decides whether a store may be written into a folder without harm to a user's files.

This module knows file names and a few words of small files, and no field of a manifest.
"""

from pathlib import Path

from pipeline.store import files, layout
from pipeline.store.errors import DataFormatError

# A folder with one of these files belongs to this project: it holds a store, a claim on
# a store that was begun, or a collection. A file counts only if it contains the words
# beside its name, because other programs also write files called `dataset.json`.
_MARKS = {
    "dataset.json": b'"format_version"',
    "shard.json": b"sha256:",
    "collect.json": b"sha256:",
    "merge.json": b"sha256:",
    "upgrade.json": b"sha256:",
    "staging/recipe.json": b'"val_episodes"',
}


def check_folder(root: str) -> None:
    """Refuses a folder that holds foreign files and no store, and a file.

    A folder that already holds a store may hold other files as well; no command deletes
    them.

    Args:
        root: Folder to write a store into; it need not exist.

    Raises:
        DataFormatError: If there are foreign files, or the path leads to or through a
            file; the message names it.
    """
    if not files.is_remote(root):
        path = Path(root).absolute()
        existing = next(part for part in (path, *path.parents) if part.exists())
        if not existing.is_dir():
            raise DataFormatError(
                f"{root}: expected a folder for the store, but {existing} is a file; "
                "choose another folder"
            )
    for name, words in _MARKS.items():
        data = files.read(root, name).data
        if data is not None and words in data:
            return
    foreign = files.find_foreign(root, layout.is_store_file)
    if foreign is not None:
        raise DataFormatError(
            f"{root}: expected an empty folder or a folder with a store, got a folder "
            f"that holds {foreign} and no store; nothing was written, choose another "
            "folder"
        )
