"""``inputs``: lists the kinds of data that shard and append read."""

from dataclasses import dataclass

from pipeline.output import Output


@dataclass(frozen=True)
class Inputs:
    """Lists the kinds of data that shard and append read, with their layouts."""

    def execute(self, output: Output) -> int:
        """Prints a table."""
        from pipeline.inspection import tables
        from pipeline.sources import kinds

        tables.print_kinds(output.results, kinds.list_kinds())
        return 0
