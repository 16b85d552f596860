"""Where the three programs write: results to one place, progress to another.

Everything printed passes here. Paths, names and messages are a user's, and what looks
like markup in them is none.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text


@dataclass(frozen=True)
class Output:
    """Standard output and standard error of a command.

    Attributes:
        results: For what was asked for, which may be piped on.
        progress: For how it goes, warnings and errors.
    """

    results: Console
    progress: Console

    @classmethod
    def standard(cls) -> "Output":
        """Those of this process."""
        return cls(
            Console(highlight=False, markup=False, emoji=False),
            Console(
                stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True
            ),
        )

    @classmethod
    def silent(cls) -> "Output":
        """Writes nothing: for all but one of several processes, and for tests."""
        return cls(Console(quiet=True), Console(quiet=True))


def say(console: Console, text: str, *, style: str | None = None) -> None:
    """Prints a line as it is: paths and messages are no markup, and are not wrapped."""
    console.print(
        text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def show(console: Console, renderable: RenderableType) -> None:
    """Prints a table or a group of them; text is for `say`."""
    console.print(renderable)


@contextlib.contextmanager
def working(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being done while a block runs.

    Yields:
        Says what is being done now.
    """
    with console.status(Text(text)) as status:
        yield lambda text: status.update(Text(text))
