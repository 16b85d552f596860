"""Generates the pages of the commands from their parsers."""

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import tyro

import infra.cli
import pipeline.cli
import trainer.cli
from docs.generate.tables import make_table
from pipeline import parsing
from pipeline.front_door import Program

PROGRAMS = (pipeline.cli.PROGRAM, trainer.cli.PROGRAM, infra.cli.PROGRAM)
# Marks a table whose first column is names, which the style sheet keeps in one piece.
NAMES = '<div class="names" markdown>'
# The ending that the parser adds to the help of an option: its default, or that it is
# required.
_DEFAULT = re.compile(r"\s*\((?:default: (.*)|(required)|repeatable|optional)\)$", re.S)


def make_page(program: Program) -> str:
    """Writes the page of one program.

    Args:
        program: The program.

    Returns:
        Markdown: a section for each command, with a table of its options.
    """
    lines = [
        f"# `python -m {program.name}`",
        "",
        f"{program.purpose} After installation, `{program.script}` is the same "
        "program. This page is generated from the parsers and agrees with `--help`.",
        "",
    ]
    for name, kind in program.commands.items():
        with warnings.catch_warnings():
            # tyro deprecates get_parser, but has no replacement yet.
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = tyro.extras.get_parser(
                kind, config=parsing.UNPREFIXED, registry=parsing.REGISTRY
            )
        lines += _describe(parser, f"{program.name} {name}", about=kind.__doc__ or "")
        if name in program.loose:
            lines += [
                "Every field of the [configuration](configuration.md) is an option as "
                "well, such as `--agent.width 128`.",
                "",
            ]
    return "\n".join(lines)


def _describe(parser: Any, command: str, *, about: str, level: int = 2) -> list[str]:
    """Writes a command's section, and below it those of its subcommands."""
    # Attributes are in the table of options already.
    text = inspect.cleandoc(about).split("\nAttributes:")[0].strip()
    shown = [f"{'#' * level} {command.partition(' ')[2]}", "", _plain(text), ""]
    rows: list[tuple[str, ...]] = []
    nested: dict[str, Any] = {}
    # argparse has no public list of the arguments of a parser.
    for action in parser._actions:
        if isinstance(
            action.choices, dict
        ):  # Subcommands; choices of values are lists.
            nested = action.choices
        elif "--help" not in action.option_strings:
            rows.append(_row(action))
    if rows:
        table = make_table(("argument", "meaning", "default"), rows)
        shown += [NAMES, "", table, "", "</div>", ""]
    for name, inner in nested.items():
        about = inner.description or ""
        shown += _describe(inner, f"{command} {name}", about=about, level=level + 1)
    return shown


def _row(action: Any) -> tuple[str, ...]:
    help_text, default = action.help or "", ""
    ending = _DEFAULT.search(help_text)
    if ending is not None:
        help_text = help_text[: ending.start()]
        default = ending[1] or ("*required*" if ending[2] else "")
    if default and default != "*required*":
        default = "" if default == "None" else f"`{default}`"
    names = " ".join(f"`{each}`" for each in action.option_strings)
    taken = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if not names:  # A positional argument has no option string.
        names = f"`{action.dest.rpartition('.')[2].upper()}`"
        taken = ""
    taken = f" `{taken}`" if taken else ""
    return (f"{names}{taken}", _plain(help_text), default)


def _plain(text: str) -> str:
    """Turns double backticks into Markdown's, and joins the lines of a paragraph."""
    text = text.replace("``", "`")
    if "\n\n" not in text:
        return " ".join(text.split())
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def list_pages() -> Iterator[tuple[str, str]]:
    """Yields path and text of each program's page."""
    for program in PROGRAMS:
        yield f"reference/{program.name}.md", make_page(program)
