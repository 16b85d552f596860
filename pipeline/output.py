"""Prints results to standard output and progress to standard error.

The three programs print through these functions only. Texts contain a user's paths and
names, so markup is switched off: rich would swallow ``[v]`` in a path, and raise an
error for ``[/a]``.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text


@dataclass(frozen=True)
class Output:
    """The two consoles of a command.

    Attributes:
        results: Console for results, which a user may pipe on; standard output.
        progress: Console for progress, warnings and errors; standard error.
    """

    results: Console
    progress: Console

    @classmethod
    def standard(cls) -> "Output":
        """Opens the consoles of this process."""
        return cls(
            Console(highlight=False, markup=False, emoji=False),
            Console(
                stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True
            ),
        )

    @classmethod
    def silent(cls) -> "Output":
        """Makes consoles that print nothing, for tests and all processes but one."""
        return cls(Console(quiet=True), Console(quiet=True))


def say(console: Console, text: str, *, style: str | None = None) -> None:
    """Prints a line unchanged, without markup and without wrapping."""
    console.print(
        text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def show(console: Console, renderable: RenderableType) -> None:
    """Prints a table or a group of tables; `say` prints text."""
    console.print(renderable)


@contextlib.contextmanager
def working(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Shows a status line on a terminal while a block runs.

    Args:
        console: Console to show the line on.
        text: First text of the line.

    Yields:
        A function that replaces the text.
    """
    with console.status(Text(text)) as status:
        yield lambda text: status.update(Text(text))
