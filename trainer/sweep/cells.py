"""What a sweep is: one TOML file, the runs it asks for, and how far each has come.

A cell is one data set, task, method and group of seeds that one program trains. Its
folder is an ordinary run's, and all that is known of it is read from there, so a sweep
needs no record of its own. Nothing here touches a device: the programs of the cells
are to have all of them.
"""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import pydantic

from pipeline.domains.datasets import TASKS
from pipeline.store.decoding import read_first_error
from trainer import config as configuration
from trainer.config import Config, Json, differences, merge_tables, read_toml
from trainer.errors import ConfigError
from trainer.runs.evaluations import EvaluationSettings, read_evaluations
from trainer.runs.folder import METRICS_FILE, RunFolder, open_folder
from trainer.runs.names import name_cell
from trainer.runs.run import read_run

# Enough for the last records of metrics.jsonl.
_TAIL_BYTES = 1 << 16
# Orbax's name for it.
_COMMITTED = "commit_success.txt"
Stage = Literal["new", "begun", "trained", "finished", "differs"]


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
        config: Configuration file of a data set; ``{dataset}`` stands for its name.
        store: Its store, likewise.
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
    config: str = "configs/{dataset}.toml"
    store: str = "stores/{dataset}"
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
        if self.seeds < 1 or (self.seeds_per_run or 1) < 1:
            raise ConfigError("seeds and seeds_per_run: expected at least 1")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: Of its folder.
        folder: RUN.
        method: Name of its method.
        task: Task number.
        config: As its training resolves it.
        train: Arguments of ``python -m trainer`` that train it.
        evaluation: How it is evaluated.
    """

    name: str
    folder: RunFolder
    method: str
    task: int
    config: Config
    train: tuple[str, ...]
    evaluation: CellEvaluation

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
            *(*options, "--steps", *map(str, steps)),
        )


@dataclass(frozen=True)
class State:
    """How far a cell has come.

    Attributes:
        stage: ``"new"``: nothing there. ``"begun"``: not at its last step.
            ``"trained"``: not all evaluated. ``"finished"``: nothing left to do.
            ``"differs"``: its folder holds another run.
        step: Last committed checkpoint.
        missing: Checkpoints to evaluate.
        difference: What differs.
    """

    stage: Stage
    step: int = 0
    missing: tuple[int, ...] = ()
    difference: str = ""

    def __str__(self) -> str:
        """One phrase, for lists."""
        match self.stage:
            case "begun":
                return f"at step {self.step:,}"
            case "trained":
                steps = ", ".join(f"{step:,}" for step in self.missing)
                return f"trained; to evaluate: {steps}"
            case "differs":
                return f"holds another run ({self.difference})"
        return self.stage


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep's file.

    Args:
        path: TOML file of the fields of ``Sweep``.

    Returns:
        The sweep.

    Raises:
        ConfigError: If the file is missing, no TOML, or names what does not exist.
    """
    raw = read_toml(path, missing="no such sweep; see configs/sweeps/")
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
        config=os.path.expanduser(sweep.config),
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
            f"--only: no cell's name is like {only!r}; the first is {cells[0].name}"
        )
    return chosen


def look(cell: Cell) -> State:
    """Reads how far a cell has come.

    Args:
        cell: The cell.

    Returns:
        Its state.

    Raises:
        DataFormatError: If its folder holds files that no run left.
    """
    if not cell.folder.exists():
        return State("new")
    run = read_run(cell.folder)
    difference = "; ".join(
        f"{name}: {there} there, {asked} asked for"
        for name, there, asked in differences(run.config, cell.config)
    )
    if difference:
        return State("differs", difference=difference)
    # Listed, not opened by Orbax, which would take the devices. Half-written steps have
    # longer names on disk, and lack their last object on gs://.
    folder = cell.folder.checkpoints
    there = list(folder.iterdir()) if folder.is_dir() else []
    steps = {int(path.name) for path in there if path.name.isdigit()}
    if cell.folder.remote:
        steps = {step for step in steps if (folder / str(step) / _COMMITTED).exists()}
    if cell.config.trainer.steps not in steps:
        return State("begun", step=max(steps, default=0))
    evaluated = {evaluation.key for evaluation in read_evaluations(cell.folder)}
    missing = tuple(
        step
        for step in cell.evaluated_steps
        if not all(
            cell.evaluation.key(
                step=step,
                seed=seed,
                task=cell.task,
                environment=run.task.environment_id,
            )
            in evaluated
            for seed in cell.seeds
        )
    )
    return State("trained" if missing else "finished", max(steps), missing)


def logged_step(cell: Cell) -> int:
    """Step of the last record of a cell's training; 0 if there is none."""
    records = _last_records(cell)
    step = records[-1].get("step") if records else 0
    return step if isinstance(step, int) else 0


def logged_rates(cell: Cell) -> list[float]:
    """Updates a second at the last log points of a cell's training."""
    rates = [record.get("updates_per_s") for record in _last_records(cell)]
    return [rate for rate in rates if isinstance(rate, int | float) and rate > 0]


def _last_records(cell: Cell) -> list[Json]:
    """The last records of a cell's training, as far as they can be read.

    They are only shown: whatever else reads the records says what is wrong with them.
    """
    try:
        with (cell.folder.path / METRICS_FILE).open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]  # What follows is half a line.
        # So may the first one be.
        records = [json.loads(line) for line in lines[1 if start else 0 :]]
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    return [record for record in records if isinstance(record, dict)]


def _make(sweep: Sweep, dataset: str, task: int, method: str) -> Iterator[Cell]:
    chosen = sweep.methods[method]
    agent = chosen.agent or method
    file = sweep.config.replace("{dataset}", dataset)
    base = configuration.load(file, task=task, agent=agent)
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
            train=(
                *("train", file, "--store", sweep.store.replace("{dataset}", dataset)),
                *("--task", str(task), "--agent", agent, "--out", str(folder)),
                *_flags(overrides),
            ),
            evaluation=sweep.evaluation,
        )
        if len(cell.evaluated_steps) > kept:
            raise ConfigError(
                f"{name}: {len(cell.evaluated_steps)} checkpoints are to be evaluated "
                f"and {kept} kept; raise overrides.trainer.keep_checkpoints"
            )
        yield cell


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
