"""``shard``, ``append`` and ``relabel``: writing stores, and adding to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console

from pipeline import append, progress, relabelling, summary
from pipeline.commands import writing
from pipeline.commands.arguments import (
    Flag,
    Input,
    StorePath,
    UsageError,
    check_workers,
    usage_errors,
)
from pipeline.domains import TASKS, parse_dataset
from pipeline.episodes import PART_ROWS
from pipeline.plan import (
    OnBadEpisode,
    OnBadFile,
    StorePlan,
    look_at,
    plan_inputs,
)
from pipeline.sources.choice import Kind, find_sources
from pipeline.store import files, manifest
from pipeline.store.manifest import Task
from pipeline.store.reader import Store


@dataclass(frozen=True)
class Shard:
    """Writes data as a store: OGBench npz, D4RL HDF5, Minari, or an npz of your own.

    Attributes:
        input: A file, a folder or a glob; a local path or gs://bucket/path. Files
            ending in -val.npz among them or beside them become the validation split.
        dataset: Name of the data set; what OGBench knows, such as cube-single-play,
            is relabelled for its five tasks.
        out: Folder of the store: a local path or gs://bucket/path.
        source: What the input is: ogbench, npz (with rewards of its own), d4rl or
            minari. Inferred from names and content if not given.
        val: Input of the validation split, if it is not called -val.
        environment: Environment to evaluate data with rewards of their own in, if
            it is not called as the data set is.
        success_timing: Of such data: pre if a row is rewarded for its state, post
            if for the state it leads to.
        discounts: Discounts to store return sums for.
        part_rows: Rows aimed at for each part.
        on_bad_episode: What to do with an episode that holds NaN or Inf.
        max_bad_share: Share of the episodes that may be skipped.
        on_bad_file: What to do with a file that is cut short or incomplete.
        workers: Processes on this machine.
        dry_run: Print the plan, with what looks wrong, and stop.
    """

    input: Input
    dataset: str
    out: str
    source: Kind | None = None
    val: str | None = None
    environment: str | None = None
    success_timing: Literal["pre", "post"] = "post"
    discounts: tuple[float, ...] = (0.99,)
    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01
    on_bad_file: OnBadFile = "refuse"
    workers: int = 1
    dry_run: Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Plans, then writes the store."""
        with usage_errors():
            check_workers(self.workers)
        plan = self._plan()
        if self.dry_run:
            summary.print_plan(console, plan)
            _print_beam(console, beam_arguments, self.workers)
        else:
            writing.write_store(console, plan, self.workers, beam_arguments)
        return 0

    def _plan(self) -> StorePlan:
        with usage_errors():
            # A name that OGBench does not know is an error only if it is needed.
            kind, found = find_sources(
                self.input, dataset=self.dataset, kind=self.source, val=self.val
            )
            domain = parse_dataset(self.dataset) if kind == "ogbench" else None
        # Before the simulator is started for the tasks.
        inputs = look_at(found, on_bad_file=self.on_bad_file)
        options: dict[str, Any] = {
            "discounts": self.discounts,
            "part_rows": self.part_rows,
            "on_bad_episode": self.on_bad_episode,
            "max_bad_share": self.max_bad_share,
        }
        if domain is not None:
            return writing.plan_relabelled(domain, self.out, inputs, **options)
        environment_id = self.environment or self.dataset
        task = Task(
            task=1,
            name="stored",
            environment_id=environment_id,
            recipe="stored",
            success_timing=self.success_timing,
        )
        with usage_errors():
            return plan_inputs(
                self.out,
                inputs,
                dataset=self.dataset,
                environment_id=environment_id,
                tasks=[task],
                **options,
            )


