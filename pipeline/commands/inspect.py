"""``inspect``: what a store holds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pipeline.commands.arguments import Flag, StorePath
from pipeline.inspection import histograms, tables
from pipeline.store.reader import Store


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
            histograms.plot_labels(store, self.plot)
        if self.json:
            text = json.dumps(tables.store_facts(store), indent=1)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            tables.print_store(console, store)
            if self.plot is not None:
                console.print(f"{self.plot}: written", highlight=False, soft_wrap=True)
        return 0
