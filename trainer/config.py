"""The configuration of a run: one TOML file, typed, with overrides by task and agent.

Each default is written once, in the dataclass that owns the field. This module only
reads and checks; it builds no network, feed or mesh.
"""

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tyro

from pipeline import parsing
from pipeline.store.decoding import read_first_error
from trainer.agents.registry import AGENTS, DEFAULT_AGENT, AgentConfig
from trainer.agents.vast_config import VASTConfig
from trainer.data.feed_config import FeedConfig
from trainer.errors import ConfigError
from trainer.parallel.mesh_shape import MeshConfig
from trainer.shipped import (
    CONFIGS,
    describe_defaults,
    find_baseline,
    find_configuration,
    read_baseline,
)
from trainer.toml_tables import Json, merge_tables, pop_task_tables, read_toml

# Settings of TrainerConfig that decide which numbers a run computes. Changing one of
# them makes another run; steps, logging and checkpoints may change between two starts.
_IDENTITY = ("batch_size", "microbatches", "seed", "seeds")
# JAX's keys take this many bits of a seed: seeds that differ in others would have equal
# networks.
_SEED_BITS = 32


@dataclass(frozen=True)
class TrainerConfig:
    """Length of the training, and how it runs.

    Attributes:
        steps: Number of updates in total.
        batch_size: Rows B of each seed's batch.
        updates_per_call: Updates that are fused into one compiled call.
        seed: Seed of the first run; all seeds lie below 2**32.
        seeds: Runs trained side by side in one program, with the seeds ``seed``,
            ``seed + 1``, ...
        log_every: Updates between two records of metrics.
        checkpoint_every: Updates between two checkpoints.
        keep_checkpoints: Number of the latest checkpoints that are kept. One that a
            preempted run saves in between takes no other's place.
        keep_every: Updates between two checkpoints that are never deleted, a multiple
            of ``checkpoint_every``; None keeps only the latest ones.
        microbatches: Parts of a batch whose gradients are computed one after another
            and averaged, for a batch whose activations do not fit in memory.
        max_over_estimation: Distance of averaged values above the largest possible
            return, or below the smallest, at which the run stops, as a multiple of the
            range of returns; infinity never stops it.
        validate_every: Updates between two measurements of the losses on windows of the
            store's ``val`` split, which is never trained on; None measures none.
        validation_batches: Batches of each measurement. A batch costs less than an
            update, because no gradient is computed.
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
    keep_every: int | None = None
    microbatches: int = 1
    max_over_estimation: float = 1.0
    validate_every: int | None = None
    validation_batches: int = 8

    @property
    def seed_range(self) -> range:
        """Seeds of the runs trained side by side."""
        return range(self.seed, self.seed + self.seeds)

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "updates_per_call",
            "seeds",
            "keep_checkpoints",
            "microbatches",
            "validation_batches",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"trainer.{name}: expected at least 1, got {getattr(self, name)}"
                )
        if not 0 <= self.seed <= 2**_SEED_BITS - self.seeds:
            raise ConfigError(
                f"trainer.seed: expected seeds from 0 to {2**_SEED_BITS - 1}, got "
                f"{self.seed} to {self.seed + self.seeds - 1}; choose another number"
            )
        # Written as "not >=", so that NaN is refused as well.
        if not self.max_over_estimation >= 0:
            raise ConfigError(
                "trainer.max_over_estimation: expected at least 0, got "
                f"{self.max_over_estimation}"
            )
        if self.batch_size % self.microbatches:
            raise ConfigError(
                f"trainer.batch_size: expected a multiple of trainer.microbatches "
                f"({self.microbatches}), got {self.batch_size}"
            )
        # The loop logs, saves and ends between two compiled calls, never within one.
        for name in ("steps", "log_every", "checkpoint_every", "validate_every"):
            every = getattr(self, name)
            if every is not None and (every % self.updates_per_call or every < 1):
                raise ConfigError(
                    f"trainer.{name}: expected a multiple of trainer.updates_per_call "
                    f"({self.updates_per_call}), got {every}; give a multiple, or "
                    "lower trainer.updates_per_call"
                )
        if self.keep_every is not None and (
            self.keep_every < 1 or self.keep_every % self.checkpoint_every
        ):
            raise ConfigError(
                "trainer.keep_every: expected a multiple of trainer.checkpoint_every "
                f"({self.checkpoint_every}), got {self.keep_every}"
            )


@dataclass(frozen=True)
class TrackingConfig:
    """Trackers of metrics besides ``metrics.jsonl``, which every run writes.

    Attributes:
        tensorboard: Whether files for TensorBoard are written into the run's folder.
        wandb: Weights & Biases: ``"offline"`` keeps records on this machine for
            ``wandb sync``, ``"online"`` sends them (not tried against the service).
        wandb_project: Weights & Biases project of the run.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    tensorboard: bool = True
    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "vast-rl"