@dataclass(frozen=True)
class Append:
    """Adds data of the same kind to a store, as new parts.

    Attributes:
        store: Folder of the store.
        input: A file, a folder or a glob, as of shard; what the store holds already
            is left out.
        source: What the input is: ogbench, npz, d4rl or minari.
        val: Input of the validation split, if it is not called -val.
        part_rows: Rows aimed at for each part.
        on_bad_episode: What to do with an episode that holds NaN or Inf.
        max_bad_share: Share of the new episodes that may be skipped.
        on_bad_file: What to do with a file that is cut short or incomplete.
        workers: Processes on this machine.
        dry_run: Print the plan and stop.
    """

    store: StorePath
    input: Input
    source: Kind | None = None
    val: str | None = None
    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01
    on_bad_file: OnBadFile = "refuse"
    workers: int = 1
    dry_run: Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Plans, writes the new parts and takes them in."""
        dataset = Store(self.store).manifest.dataset
        with usage_errors():
            check_workers(self.workers)
            _, found = find_sources(
                self.input, dataset=dataset, kind=self.source, val=self.val
            )
            plan = append.plan_append(
                self.store,
                look_at(found, on_bad_file=self.on_bad_file),
                part_rows=self.part_rows,
                on_bad_episode=self.on_bad_episode,
                max_bad_share=self.max_bad_share,
            )
        if plan is None:
            console.print(f"{self.store}: holds all of it already", soft_wrap=True)
            return 0
        summary.print_plan(console, plan.added)
        if self.dry_run:
            return 0
        from pipeline import build

        append.claim(plan)
        writing.run_parts(
            console,
            plan.added,
            self.workers,
            beam_arguments,
            lambda root, runs: build.define_appending(root, plan, runs=runs),
        )
        return 0


@dataclass(frozen=True)
class Relabel:
    """Adds tasks or discounts to a store; observations stay where they are.

    Attributes:
        store: Folder of the store.
        discounts: Discounts to add.
        tasks: Numbers of the tasks to add.
        workers: Processes on this machine.
    """

    store: StorePath
    discounts: tuple[float, ...] = ()
    tasks: tuple[int, ...] = ()
    workers: int = 1

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Writes the new labels, then moves the store over to them."""
        value = Store(self.store).manifest
        with usage_errors():
            check_workers(self.workers)
            if not self.discounts and not self.tasks:
                raise UsageError("expected --discounts or --tasks to add, got neither")
            tasks = self._tasks(value.dataset, [task.task for task in value.tasks])
            plan = relabelling.plan_relabelling(
                self.store, tasks=tasks, discounts=self.discounts
            )
        if plan is None:
            console.print(f"{self.store}: holds all of it already", soft_wrap=True)
            return 0
        from pipeline import build, runners

        def measure() -> tuple[int, str]:
            names = files.list_names(self.store, "parts")
            ending = f"{plan.parts[0].labels}/{manifest.PART_MANIFEST}"
            done = [name[:5] for name in names if name.endswith(ending)]
            rows = sum(p.part.rows for p in plan.parts if p.part.folder[-5:] in done)
            return rows, f"{len(done)} of {len(plan.parts)} parts"

        workers = min(self.workers, len(plan.parts))
        options = runners.make_options(workers, beam_arguments)
        with progress.shown(console, "relabel", plan.rows, measure):
            runners.run(lambda root: build.define_relabelling(root, plan), options)
        console.print(
            f"{self.store}: now {len(plan.parts[0].tasks)} tasks, discounts "
            f"{', '.join(map(str, plan.parts[0].discounts))}",
            highlight=False,
            soft_wrap=True,
        )
        return 0

    def _tasks(self, dataset: str, held: Sequence[int]) -> tuple[Task, ...]:
        """The tasks to add, read out of the environment: a matter of seconds."""
        missing = sorted(set(self.tasks) - set(held))
        if not missing:
            return ()
        if not set(missing) <= set(TASKS):
            raise ValueError(
                f"expected tasks of {', '.join(map(str, TASKS))}, got "
                f"{', '.join(map(str, missing))}"
            )
        domain = parse_dataset(dataset)
        from pipeline.relabel import read_tasks

        return read_tasks(domain, tuple(missing))


def _print_beam(console: Console, beam_arguments: Sequence[str], workers: int) -> None:
    """Says what Beam would be told, if it is told anything."""
    if not beam_arguments:
        return
    from pipeline import runners

    with usage_errors():
        options = runners.make_options(workers, beam_arguments)
    for name, value in runners.given(options).items():
        console.print(f"  --{name}={value}", highlight=False, soft_wrap=True)
