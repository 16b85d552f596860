"""What a run is asked to do: one TOML file, typed, with overrides by task.

A default lives in one place, the dataclass that owns it. Nothing here builds
anything.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from trainer.agents import AgentConfig
from trainer.data.feed import FeedConfig
from trainer.sharding import MeshConfig

TASKS = range(1, 6)
Json = dict[str, Any]


class ConfigError(ValueError):
    """A configuration that cannot be used: which key, where, and what is near it."""


@dataclass(frozen=True)
class TrainerConfig:
    """How long and how to train.

    Attributes:
        steps: Updates in all.
        batch_size: B, of each seed.
        updates_per_call: Updates fused in one call of the devices.
        seed: Of the first run.
        seeds: Runs trained side by side in one program, seeds ``seed, seed + 1, ...``.
        log_every: Updates between two records.
        checkpoint_every: Updates between two checkpoints.
        keep_checkpoints: Latest checkpoints kept.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    steps: int = 1_000_000
    batch_size: int = 512
    updates_per_call: int = 50
    seed: int = 0
    seeds: int = 1
    log_every: int = 1_000
    checkpoint_every: int = 100_000
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "updates_per_call", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"trainer.{name}: expected at least 1, got {getattr(self, name)}"
                )
        for name in ("steps", "log_every", "checkpoint_every"):
            if getattr(self, name) % self.updates_per_call or getattr(self, name) < 1:
                raise ValueError(
                    f"trainer.{name}: expected a multiple of trainer.updates_per_call "
                    f"({self.updates_per_call}), got {getattr(self, name)}"
                )


@dataclass(frozen=True)
class Config:
    """One run.

    Attributes:
        dataset: Data set the run is meant for; the store must be of it.
        agent: Hyperparameters.
        trainer: How long and how to train.
        feed: How batches reach the devices.
        mesh: How devices are used.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    dataset: str
    agent: AgentConfig = field(default_factory=AgentConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    feed: FeedConfig = field(default_factory=FeedConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)


def load(path: str | Path, *, task: int) -> Config:
    """Reads a configuration file for one task.

    Args:
        path: TOML file. Its tables are those of ``Config``; a table
            ``[tasks.N.agent]`` overrides ``[agent]`` for task N.
        task: Task number, 1 to 5.

    Returns:
        The configuration.

    Raises:
        ConfigError: If the file is missing, no TOML, or names what does not exist.
    """
    if task not in TASKS:
        raise ConfigError(f"--task: expected a task from 1 to 5, got {task}")
    try:
        raw = tomllib.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such configuration file; see configs/"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    overrides = raw.pop("tasks", {})
    unknown = set(overrides) - {str(known) for known in TASKS}
    if unknown:
        raise ConfigError(f"{path}: tasks.{min(unknown)}: expected a task from 1 to 5")
    # Every task's overrides are checked, not only those of the task at hand.
    for override in overrides.values():
        decode(_merged(raw, override), where=str(path))
    return decode(_merged(raw, overrides.get(str(task), {})), where=str(path))


def decode(raw: Json, *, where: str) -> Config:
    """Builds a configuration from plain values.

    Args:
        raw: Nested tables.
        where: File name, for the error.

    Returns:
        The configuration.

    Raises:
        ConfigError: Naming the key, what was expected, and the nearest right name.
    """
    try:
        return pydantic.TypeAdapter(Config).validate_python(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            near = difflib.get_close_matches(key, _names(Config), n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{where}: unknown key {key!r}{hint}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"{where}: {key}: {message} (got {first['input']!r})"
            if first["type"] != "value_error"
            else f"{where}: {message}"
        ) from error


def encode(config: Config) -> Json:
    """Plain values that ``decode`` reads back."""
    return dataclasses.asdict(config)


def _merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> Json:
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if nested else value
    return merged


def _names(config: type[Any], prefix: str = "") -> list[str]:
    names = []
    for member in dataclasses.fields(config):
        names.append(prefix + member.name)
        if dataclasses.is_dataclass(member.type):
            names += _names(member.type, f"{prefix}{member.name}.")  # type: ignore[arg-type]
    return names