@dataclass(frozen=True)
class Config:
    """The configuration of one run.

    Attributes:
        dataset: Name of the data set that the configuration is for; the store must hold
            this data set.
        agent: Hyperparameters of the agent.
        trainer: Length of the training, batches, seeds, logging and checkpoints.
        feed: Preparation of batches, and their way to the devices.
        mesh: Axes over which seeds, batches and networks are sharded.
        tracking: Trackers of metrics besides ``metrics.jsonl``.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    dataset: str
    # The field `name` says which agent's settings a table holds. Without it pydantic
    # would report one error for each agent that the table does not fit.
    agent: Annotated[AgentConfig, pydantic.Field(discriminator="name")] = field(
        default_factory=VASTConfig
    )
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    feed: FeedConfig = field(default_factory=FeedConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the files that another machine needs to resolve the same.

    Attributes:
        config: The configuration.
        task: Number of the task that it is for.
        file: File that it was read from; None if it is made of an agent's settings.
        baseline: File with the settings of the agent that was asked for; None if no
            file besides ``file`` was read.
        remark: Warning for the user if the settings were not made for this data set;
            empty if they were.
    """

    config: Config
    task: int
    file: Path | None = None
    baseline: Path | None = None
    remark: str = ""


def resolve(
    path: str | Path | None,
    *,
    task: int | None = None,
    agent: str | None = None,
    dataset: str | None = None,
    overrides: Sequence[str] = (),
    prog: str,
) -> Resolved:
    """Resolves the configuration of a command: file, task, agent, then overrides.

    Both training and launching call this function, so that a launch refuses whatever
    training would refuse.

    Args:
        path: TOML file or name of a configuration, see ``load``; None takes that of the
            data set or, if it has none, the agent's settings.
        task: Task number; None takes the one in the configuration's name, or else 1.
        agent: Name of an agent, see ``load``.
        dataset: Name of the data set, needed if no configuration is given.
        overrides: Arguments such as ``--agent.width 128``, each for one field of
            ``Config``.
        prog: Name of the command in the help of the overrides.

    Returns:
        The configuration, and the files that it was read from.

    Raises:
        ConfigError: As ``load`` does.
        SystemExit: With code 2, if an argument is no override; tyro has printed why.
    """
    read = _read(path, task=task, agent=agent, dataset=dataset)
    if not overrides:
        return read
    config = parsing.parse(
        tyro.conf.AvoidSubcommands[Config],
        overrides,
        default=read.config,
        prog=prog,
    )
    return dataclasses.replace(read, config=config)


def load(path: str | Path, *, task: int, agent: str | None = None) -> Config:
    """Reads a configuration file for one task, and for another agent if one is named.

    Args:
        path: TOML file, or the name of a shipped configuration, see
            ``find_configuration``. Its tables are the fields of ``Config``; a table
            ``[tasks.N.agent]`` overrides ``[agent]`` for task N.
        task: Task number, from 1.
        agent: Name of an agent. If it is not the file's own, the agent's settings for
            the file's data set replace the file's ``[agent]``, see ``read_baseline``;
            an agent without settings for that data set has its defaults.

    Returns:
        The configuration.

    Raises:
        ConfigError: If a file is missing or not TOML, a key or an agent does not exist,
            or a value has the wrong type or is out of range.
    """
    return _read(path, task=task, agent=agent).config


def _read(
    path: str | Path | None,
    *,
    task: int | None,
    agent: str | None,
    dataset: str | None = None,
) -> Resolved:
    """Reads a configuration as ``resolve`` does, without overrides."""
    if task is not None and task < 1:
        raise ConfigError(f"--task: expected a task number from 1, got {task}")
    if agent is not None and agent not in AGENTS:
        raise ConfigError(
            f"--agent: expected one of {', '.join(AGENTS)}, got {agent!r}"
        )
    shipped = CONFIGS / f"{dataset}.toml"
    if path is None and dataset is not None and not shipped.is_file():
        return _read_defaults(dataset, task=task or 1, agent=agent or DEFAULT_AGENT)
    path, named = find_configuration(shipped if path is None else path)
    if named is not None and task is not None and named != task:
        raise ConfigError(
            f"--task: expected {named}, which the configuration is named after, got "
            f"{task}; leave one of them out"
        )
    task = task or named or 1
    raw = read_toml(path, missing="no such configuration file; see configs/")
    if "datasets" in raw:
        raise ConfigError(
            f"{path}: holds an agent's settings for many data sets; give the "
            "configuration of one, and this agent's name as --agent"
        )
    overrides = pop_task_tables(raw, where=str(path))
    # The overrides of every task are checked, so that a mistake is found before the
    # first task has been trained, and not when the last one starts.
    for override in overrides.values():
        decode(merge_tables(raw, override), where=str(path))
    merged = merge_tables(raw, overrides.get(str(task), {}))
    config = decode(merged, where=str(path))
    if agent is None or agent == config.agent.name:
        return Resolved(config, task, path)
    file = find_baseline(path, agent)
    merged.pop("agent", None)
    # The shipped configurations are VAST's settings; it has no file of baselines.
    ours = agent == DEFAULT_AGENT and (CONFIGS / f"{config.dataset}.toml").is_file()
    if not file.exists() and not ours:
        # An agent or a data set of a user's own: no file has settings for the two.
        config = decode({**merged, "agent": {"name": agent}}, where=str(path))
        remark = describe_defaults(agent, config.dataset, known=())
        return Resolved(config, task, path, remark=remark)
    settings, remark = read_baseline(file, dataset=config.dataset, task=task)
    config = decode(merge_tables(merged, settings), where=f"{path} with {file}")
    return Resolved(config, task, path, file, remark)


