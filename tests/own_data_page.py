"""Reads the page on own data, so that a test can run the code it shows."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# The page and its section.
PAGE = Path(__file__).parents[1] / "docs/how-to/own-data.md"
HEADING = "Your own data"
# Other kinds of files that the page makes stores of; it continues with the npz.
OTHERS = ("robomimic", "minari")
# The page's names of stores, runs and reports of the npz.
_OWN = re.compile(r"\b(stores|runs|reports)/walk(?![\w-])")


@dataclass(frozen=True)
class Shown:
    """Code and commands of a page.

    Attributes:
        files: Programs by file name, which is a comment in their first line.
        commands: Command lines, split into words as a shell would.
    """

    files: dict[str, str]
    commands: list[list[str]]

    def commands_for(self, other: str) -> list[list[str]]:
        """The commands that follow `shard`, for the store of another kind of file."""
        named = [[_OWN.sub(rf"\1/walk-{other}", w) for w in c] for c in self.commands]
        return [
            changed
            for given, changed in zip(self.commands, named, strict=True)
            if given != changed and given[1] != "shard"
        ]


def read_page() -> Shown:
    """Reads the fenced blocks of the section: Python as files, others as commands."""
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
