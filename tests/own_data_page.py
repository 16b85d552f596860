"""The page on data of one's own: what it shows is what a test runs."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# Where it stands: a page, and the section of it.
PAGE = Path(__file__).parents[1] / "docs/how-to/own-data.md"
HEADING = "Your own data"
# What it makes stores of besides the npz that it goes on with.
OTHERS = ("robomimic", "minari")
# Its names of stores, runs and reports of that npz.
_OWN = re.compile(r"\b(stores|runs|reports)/walk(?![\w-])")


@dataclass(frozen=True)
class Shown:
    """What a page shows.

    Attributes:
        files: Programs by file name, which a comment in their first line is.
        commands: Command lines, as a shell would take them apart.
    """

    files: dict[str, str]
    commands: list[list[str]]

    def commands_for(self, other: str) -> list[list[str]]:
        """What is done with a store once it is there, of another kind of file."""
        named = [[_OWN.sub(rf"\1/walk-{other}", w) for w in c] for c in self.commands]
        return [
            changed
            for given, changed in zip(self.commands, named, strict=True)
            if given != changed and given[1] != "shard"
        ]


def read_page() -> Shown:
    """Reads the fenced blocks of the section: Python is files, all else commands."""
    text = PAGE.read_text()
    start = re.search(rf"^(#+) {HEADING}\n", text, re.MULTILINE)
    assert start is not None, f"{PAGE} has no section {HEADING!r}"
    end = re.compile(rf"^#{{1,{len(start[1])}}} ", re.MULTILINE)
    fence = re.compile(r"^```(\w*)\n(.*?)^```$|^(#+) ", re.DOTALL | re.MULTILINE)
    files, commands = {}, []
    for block in fence.finditer(text, start.end()):
        if block[3]:  # A heading, outside of blocks.
            if end.match(block[0]):
                break
            continue
        if block[1] == "python":
            name = re.match(r"# (\w+\.py)\n", block[2])
            assert name is not None, f"expected a file's name, got {block[2][:40]!r}"
            files[name[1]] = block[2]
        else:
            lines = block[2].replace("\\\n", " ").splitlines()
            commands += [shlex.split(line, comments=True) for line in lines]
    return Shown(files, [command for command in commands if command])
