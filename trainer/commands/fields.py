"""The fields of a configuration and their meanings, as the docstrings have them."""

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
    """One field of a configuration, for people.

    Attributes:
        name: As an option without its dashes, such as ``"agent.width"``.
        value: What it is set to.
        meaning: What its dataclass says of it.
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
        value = getattr(config, member.name)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            meaning = meanings_of_tables.get(member.name, "")
            yield ConfigField(member.name, value, meaning)
            continue
        meanings = read_meanings(type(value))
        for each in dataclasses.fields(value):
            name = f"{member.name}.{each.name}"
            yield ConfigField(name, getattr(value, each.name), meanings[each.name])


def read_meanings(kind: type[Any]) -> dict[str, str]:
    """What docstrings say of the fields of a dataclass, its bases' among them."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for each in docstring_parser.parse(base.__doc__ or "", _GOOGLE).params:
            meanings[each.arg_name] = " ".join((each.description or "").split())
    return meanings


def make_fields_table(config: "Config", *, title: str) -> "Table":
    """One line for each field: name, value and meaning."""
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "value", "meaning", title=title)
    table.columns[0].no_wrap = True
    for name, value, meaning in list_fields(config):
        table.add_row(name, Text(str(value)), Text(meaning))
    return table


def show_fields(output: Output, words: Sequence[str]) -> None:
    """Prints the fields of a configuration below the help of a command.

    Args:
        output: Where to.
        words: The command line: a configuration may stand first, and ``--agent`` among
            the rest.

    Raises:
        ConfigError: If there is no such configuration or agent.
    """
    given = words[0] if words and not words[0].startswith("-") else None
    agent = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name == "--agent":
            agent = value or following
    if given is None and agent is None:  # To load what lists them takes a second.
        say(output.results, "Give a configuration before --help to see its fields.")
        return
    from trainer import config as configuration

    resolved = configuration.resolve(
        given, agent=agent, dataset="of the store", prog="help"
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
