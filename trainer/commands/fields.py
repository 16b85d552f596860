"""The fields of a configuration, with their meanings from the docstrings."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import docstring_parser

from pipeline.output import Output, say, show

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.config import Config

_GOOGLE = docstring_parser.DocstringStyle.GOOGLE


class ConfigField(NamedTuple):
    """One field of a configuration, as help shows it.

    Attributes:
        name: Name of the field's option without the dashes, such as ``"agent.width"``.
        value: Value of the field.
        meaning: Text about the field in the docstring of its dataclass.
    """

    name: str
    value: Any
    meaning: str


def list_fields(config: "Config") -> Iterator[ConfigField]:
    """Lists every field of a configuration.

    Args:
        config: The configuration.

    Yields:
        The fields, in the order of their declaration.
    """
    meanings_of_tables = read_meanings(type(config))
    for member in dataclasses.fields(config):
        table = getattr(config, member.name)
        # ``dataset`` stands outside of all tables. ``is_dataclass`` is also true of a
        # class, which mypy would have to exclude.
        if not dataclasses.is_dataclass(table) or isinstance(table, type):
            meaning = meanings_of_tables.get(member.name, "")
            yield ConfigField(member.name, table, meaning)
            continue
        meanings = read_meanings(type(table))
        for setting in dataclasses.fields(table):
            name = f"{member.name}.{setting.name}"
            value = getattr(table, setting.name)
            yield ConfigField(name, value, meanings[setting.name])


def read_meanings(kind: type[Any]) -> dict[str, str]:
    """Reads the texts about the fields of a dataclass from its docstring.

    A dataclass inherits the texts of its bases together with their fields.
    """
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for entry in docstring_parser.parse(base.__doc__ or "", _GOOGLE).params:
            meanings[entry.arg_name] = " ".join((entry.description or "").split())
    return meanings


def make_fields_table(config: "Config", *, title: str) -> "Table":
    """Makes a table with a row for each field: name, value and meaning."""
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "value", "meaning", title=title)
    # Users copy the names into command lines.
    table.columns[0].no_wrap = True
    for name, value, meaning in list_fields(config):
        table.add_row(name, Text(str(value)), Text(meaning.replace("``", "")))
    return table


def show_fields(output: Output, words: Sequence[str]) -> None:
    """Prints the fields of a configuration below the help of a command.

    Args:
        output: Consoles.
        words: Arguments of the command. The first may be a configuration, and the
            others may include ``--agent``.

    Raises:
        ConfigError: If the configuration or the agent does not exist.
    """
    given = words[0] if words and not words[0].startswith("-") else None
    agent = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name == "--agent":
            agent = value or following
    # Listing fields imports the agents' settings and pydantic's adapter, a second that
    # everybody would wait who only wants the options of the command.
    if given is None and agent is None:
        say(output.results, "Give a configuration before --help to see its fields.")
        return
    from trainer import config as configuration

    resolved = configuration.resolve(
        # Without a configuration, no store has said its data set either.
        given,
        agent=agent,
        dataset="of the store",
        prog="help",
    )
    name = resolved.config.agent.name
    show(
        output.results,
        make_fields_table(
            resolved.config,
            title=f"fields of {given or 'a configuration'}, agent {name}: each is an "
            "option, such as --agent.width 128",
        ),
    )
