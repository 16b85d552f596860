"""``inspect``, ``verify`` and ``export``: what a store holds, and getting it out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pipeline import plots, progress, summary, verify
from pipeline.commands import writing
from pipeline.commands.arguments import Flag, StorePath, usage_errors
from pipeline.store.reader import Store

DAMAGED = 1


@dataclass(frozen=True)
class Inspect:
    """Shows what a store holds.

    Attributes:
        store: Folder of the store.
        json: Print one JSON object instead of tables.
        plot: Draw the return and reward histograms of every task to this PNG file.
    """

    store: StorePath
    json: Flag = False
    plot: str | None = None

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Prints tables or JSON."""
        store = Store(self.store)
        if self.plot is not None:
            with usage_errors():
                plots.plot_labels(store, self.plot)
        if self.json:
            text = json.dumps(summary.store_facts(store), indent=1)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            summary.print_store(console, store)
            if self.plot is not None:
                console.print(f"{self.plot}: written", highlight=False, soft_wrap=True)
        return 0


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
        writing.export_store(console, self.store, self.npz)
        return 0
