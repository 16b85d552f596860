"""Generates tables from the code, for pages that hold a table's name in braces."""

import re
from collections.abc import Callable, Iterable

from pipeline import front_door
from pipeline.sources import kinds


def make_kinds() -> str:
    """Writes the table of the kinds of inputs."""
    rows = ((f"`{name}`", files, layout) for name, files, layout in kinds.list_kinds())
    return make_table(("`--source`", "INPUT", "what is read of it"), rows)


def make_exit_codes() -> str:
    """Writes the table of exit codes from the docstring of the front door.

    Raises:
        ValueError: If the docstring has no table.
    """
    listed = re.split(r"^=+ +=+\n", front_door.__doc__ or "", flags=re.MULTILINE)
    if len(listed) != 3:
        raise ValueError(f"expected a table in front_door's docstring, got {listed}")
    # An indented line continues the row above it.
    lines = re.sub(r"\n {3,}", " ", listed[1]).splitlines()
    rows = (re.split(r" +", line.replace("``", "`"), maxsplit=1) for line in lines)
    return make_table(("code", "meaning"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "kinds of inputs": make_kinds,
    "exit codes": make_exit_codes,
}


def fill(text: str) -> str:
    """Replaces the names of tables in a page by the tables.

    Raises:
        KeyError: If no table has that name.
    """
    return re.sub(
        r"^\{\{ (.+) \}\}$", lambda name: TABLES[name[1]](), text, flags=re.MULTILINE
    )


def make_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Writes a Markdown table; a bar within a cell is escaped."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([shown[0], "|---" * len(lines[0]) + "|", *shown[1:]])
