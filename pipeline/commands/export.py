"""``export``: a store back as OGBench's npz."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pipeline.commands import execution
from pipeline.commands.arguments import StorePath


@dataclass(frozen=True)
class Export:
    """Writes a store back as OGBench's npz.

    Attributes:
        store: Folder of the store.
        npz: File for the training split, ending in .npz; the validation split goes
            beside it as ...-val.npz.
    """

    store: StorePath
    npz: str

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Writes the files."""
        execution.export_store(console, self.store, self.npz)
        return 0