def _read_defaults(dataset: str, *, task: int, agent: str) -> Resolved:
    """Reads an agent's settings for a data set that has no configuration."""
    raw: Json = {"dataset": dataset}
    file = find_baseline(CONFIGS / f"{dataset}.toml", agent)
    if file.exists():
        settings, remark = read_baseline(file, dataset=dataset, task=task)
        config = decode(merge_tables(raw, settings), where=str(file))
        return Resolved(config, task, None, file, remark)
    config = decode({**raw, "agent": {"name": agent}}, where=agent)
    return Resolved(config, task, remark=describe_defaults(agent, dataset, known=()))


def decode(raw: Json, *, where: str) -> Config:
    """Makes a configuration of plain values.

    Args:
        raw: Nested tables. An agent without a name is VAST.
        where: Name of the file that the tables are from, for the error.

    Returns:
        The configuration.

    Raises:
        ConfigError: If a key does not exist or a value is wrong. The error names the
            key, and either what was expected or the nearest key that exists.
    """
    agent = raw.get("agent", {})
    if isinstance(agent, Mapping):
        agent = {"name": DEFAULT_AGENT, **agent}
        # TOML allows a list as the name, and looking up a list raises a TypeError.
        if not isinstance(agent["name"], str) or agent["name"] not in AGENTS:
            near = difflib.get_close_matches(str(agent["name"]), AGENTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{where}: agent.name: expected one of {', '.join(AGENTS)}, got "
                f"{agent['name']!r}{hint}"
            )
    try:
        return _make_adapter().validate_python({**raw, "agent": agent})
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        # Within the table `agent`, pydantic puts the agent's name before the key: a
        # user has written no such part of the key.
        parts = [
            part
            for index, part in enumerate(first.location)
            if not (index == 1 and first.location[0] == "agent" and part in AGENTS)
        ]
        key = ".".join(str(part) for part in parts)
        unknown = first.kind in ("unexpected_keyword_argument", "extra_forbidden")
        if unknown and isinstance(agent, Mapping):
            hint = _suggest(key, agent=agent["name"])
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}") from error
        raise ConfigError(
            f"{where}: {key}: {first.message} (got {first.given!r:.80})"
            if first.kind != "value_error"
            # An error that one of our own checks raised already names the key.
            else f"{where}: {first.message}"
        ) from error


def _suggest(key: str, *, agent: str) -> str:
    """Says what to do about a key that the configuration of an agent does not have."""
    others = [
        name
        for name, kind in AGENTS.items()
        if key in _list_keys(Config, agent=kind.config)
    ]
    if others:
        return f"{agent} has no such setting, but {', '.join(others)}; remove it"
    keys = _list_keys(Config, agent=AGENTS[agent].config)
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
    if near:
        return f"did you mean {near[0]!r}?"
    return "remove it, or see `python -m trainer describe` for all keys"


# Built once: pydantic takes a tenth of a second to compile the types of all agents.
@functools.cache
def _make_adapter() -> pydantic.TypeAdapter[Config]:
    return pydantic.TypeAdapter(Config)


def _list_keys(config: type[Any], *, agent: type[Any], prefix: str = "") -> list[str]:
    """Lists the keys of a configuration for one agent, such as ``"agent.width"``."""
    keys = []
    for member in dataclasses.fields(config):
        keys.append(prefix + member.name)
        # The declared type is the union of all agents' settings, which has no fields.
        kind = agent if member.name == "agent" else member.type
        if dataclasses.is_dataclass(kind):
            keys += _list_keys(kind, agent=agent, prefix=f"{prefix}{member.name}.")  # type: ignore[arg-type]
    return keys


def encode(config: Config) -> Json:
    """Turns a configuration into plain values, which ``decode`` reads back."""
    return dataclasses.asdict(config)


def find_differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Compares the settings that identify a run.

    A checkpoint may only be resumed if none of them differ. The number of updates, the
    feed, the mesh, the trackers and ``agent.rematerialise`` are not among them.

    Args:
        one: Configuration of a run.
        other: Configuration of another run.

    Returns:
        Name, value in ``one`` and value in ``other`` of each setting that differs.
    """
    if one.agent.name != other.agent.name:
        # Different agents have different settings, which cannot be compared in pairs.
        return [("agent.name", one.agent.name, other.agent.name)]
    pairs = [
        (f"agent.{name}", value, getattr(other.agent, name))
        for name, value in vars(one.agent).items()
        # Layers are computed again instead of kept: the gradients are the same.
        if name != "rematerialise"
    ]
    pairs += [
        (f"trainer.{name}", getattr(one.trainer, name), getattr(other.trainer, name))
        for name in _IDENTITY
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]
