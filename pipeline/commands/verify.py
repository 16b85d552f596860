"""``verify``: whether a store is what its manifests say."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pipeline.commands.arguments import Flag, StorePath
from pipeline.inspection import progress, verify
from pipeline.store.reader import Store

DAMAGED = 1


@dataclass(frozen=True)
class Verify:
    """Checks every byte of a store against its manifests.

    Attributes:
        store: Folder of the store.
        deep: Also recompute rewards, masks, return sums and statistics.
    """

    store: StorePath
    deep: Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Prints what is wrong; exit code 1 if anything is."""
        store = Store(self.store)
        parts = store.manifest.parts
        total = sum(part.rows for part in parts)
        checked: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(checked), f"{len(checked)} of {len(parts)} parts"

        with progress.shown(console, "verify", total, measure):
            findings = verify.verify_store(
                store, deep=self.deep, progress=checked.append
            )
        for finding in findings:
            console.print(finding, highlight=False, markup=False, soft_wrap=True)
        if findings:
            console.print(
                f"{self.store}: damaged, {len(findings)} findings; write the store "
                "again from its source, or fetch it again",
                highlight=False,
                soft_wrap=True,
            )
            return DAMAGED
        console.print(
            f"{self.store}: sound; {len(parts)} parts, {total:,} rows, every checksum "
            f"read{', labels and statistics recomputed' if self.deep else ''}",
            highlight=False,
            soft_wrap=True,
        )
        return 0
