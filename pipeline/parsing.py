"""Parses command lines with tyro: numbers as people write them, one line at a time.

All programs and the overrides of configurations parse here, so that a number is written
in the same way everywhere.
"""

import dataclasses
import threading
import types
from collections.abc import Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

T = TypeVar("T")

# tyro's caches are the process's own, and each parse empties them: of two threads that
# parse at once, one loses what it is about to read.
_PARSING = threading.Lock()

REGISTRY = ConstructorRegistry()
# Options of a program's commands are named after their field alone.
UNPREFIXED = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


def parse(kind: type[T], arguments: Sequence[str], **options: Any) -> T:
    """Parses arguments into a dataclass.

    Args:
        kind: The dataclass.
        arguments: Words of the command line.
        options: Further arguments of ``tyro.cli``.

    Returns:
        The object.

    Raises:
        SystemExit: If arguments are wrong, or help was asked for. tyro has printed it.
    """
    with _PARSING:
        parsed: T = tyro.cli(kind, args=arguments, registry=REGISTRY, **options)
    return parsed


def parse_known(
    kind: type[T], arguments: Sequence[str], **options: Any
) -> tuple[T, list[str]]:
    """Parses the arguments that a dataclass has, and returns the others with it.

    Args:
        kind: The dataclass.
        arguments: Words of the command line.
        options: Further arguments of ``tyro.cli``.

    Returns:
        The object, and the words that are unknown.

    Raises:
        SystemExit: As ``parse`` does.
    """
    with _PARSING:
        return tyro.cli(
            kind,
            args=arguments,
            registry=REGISTRY,
            return_unknown_args=True,
            **options,
        )


def read_whole_number(text: str) -> int:
    """Reads a whole number, also one like ``1e6``.

    Args:
        text: Text such as ``"200000"``, ``"200_000"``, ``"2e5"`` or ``"-1"``.

    Returns:
        The number.

    Raises:
        ValueError: If the text is no whole number.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    # Not every whole number above 2 ** 53 is a float: 1e23 would become another one.
    if not number.is_integer() or abs(number) > 2**53:
        raise ValueError(
            f"expected a whole number, such as 200000 or 2e5, got {text!r}"
        )
    return int(number)


@REGISTRY.primitive_rule
def _whole_number(type_info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if type_info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: read_whole_number(words[0]),
        is_instance=lambda given: type(given) is int,
        str_from_instance=lambda given: [str(given)],
    )


@REGISTRY.primitive_rule
def _optional(type_info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Reads ``T | None`` as ``T``, in help and errors too; the word None is None."""
    if get_origin(type_info.type) not in (Union, types.UnionType):
        return None
    kinds = [kind for kind in get_args(type_info.type) if kind is not type(None)]
    if len(kinds) != 1:
        return None
    inner = ConstructorRegistry.get_primitive_spec(
        PrimitiveTypeInfo.make(kinds[0], type_info.markers)
    )
    # tyro's own rule names the choices, of which None is one, and counts several words.
    if (
        isinstance(inner, UnsupportedTypeAnnotationError)
        or inner.choices is not None
        or inner.nargs != 1
    ):
        return None
    spec: PrimitiveConstructorSpec[Any] = inner

    def read(words: list[str]) -> Any:
        return None if words == ["None"] else spec.instance_from_str(words)

    def write(given: Any) -> list[str]:
        return ["None"] if given is None else spec.str_from_instance(given)

    return dataclasses.replace(
        spec,
        instance_from_str=read,
        is_instance=lambda given: given is None or spec.is_instance(given),
        str_from_instance=write,
    )
