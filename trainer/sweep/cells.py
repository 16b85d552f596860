"""The configuration of a sweep, one TOML file, and the cells that it asks for.

A cell is one run: a data set, a task, a method and a group of seeds that one program
trains. Cells are planned without JAX, so that a machine that only launches can do it.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
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
from trainer.runs.names import flatten, name_cell
from trainer.shipped import find_sweep, list_configurations, list_sweeps
from trainer.toml_tables import Json, merge_tables, read_toml


@dataclass(frozen=True)
class Method:
    """One column of the grid.

    Attributes:
        agent: Name of the agent; None if the method is named after it.
        overrides: Tables of ``Config`` that override those of the sweep.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    agent: str | None = None
    overrides: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class CellEvaluation(EvaluationSettings):
    """Settings with which every cell of a sweep is evaluated.

    Attributes:
        checkpoints: Number of the last checkpoints of each cell that are evaluated.
    """

    checkpoints: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoints < 1:
            raise ConfigError(
                f"evaluation.checkpoints: expected at least 1, got {self.checkpoints}"
            )


@dataclass(frozen=True)
class SweepConfig:
    """The configuration of a sweep; paths are relative to the working directory.

    Attributes:
        out: Folder that holds the cells' folders, a local path or ``gs://bucket/path``.
        datasets: Names of the data sets, such as ``"cube-single-play"``.
        methods: Methods by name. The name is that of an agent, unless the method has an
            ``agent``.
        config: Configuration of a data set, a file or the name of a shipped one;
            ``{dataset}`` stands for the data set's name. None takes
            ``configs/{dataset}.toml`` if that file exists, else the shipped
            configuration, else the method's defaults.
        store: Store of a data set; ``{dataset}`` stands for the data set's name.
        environment: Environment to evaluate in if it is not the store's: ``"ID"``, or
            ``"MODULE:ID"`` to import the module that registers it. A sweep's file is
            trusted as much as a command line is.
        environment_arguments: Arguments of the environment, by name.
        tasks: Task numbers.
        seed: First seed.
        seeds: Number of seeds.
        seeds_per_run: Number of seeds trained side by side in one program; None trains
            all of them in one.
        overrides: Tables of ``Config`` that override those of every cell.
        evaluation: Settings with which every cell is evaluated.
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
        # Two equal entries would be two cells that train in one folder.
        for name in ("datasets", "tasks"):
            values = [flatten(str(value)) for value in getattr(self, name)]
            if len(set(values)) < len(values):
                raise ConfigError(
                    f"{name}: expected each value once, got {getattr(self, name)}"
                )
        if min(self.tasks) < 1:
            raise ConfigError(f"tasks: expected numbers from 1, got {self.tasks}")
        counts = self.seeds, self.seeds_per_run
        if any(count is not None and count < 1 for count in counts):
            raise ConfigError("seeds and seeds_per_run: expected at least 1")
        if self.environment_arguments and self.environment is None:
            raise ConfigError("environment_arguments: expected `environment` beside it")
        # Called for its errors: a wrong name is refused before any cell is trained.
        self.read_environment()

    def read_environment(self) -> TaskEnvironment | None:
        """Reads the environment that cells are evaluated in; None for the stores'.

        Raises:
            UsageError: If the text is not the name of an environment.
        """
        if self.environment is None:
            return None
        arguments = format_arguments(self.environment_arguments)
        return parse_environment(self.environment, arguments)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: Name of the cell and its folder.
        folder: Folder of the run.
        method: Name of the method.
        task: Task number.
        config: Configuration, as ``train`` will resolve it.
        file: Configuration for ``train``, a file or a name; None takes the method's
            defaults.
        store: Trajectory store.
        agent: Name of the agent to train.
        overrides: Options of ``train`` that override the configuration.
        evaluation: Settings of the evaluation.
        environment: Environment to evaluate in; None takes the store's.
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
        """Training seeds of the run."""
        return self.config.trainer.seed_range

    @property
    def evaluated_steps(self) -> tuple[int, ...]:
        """Steps of the checkpoints that are to be evaluated, ascending."""
        trainer = self.config.trainer
        every = trainer.checkpoint_every
        # The last step is saved even if it is no multiple of ``checkpoint_every``.
        saved = {*range(every, trainer.steps + 1, every), trainer.steps}
        return tuple(sorted(saved)[-self.evaluation.checkpoints :])

    @property
    def train_arguments(self) -> tuple[str, ...]:
        """Arguments of ``python -m trainer`` that train the cell."""
        file = () if self.file is None else (self.file,)
        return (
            *("train", *file, "--store", self.store, "--task", str(self.task)),
            *("--agent", self.agent, "--out", str(self.folder)),
            *(*self.environment_options, *self.overrides),
        )

    @property
    def environment_options(self) -> tuple[str, ...]:
        """Options of ``train`` and ``evaluate`` that name the environment."""
        if self.environment is None:
            return ()
        module, name = self.environment.module, self.environment.environment_id
        options = ("--environment", f"{module}:{name}" if module else name)
        arguments = format_arguments(self.environment.kwargs)
        if not arguments:
            return options
        return (*options, "--environment-arguments", *arguments)

    def make_evaluate_arguments(self, steps: Sequence[int]) -> tuple[str, ...]:
        """Makes arguments of ``python -m trainer`` that evaluate some checkpoints."""
        settings = self.evaluation
        workers = settings.workers
        return (
            *("evaluate", str(self.folder), "--episodes", str(settings.episodes)),
            *(() if workers is None else ("--workers", str(workers))),
            *self.make_evaluation_options(steps),
        )

    def make_evaluation_options(self, steps: Sequence[int]) -> tuple[str, ...]:
        """Makes options of ``evaluate`` that a launcher has no options of its own for.

        Args:
            steps: Steps of the checkpoints to evaluate.

        Returns:
            All options but the numbers of episodes and of processes.
        """
        settings = self.evaluation
        scores = settings.reference_scores
        return (
            *("--seed", str(settings.seed)),
            *("--environments", str(settings.environments)),
            *(() if scores is None else ("--reference-scores", *map(str, scores))),
            *(*self.environment_options, "--steps", *map(str, steps)),
        )


def read_sweep(
    path: Path, *, out: str | None = None, store: str | None = None
) -> SweepConfig:
    """Reads the file of a sweep.

    Args:
        path: TOML file with the fields of ``SweepConfig``, or the name of a shipped
            one, such as ``table-1``.
        out: Folder of the cells' folders in place of the file's.
        store: Store of a data set in place of the file's.

    Returns:
        The sweep.

    Raises:
        ConfigError: If the file is missing or not TOML, or a field does not exist or
            has a wrong value.
    """
    path = find_sweep(path)
    raw = read_toml(
        path,
        missing=f"no such sweep; those that are shipped: {', '.join(list_sweeps())}",
    )
    # Unknown keys are errors, and pydantic's first error is enough for one line.
    try:
        sweep = pydantic.TypeAdapter(SweepConfig).validate_python(raw)
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        place = f"{first.place}: " if first.place else ""
        raise ConfigError(f"{path}: {place}{first.message}") from error
    # A shell replaces ``~`` in arguments, but no shell has seen these paths.
    return replace(
        sweep,
        out=os.path.expanduser(out or sweep.out),
        config=sweep.config and os.path.expanduser(sweep.config),
        store=os.path.expanduser(store or sweep.store),
    )


def make_cells(sweep: SweepConfig, *, only: str = "*") -> list[Cell]:
    """Makes the cells of a sweep, resolving and checking each configuration.

    Args:
        sweep: The sweep.
        only: Pattern of the names of cells, with a shell's wildcards.

    Returns:
        The cells by data set, then task, then method, then seeds. In this order methods
        can be compared on the first task before the last task has begun.

    Raises:
        ConfigError: If a cell has no configuration, or no name matches the pattern.
    """
    # All cells are made before some are chosen: a mistake in the file is found although
    # the pattern leaves its cell out.
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
            f"--only: expected the pattern of some cell's name, got {only!r}; the "
            f"first cell is {cells[0].name}"
        )
    return chosen


def _make(sweep: SweepConfig, dataset: str, task: int, method: str) -> Iterator[Cell]:
    """Makes the cells of one data set, task and method, one for each group of seeds."""
    settings = sweep.methods[method]
    agent = settings.agent or method
    file = _find_file(sweep, dataset)
    base = configuration.resolve(
        file, task=task, agent=agent, dataset=dataset, prog="sweep"
    ).config
    if base.dataset != dataset:
        raise ConfigError(
            f"{file}: expected the configuration of {dataset}, got one of "
            f"{base.dataset}; put {{dataset}} into the sweep's `config`"
        )
    # The last group of seeds may be smaller than the others.
    size = sweep.seeds_per_run or sweep.seeds
    end = sweep.seed + sweep.seeds
    for first in range(sweep.seed, end, size):
        last = min(first + size, end) - 1
        name = name_cell(dataset, task, method, range(first, last + 1))
        # Later tables override earlier ones: the method's those of the sweep, and the
        # group's seeds all others.
        overrides = functools.reduce(
            merge_tables,
            (
                sweep.overrides,
                settings.overrides,
                {"trainer": {"seed": first, "seeds": last - first + 1}},
            ),
        )
        # `train` will get the overrides as options. They are decoded here to refuse a
        # mistake before any cell is trained.
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
            overrides=tuple(_make_options(overrides)),
            evaluation=sweep.evaluation,
            environment=sweep.read_environment(),
        )
        # The first of these checkpoints would be deleted before the training ends.
        if len(cell.evaluated_steps) > kept:
            raise ConfigError(
                f"{name}: {len(cell.evaluated_steps)} checkpoints are to be evaluated "
                f"and {kept} kept; raise overrides.trainer.keep_checkpoints"
            )
        yield cell


def _find_file(sweep: SweepConfig, dataset: str) -> str | None:
    """Finds the configuration of a data set; None if it has none."""
    # A user's own file comes before a shipped one of the same name.
    if sweep.config is not None:
        return sweep.config.replace("{dataset}", dataset)
    beside = f"configs/{dataset}.toml"
    if Path(beside).is_file():
        return beside
    return dataset if dataset in list_configurations() else None


def _make_options(overrides: Mapping[str, Json]) -> Iterator[str]:
    """Turns overriding tables into options of ``train``."""
    for table, settings in overrides.items():
        for name, value in settings.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                yield f"--{table}.{'' if value else 'no-'}{option}"
            else:
                values = value if isinstance(value, list | tuple) else [value]
                yield from (f"--{table}.{option}", *map(str, values))
