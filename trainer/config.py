"""What a run is asked to do: one TOML file, typed, with overrides by task and agent.

A default lives in one place, the dataclass that owns it. Nothing here builds
anything.
"""

import dataclasses
import difflib
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tyro

from pipeline.front_door import PARSING
from pipeline.store.decoding import read_first_error
from trainer.agents import AGENTS, DEFAULT_AGENT, AgentConfig
from trainer.agents.vast_config import VASTConfig
from trainer.data.feed_config import FeedConfig
from trainer.errors import ConfigError
from trainer.parallel.mesh_shape import MeshConfig
from trainer.shipped import BASELINES as BASELINES
from trainer.shipped import CONFIGS as CONFIGS
from trainer.shipped import baseline_file as baseline_file
from trainer.shipped import baseline_name, find_configuration

# Of trainer.*: what makes a run another one.
_IDENTITY = ("batch_size", "microbatches", "seed", "seeds")
_TASK = re.compile(r"[1-9][0-9]{0,8}")
Json = dict[str, Any]


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
        keep_every: Updates between two checkpoints that are kept for good, a multiple
            of ``checkpoint_every``; None for none.
        microbatches: Parts of a batch whose gradients are averaged one after another,
            where a whole one's activations do not fit.
        max_over_estimation: How far averaged values may lie above the largest return
            there can be, in lengths of the range of returns, before the run stops;
            infinite to never stop for it.
        validate_every: Updates between two measurements on windows of the store's
            ``val`` split, which nothing is trained on; None for none.
        validation_batches: Batches of each measurement. One costs less than an update:
            losses are evaluated, and no gradient is.
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
        if self.keep_every is not None and (
            self.keep_every < 1 or self.keep_every % self.checkpoint_every
        ):
            raise ConfigError(
                "trainer.keep_every: expected a multiple of trainer.checkpoint_every "
                f"({self.checkpoint_every}), got {self.keep_every}"
            )
        for name in ("steps", "log_every", "checkpoint_every", "validate_every"):
            every = getattr(self, name)
            if every is not None and (every % self.updates_per_call or every < 1):
                raise ConfigError(
                    f"trainer.{name}: expected a multiple of trainer.updates_per_call "
                    f"({self.updates_per_call}), got {every}"
                )


