"""Whether a store may be written into a folder: nothing of the user's is written over.

Knows names and a few words of small files, and nothing of what a store holds.
"""

from pipeline.store import files, layout
from pipeline.store.errors import DataFormatError

# A folder that holds one of these files is of this project: a store, the claim of one
# that was begun, or a collection. What each of them says, whatever else it may say.
_MARKS = {
    "dataset.json": b'"format_version"',
    "shard.json": b"sha256:",
    "collect.json": b"sha256:",
    "merge.json": b"sha256:",
    "upgrade.json": b"sha256:",
    "staging/recipe.json": b'"val_episodes"',
}


def check_folder(root: str) -> None:
    """Refuses a folder that holds files and is not of this project.

    Beside a store that is there already, other files may lie: they stay.

    Args:
        root: Where a store is to be written; it need not exist.

    Raises:
        DataFormatError: With one of the files that are there.
    """
    for name, words in _MARKS.items():
        data = files.read(root, name).data
        if data is not None and words in data:
            return
    foreign = files.find_foreign(root, layout.is_store_file)
    if foreign is not None:
        raise DataFormatError(
            f"{root}: expected an empty folder, or one with a store, got one that "
            f"holds {foreign} and no store; nothing was written, choose another folder"
        )
