"""``inspect``: shows what a store holds."""

import json
from dataclasses import dataclass
from typing import ClassVar

from pipeline.commands.arguments import Flag, StorePath
from pipeline.output import Output, say, working


@dataclass(frozen=True)
class Inspect:
    """Shows what a store holds.

    Attributes:
        store: Folder of the store.
        json: Print one JSON object instead of tables.
        plot: PNG file for a picture of the lengths of episodes, positions in a maze,
            ranges of components, and returns and rewards of every task.
        html: HTML file for a page to browse the store: a table of episodes, pictures,
            and frames of an episode if they can be drawn. Of a large store the page
            shows a sample, and names it.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("plot", "html")

    store: StorePath
    json: Flag = False
    plot: str | None = None
    html: str | None = None

    def execute(self, output: Output) -> int:
        """Prints tables or JSON."""
        from pipeline.inspection import tables
        from pipeline.store.reader import Store

        store = Store(self.store)
        if self.plot is not None:
            from pipeline.inspection import plots

            plots.plot_store(store, self.plot)
        if self.html is not None:
            from pipeline.inspection import store_page

            with working(output.progress, "looking at episodes"):
                store_page.write_page(store, self.html)
        if self.json:
            say(output.results, json.dumps(tables.store_facts(store), indent=1))
        else:
            tables.print_store(output.results, store)
            for path in filter(None, (self.plot, self.html)):
                say(output.results, f"{path}: written")
        return 0
