"""``export``: writes a store as OGBench's npz."""

import os
from dataclasses import dataclass
from typing import ClassVar

from pipeline.commands.arguments import StorePath
from pipeline.output import Output


@dataclass(frozen=True)
class Export:
    """Writes a store as OGBench's npz.

    Attributes:
        store: Folder of the store.
        npz: New file for the training split, ending in .npz. The validation split is
            written beside it, to a file ending in -val.npz.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("npz",)

    store: StorePath
    npz: str

    def execute(self, output: Output) -> int:
        """Writes the files."""
        from pipeline.commands import execution
        from pipeline.sources.files import val_path
        from pipeline.store.errors import UsageError

        # Also a validation split that would be taken for that of this export.
        for path in (self.npz, val_path(self.npz)):
            if os.path.exists(path):
                raise UsageError(
                    f"--npz: expected a new file, but {path} exists; give another "
                    "name, or remove it"
                )
        execution.export_store(output, self.store, self.npz)
        return 0
