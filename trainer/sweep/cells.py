"""What a sweep is: one TOML file, and the runs it asks for.

A cell is one data set, task, method and group of seeds that one program trains. Cells
are planned without JAX, so that a machine that only launches can do it.
"""

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pydantic

from pipeline.domains.datasets import TASKS, TaskEnvironment
from pipeline.domains.environments import format_arguments, parse_environment
from pipeline.store.decoding import read_first_error
from pipeline.store.manifest import EnvironmentArgument
from trainer import config as configuration
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.runs.evaluations import EvaluationSettings
from trainer.runs.folder import RunFolder, open_folder
from trainer.runs.names import name_cell
from trainer.shipped import find_sweep, list_configurations, list_sweeps
from trainer.toml_tables import Json, merge_tables, read_toml


@dataclass(frozen=True)
class Method:
    """One column of the grid.

    Attributes:
        agent: Agent's name; the method's own if None.
        overrides: Tables of ``Config``, over those of the sweep.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    agent: str | None = None
    overrides: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class CellEvaluation(EvaluationSettings):
    """How every cell of a sweep is evaluated.

    Attributes:
        checkpoints: Evaluated of each cell, the last ones.
    """

    checkpoints: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoints < 1:
            raise ConfigError(
                f"evaluation.checkpoints: expected at least 1, got {self.checkpoints}"
            )


@dataclass(frozen=True)
class Sweep:
    """A grid of runs. Paths are relative to where the command is given.

    Attributes:
        out: Folder of the cells' folders, a local path or ``gs://bucket/path``.
        datasets: Names, such as ``"cube-single-play"``.
        methods: By name; the name is that of an agent, or ``agent`` names one.
        config: Configuration of a data set, a file or the name of one that is shipped;
            ``{dataset}`` stands for the data set's name. By default
            ``configs/{dataset}.toml`` if there is such a file, else the one that is
            shipped, else the method's defaults.
        store: Its store, likewise.
        environment: To evaluate in, where that is not the store's: ``"ID"``, or
            ``"MODULE:ID"`` to have the module imported that registers it: a sweep's
            file is as trusted as a command line.
        environment_arguments: Of the environment, by name.
        tasks: Task numbers.
        seed: First seed.
        seeds: How many.
        seeds_per_run: Seeds trained side by side in one program; all if None.
        overrides: Tables of ``Config``, for every cell.
        evaluation: How every cell is evaluated.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    out: str
    datasets: tuple[str, ...]
    methods: dict[str, Method]
    config: str | None = None
    store: str = "stores/{dataset}"
    environment: str | None = None
    environment_arguments: dict[str, EnvironmentArgument] = field(default_factory=dict)
    tasks: tuple[int, ...] = TASKS
    seed: int = 0
    seeds: int = 1
    seeds_per_run: int | None = None
    overrides: dict[str, Json] = field(default_factory=dict)
    evaluation: CellEvaluation = field(default_factory=CellEvaluation)

    def __post_init__(self) -> None:
        for name in ("datasets", "methods", "tasks"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: expected at least one, got none")
        for name in ("datasets", "tasks"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(
                    f"{name}: expected each once, got {getattr(self, name)}"
                )
        if min(self.tasks) < 1:
            raise ConfigError(f"tasks: expected numbers from 1, got {self.tasks}")
        if self.seeds < 1 or (self.seeds_per_run or 1) < 1:
            raise ConfigError("seeds and seeds_per_run: expected at least 1")
        if self.environment_arguments and self.environment is None:
            raise ConfigError("environment_arguments: expected `environment` beside it")
        self.find_environment()

    def find_environment(self) -> TaskEnvironment | None:
        """Where cells are evaluated; None for where their stores say.

        Raises:
            UsageError: If it is no environment's name.
        """
        if self.environment is None:
            return None
        given = format_arguments(self.environment_arguments)
        return parse_environment(self.environment, given)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: Of its folder.
        folder: RUN.
        method: Name of its method.
        task: Task number.
        config: As its training resolves it.
        file: Configuration, a file or a name; None of a method's defaults.
        store: Trajectory store.
        agent: Name of the agent to train.
        overrides: Options of ``train`` that override the configuration.
        evaluation: How it is evaluated.
        environment: Where, if that is not what the store says.
    """

    name: str
    folder: RunFolder
    method: str
    task: int
    config: Config
    file: str | None
    store: str
    agent: str
    overrides: tuple[str, ...]
    evaluation: CellEvaluation
    environment: TaskEnvironment | None = None

    @property
    def seeds(self) -> range:
        """Training seeds."""
        return self.config.trainer.seed_range

    @property
    def evaluated_steps(self) -> tuple[int, ...]:
        """Checkpoints that are to be evaluated, ascending."""
        trainer = self.config.trainer
        every = trainer.checkpoint_every
        saved = {*range(every, trainer.steps + 1, every), trainer.steps}
        return tuple(sorted(saved)[-self.evaluation.checkpoints :])

    @property
    def train(self) -> tuple[str, ...]:
        """Arguments of ``python -m trainer`` that train it."""
        file = () if self.file is None else (self.file,)
        return (
            *("train", *file, "--store", self.store, "--task", str(self.task)),
            *("--agent", self.agent, "--out", str(self.folder)),
            *(*self.environment_options, *self.overrides),
        )

    @property
    def environment_options(self) -> tuple[str, ...]:
        """Options of ``train`` and ``evaluate`` that name the environment."""
        asked = self.environment
        if asked is None:
            return ()
        colon = ":" if asked.module else ""
        options = ("--environment", f"{asked.module}{colon}{asked.environment_id}")
        given = format_arguments(asked.kwargs)
        return (*options, "--environment-arguments", *given) if given else options

    def evaluate(self, steps: tuple[int, ...]) -> tuple[str, ...]:
        """Arguments of ``python -m trainer`` that evaluate some of its checkpoints."""
        how = self.evaluation
        options: tuple[str, ...] = ()
        if how.workers is not None:
            options += ("--workers", str(how.workers))
        if how.reference_scores is not None:
            options += ("--reference-scores", *map(str, how.reference_scores))
        return (
            *("evaluate", str(self.folder), "--episodes", str(how.episodes)),
            *("--seed", str(how.seed), "--environments", str(how.environments)),
            *(*self.environment_options, *options, "--steps", *map(str, steps)),
        )


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep's file.

    Args:
        path: TOML file of the fields of ``Sweep``, or the name of one that is shipped,
            such as ``table-1``.

    Returns:
        The sweep.

    Raises:
        ConfigError: If the file is missing, no TOML, or names what does not exist.
    """
    path = find_sweep(path)
    raw = read_toml(
        path,
        missing=f"no such sweep; those that are shipped: {', '.join(list_sweeps())}",
    )
    try:
        sweep = pydantic.TypeAdapter(Sweep).validate_python(raw)
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        place = f"{first.place}: " if first.place else ""
        raise ConfigError(f"{path}: {place}{first.message}") from error
    # No shell has seen them.
    return replace(
        sweep,
        out=os.path.expanduser(sweep.out),
        config=sweep.config and os.path.expanduser(sweep.config),
        store=os.path.expanduser(sweep.store),
    )


def make_cells(sweep: Sweep, *, only: str = "*") -> list[Cell]:
    """Lists the cells of a sweep, each configuration resolved and checked.

    Args:
        sweep: The sweep.
        only: Pattern of names, as a shell's.

    Returns:
        The cells: by data set, then task, then method, then seeds, so that methods can
        be compared on the first task before the last has begun.

    Raises:
        ConfigError: If a cell has no configuration, or no cell is left.
    """
    cells = [
        cell
        for dataset in sweep.datasets
        for task in sweep.tasks
        for method in sweep.methods
        for cell in _make(sweep, dataset, task, method)
    ]
    chosen = [cell for cell in cells if fnmatchcase(cell.name, only)]
    if not chosen:
        raise ConfigError(
            f"--only: no cell's name is like {only!r}; correct the pattern, the first "
            f"cell is {cells[0].name}"
        )
    return chosen


def _make(sweep: Sweep, dataset: str, task: int, method: str) -> Iterator[Cell]:
    chosen = sweep.methods[method]
    agent = chosen.agent or method
    file = _find_file(sweep, dataset)
    base = configuration.resolve(
        file, task=task, agent=agent, dataset=dataset, prog="sweep"
    ).config
    if base.dataset != dataset:
        raise ConfigError(
            f"{file}: expected the configuration of {dataset}, got one of "
            f"{base.dataset}; put {{dataset}} into the sweep's `config`"
        )
    size = sweep.seeds_per_run or sweep.seeds
    end = sweep.seed + sweep.seeds
    for first in range(sweep.seed, end, size):
        last = min(first + size, end) - 1
        name = name_cell(dataset, task, method, range(first, last + 1))
        overrides = functools.reduce(
            merge_tables,
            (
                sweep.overrides,
                chosen.overrides,
                {"trainer": {"seed": first, "seeds": last - first + 1}},
            ),
        )
        raw = configuration.encode(base)
        config = configuration.decode(merge_tables(raw, overrides), where=name)
        kept = config.trainer.keep_checkpoints
        folder = RunFolder(open_folder(sweep.out) / name)
        cell = Cell(
            name=name,
            folder=folder,
            method=method,
            task=task,
            config=config,
            file=file,
            store=sweep.store.replace("{dataset}", dataset),
            agent=agent,
            overrides=tuple(_flags(overrides)),
            evaluation=sweep.evaluation,
            environment=sweep.find_environment(),
        )
        if len(cell.evaluated_steps) > kept:
            raise ConfigError(
                f"{name}: {len(cell.evaluated_steps)} checkpoints are to be evaluated "
                f"and {kept} kept; raise overrides.trainer.keep_checkpoints"
            )
        yield cell


def _find_file(sweep: Sweep, dataset: str) -> str | None:
    """Configuration of a data set; None if there is none but a method's defaults."""
    if sweep.config is not None:
        return sweep.config.replace("{dataset}", dataset)
    beside = f"configs/{dataset}.toml"
    if Path(beside).is_file():
        return beside
    return dataset if dataset in list_configurations() else None


def _flags(overrides: Mapping[str, Json]) -> Iterator[str]:
    """Overrides as ``train`` takes them."""
    for table, values in overrides.items():
        for name, value in values.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                yield f"--{table}.{'' if value else 'no-'}{flag}"
            else:
                given = value if isinstance(value, list | tuple) else [value]
                yield from (f"--{table}.{flag}", *map(str, given))
