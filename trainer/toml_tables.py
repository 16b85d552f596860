"""Nested tables as TOML has them: read from a file, checked and merged."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

# Nine digits at most: Python refuses to convert text of thousands to a number.
_TASK = re.compile(r"[1-9][0-9]{0,8}")
Json = dict[str, Any]


def read_toml(path: Path, *, missing: str) -> Json:
    """Reads a TOML file.

    Args:
        path: Path of the file.
        missing: Error text for a file that does not exist: what is wrong, and what the
            user can do.

    Returns:
        The tables of the file.

    Raises:
        ConfigError: If the file does not exist, is a folder, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ConfigError(f"{path}: {missing}") from error
    # ValueError also covers bytes that are not UTF-8 and numbers of too many digits;
    # brackets nested too deeply raise a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}; correct the file") from error


def check_table(value: Any, *, where: str) -> Json:
    """Returns a value that is a table.

    Args:
        value: Value that a file has at this place.
        where: File and key of the value, for the error.

    Raises:
        ConfigError: If the value is not a table.
    """
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where}: expected a table, got {value!r:.80}; correct the file"
        )
    return value


def pop_task_tables(tables: Json, *, where: str) -> Json:
    """Removes the table ``tasks`` from tables, and returns the table of each task.

    Args:
        tables: Tables to remove it from; they need not have it.
        where: File and key of these tables, for the error.

    Returns:
        Overriding tables by task number, which is text as all keys of TOML are.

    Raises:
        ConfigError: If a key is not a task number, or its value not a table.
    """
    overrides = check_table(tables.pop("tasks", {}), where=f"{where}: tasks")
    for task, override in overrides.items():
        check_table(override, where=f"{where}: tasks.{task}")
        if _TASK.fullmatch(task) is None:
            raise ConfigError(f"{where}: tasks.{task}: expected a task number from 1")
    return overrides


def merge_tables(base: Mapping[str, Any], override: Mapping[str, Any]) -> Json:
    """Merges nested tables; where both have a value, that of ``override`` is kept."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_tables(merged[key], value) if nested else value
    return merged
