"""``export``: writes a store as OGBench's npz."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.commands.arguments import StorePath
from pipeline.output import Output


@dataclass(frozen=True)
class Export:
    """Writes a store as OGBench's npz.

    Attributes:
        store: Folder of the store.
        npz: File for the training split, ending in .npz. The validation split is
            written beside it, to a file ending in -val.npz.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("npz",)

    store: StorePath
    npz: str

    def execute(self, output: Output) -> int:
        """Writes the files."""
        from pipeline.commands import execution

        execution.export_store(output, self.store, self.npz)
        return 0