@dataclass(frozen=True)
class TrackingConfig:
    """Where figures go besides ``metrics.jsonl``, which every run has.

    Attributes:
        tensorboard: Whether files for TensorBoard are written into the run's folder.
        wandb: Weights & Biases: ``"offline"`` keeps records on this machine for
            ``wandb sync``, ``"online"`` sends them (not tried against the service).
        wandb_project: Project that the runs are of.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    tensorboard: bool = True
    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "vast-rl"


@dataclass(frozen=True)
class Config:
    """One run.

    Attributes:
        dataset: Data set the run is meant for; the store must be of it.
        agent: Hyperparameters.
        trainer: How long and how to train.
        feed: How batches reach the devices.
        mesh: How devices are used.
        tracking: Where figures go.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    dataset: str
    # Which agent a table of settings is for is said by its `name`.
    agent: Annotated[AgentConfig, pydantic.Field(discriminator="name")] = field(
        default_factory=VASTConfig
    )
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    feed: FeedConfig = field(default_factory=FeedConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class Resolved:
    """A configuration, and what has to be there for it to come out the same elsewhere.

    Attributes:
        config: The configuration.
        task: Task number that it is for.
        file: File that it was read from; None of an agent's defaults alone.
        baseline: File with the settings of the agent that was asked for, where it was
            read besides the given file.
        remark: What a person should know of where its values are from; empty if they
            are all of the data set asked for.
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
    """Works out the configuration of a command: file, task, agent, then overrides.

    Both training and launching call this, so that a launch refuses what training would.

    Args:
        path: TOML file or name of a configuration, see ``load``; None for that of the
            data set or, where there is none, the agent's defaults.
        task: Task number; None for the one that the name says, or else 1.
        agent: Name of an agent, see ``load``.
        dataset: Name of the data set, where no configuration is given.
        overrides: Arguments such as ``--agent.width 128``, one field of ``Config``
            each.
        prog: What the help of the overrides calls the command.

    Returns:
        The configuration, and what it was read from.

    Raises:
        ConfigError: As ``load`` does.
        SystemExit: If an override is none, with code 2; tyro has printed why.
    """
    read = _read(path, task=task, agent=agent, dataset=dataset)
    if not overrides:
        return read
    with PARSING:
        config = tyro.cli(
            tyro.conf.AvoidSubcommands[Config],
            default=read.config,
            args=overrides,
            prog=prog,
        )
    return dataclasses.replace(read, config=config)


def load(path: str | Path, *, task: int, agent: str | None = None) -> Config:
    """Reads a configuration file for one task, and for another agent if one is named.

    Args:
        path: TOML file, or the name of a configuration that is shipped, see
            ``find_configuration``. Its tables are those of ``Config``; a table
            ``[tasks.N.agent]`` overrides ``[agent]`` for task N.
        task: Task number, from 1.
        agent: Name of an agent. If it is not the file's own, its settings for the
            file's data set replace the file's ``[agent]``, see ``read_baseline``; of a
            data set that it has none for, its defaults.

    Returns:
        The configuration.

    Raises:
        ConfigError: If a file is missing, no TOML, or names what does not exist, or
            there are no settings of the agent for the data set.
    """
    return _read(path, task=task, agent=agent).config


def _read(
    path: str | Path | None,
    *,
    task: int | None,
    agent: str | None,
    dataset: str | None = None,
) -> Resolved:
    """``load``, saying what was read besides."""
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
    overrides = _pop_tasks(raw, where=str(path))
    # Every task's overrides are checked, not only those of the task at hand.
    for override in overrides.values():
        decode(merge_tables(raw, override), where=str(path))
    merged = merge_tables(raw, overrides.get(str(task), {}))
    config = decode(merged, where=str(path))
    if agent is None or agent == config.agent.name:
        return Resolved(config, task, path)
    file = baseline_file(path, agent)
    merged.pop("agent", None)
    if not file.exists() and not (CONFIGS / f"{config.dataset}.toml").is_file():
        # Settings of this agent are a configuration's own, and there is none.
        config = decode({**merged, "agent": {"name": agent}}, where=str(path))
        remark = _tell_defaults(agent, config.dataset, known=())
        return Resolved(config, task, path, remark=remark)
    settings, remark = read_baseline(file, dataset=config.dataset, task=task)
    config = decode(merge_tables(merged, settings), where=f"{path} with {file}")
    return Resolved(config, task, path, file, remark)


def _read_defaults(dataset: str, *, task: int, agent: str) -> Resolved:
    """An agent's settings for a data set that has no configuration."""
    raw: Json = {"dataset": dataset}
    file = CONFIGS / baseline_name(agent)
    if file.exists():
        settings, remark = read_baseline(file, dataset=dataset, task=task)
        config = decode(merge_tables(raw, settings), where=str(file))
        return Resolved(config, task, None, file, remark)
    config = decode({**raw, "agent": {"name": agent}}, where=agent)
    return Resolved(config, task, remark=_tell_defaults(agent, dataset, known=()))


def _tell_defaults(agent: str, dataset: str, *, known: Iterable[str]) -> str:
    """Says that settings are nobody's for a data set, and which may be meant."""
    near = difflib.get_close_matches(dataset, tuple(known), n=1, cutoff=0.7)
    hint = f"; it has some for {near[0]}" if near else ""
    return (
        f"{agent} has no settings for {dataset}{hint}: its defaults are used, which "
        f"`describe --agent {agent} --store STORE` lists"
    )


def read_baseline(file: Path, *, dataset: str, task: int) -> tuple[Json, str]:
    """Reads an agent's settings for one data set and task.

    Args:
        file: TOML file. ``[agent]`` and ``[trainer]`` hold for all data sets,
            ``[datasets.NAME.agent]`` and ``[datasets.NAME.trainer]`` override them for
            one, and ``[datasets.NAME.tasks.N.agent]`` those for one task.
        dataset: Data set.
        task: Task number, from 1.

    Returns:
        Tables of ``Config``, to replace or override a configuration's own; and a remark
        where the file has not that data set, so that they are the agent's defaults.

    Raises:
        ConfigError: If the file is missing or no TOML.
    """
    settings = read_toml(
        file,
        missing="no such configuration file; an agent's settings are read from the "
        f"folder {BASELINES!r} beside the given configuration, such as "
        f"configs/{BASELINES}/",
    )
    datasets = _table(settings.pop("datasets", {}), where=f"{file}: datasets")
    if dataset not in datasets:
        agent = _table(settings.get("agent", {}), where=f"{file}: agent")
        return settings, _tell_defaults(str(agent.get("name")), dataset, known=datasets)
    where = f"{file}: datasets.{dataset}"
    mine = _table(datasets[dataset], where=where)
    overrides = _pop_tasks(mine, where=where)
    chosen = merge_tables(mine, overrides.get(str(task), {}))
    return merge_tables(settings, chosen), ""


def decode(raw: Json, *, where: str) -> Config:
    """Builds a configuration from plain values.

    Args:
        raw: Nested tables. An agent without a name is VAST.
        where: File name, for the error.

    Returns:
        The configuration.

    Raises:
        ConfigError: Naming the key, what was expected, and the nearest right name.
    """
    agent = raw.get("agent", {})
    if isinstance(agent, Mapping):
        agent = {"name": DEFAULT_AGENT, **agent}
        # A name that is no text cannot even be looked up.
        if not isinstance(agent["name"], str) or agent["name"] not in AGENTS:
            near = difflib.get_close_matches(str(agent["name"]), AGENTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{where}: agent.name: expected one of {', '.join(AGENTS)}, got "
                f"{agent['name']!r}{hint}"
            )
    try:
        return _adapter().validate_python({**raw, "agent": agent})
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        # The agent's name stands in the place of an error within its table.
        place = [
            part
            for index, part in enumerate(first.location)
            if not (index == 1 and first.location[0] == "agent" and part in AGENTS)
        ]
        key = ".".join(str(part) for part in place)
        unknown = first.kind in ("unexpected_keyword_argument", "extra_forbidden")
        if unknown and isinstance(agent, Mapping):
            names = _names(Config, agent=AGENTS[agent["name"]].config)
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{where}: unknown key {key!r}{hint}") from error
        raise ConfigError(
            f"{where}: {key}: {first.message} (got {first.given!r:.80})"
            if first.kind != "value_error"
            else f"{where}: {first.message}"
        ) from error


@functools.cache
def _adapter() -> pydantic.TypeAdapter[Config]:
    return pydantic.TypeAdapter(Config)


def encode(config: Config) -> Json:
    """Plain values that ``decode`` reads back."""
    return dataclasses.asdict(config)


def differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """What makes one run another one: checkpoints of neither go on as the other.

    How long it goes on, how it is fed and spread over devices, and what is kept for
    gradients, may change.

    Args:
        one: Configuration of a run.
        other: Configuration of another.

    Returns:
        Name, value in the one and value in the other of what differs.
    """
    if one.agent.name != other.agent.name:  # Other settings altogether.
        return [("agent.name", one.agent.name, other.agent.name)]
    pairs = [
        (f"agent.{name}", value, getattr(other.agent, name))
        for name, value in vars(one.agent).items()
    ]
    pairs = [pair for pair in pairs if pair[0] != "agent.rematerialise"]
    pairs += [
        (f"trainer.{name}", getattr(one.trainer, name), getattr(other.trainer, name))
        for name in _IDENTITY
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def read_toml(path: Path, *, missing: str) -> Json:
    """Reads a TOML file.

    Args:
        path: Of the file.
        missing: What to say, and to do, if it is not there.

    Returns:
        Its tables.

    Raises:
        ConfigError: If it is missing, a folder or no TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ConfigError(f"{path}: {missing}") from error
    except (ValueError, RecursionError) as error:  # Of numbers and nesting as well.
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _pop_tasks(raw: Json, *, where: str) -> Json:
    overrides = _table(raw.pop("tasks", {}), where=f"{where}: tasks")
    for task, override in overrides.items():
        _table(override, where=f"{where}: tasks.{task}")
    unknown = [name for name in overrides if _TASK.fullmatch(name) is None]
    if unknown:
        raise ConfigError(f"{where}: tasks.{unknown[0]}: expected a task number from 1")
    return overrides


def _table(value: Any, *, where: str) -> Json:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table, got {value!r:.80}")
    return value


def merge_tables(base: Mapping[str, Any], override: Mapping[str, Any]) -> Json:
    """Tables of tables, those of the second over those of the first."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_tables(merged[key], value) if nested else value
    return merged


def _names(config: type[Any], *, agent: type[Any], prefix: str = "") -> list[str]:
    names = []
    for member in dataclasses.fields(config):
        names.append(prefix + member.name)
        # The union of all agents is no dataclass: the one that is meant is given.
        kind = agent if member.name == "agent" else member.type
        if dataclasses.is_dataclass(kind):
            names += _names(kind, agent=agent, prefix=f"{prefix}{member.name}.")  # type: ignore[arg-type]
    return names
