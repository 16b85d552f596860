"""``relabel``: adds tasks or discounts to an existing store."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.commands.arguments import (
    LOCAL,
    Engine,
    Flag,
    StorePath,
    describe,
    make_paths_absolute,
)
from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from pipeline.store.units import format_count

if TYPE_CHECKING:
    from pipeline.store.manifest import Task


@dataclass(frozen=True)
class Relabel:
    """Adds tasks or discounts to a store; observations stay where they are.

    Attributes:
        store: Folder of the store.
        discounts: Discounts to add.
        tasks: Numbers of the tasks to add.
        engine: Runner of the pipeline.
        take_over: Continue in the place of another relabel of this store, which may
            still run.
    """

    store: StorePath
    discounts: tuple[float, ...] = ()
    tasks: tuple[int, ...] = ()
    engine: Engine = LOCAL
    take_over: Flag = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Writes the new labels, then commits them to the store."""
        arguments = self.engine.beam_arguments(more)
        self = make_paths_absolute(self, arguments, "store")
        return self._relabel(output, arguments)

    def _relabel(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.assembly import relabel
        from pipeline.commands import execution
        from pipeline.store import claims, files
        from pipeline.store.manifest import PART_MANIFEST
        from pipeline.store.reader import Store

        manifest = Store(self.store).manifest
        if not self.discounts and not self.tasks:
            raise UsageError(
                "expected --discounts or --tasks to add, got neither; give one of them"
            )
        tasks = self._read_tasks(manifest.dataset, manifest.tasks)
        plan = relabel.plan_relabelling(
            self.store,
            tasks=tasks,
            discounts=self.discounts,
            command=describe(
                "relabel",
                tasks=sorted(set(self.tasks)),
                discounts=sorted(set(self.discounts)),
            ),
        )
        if plan is None:
            # A relabel that was killed after its commit left its claim.
            claims.clear(self.store, relabel.CLAIM)
            say(output.results, f"{self.store}: holds these labels already")
            return 0
        from pipeline.beam import pipelines, runners

        # A part is finished once its new labels have a manifest. One listing of all
        # parts finds them, also those that workers on other machines write.
        def measure() -> tuple[int, str]:
            names = {f"parts/{n}" for n in files.list_names(self.store, "parts")}
            ending = f"{plan.parts[0].labels}/{PART_MANIFEST}"
            parts = [labels_plan.part for labels_plan in plan.parts]
            done = [part for part in parts if f"{part.folder}/{ending}" in names]
            rows = sum(part.rows for part in done)
            return rows, f"{len(done)} of {len(parts)} parts"

        workers = min(self.engine.workers, len(plan.parts))
        options = runners.make_options(workers, beam_arguments)
        define = functools.partial(pipelines.define_relabelling, plan=plan)
        with relabel.claim(plan, take_over=self.take_over) as claimed:
            execution.run_shown(
                output,
                "relabel",
                plan.rows,
                measure,
                lambda root: define(root, claimed=claimed),
                options,
            )
            if not claimed.stands():
                say(output.results, f"{self.store}: {execution.ALREADY}")
                return 0
        say(
            output.results,
            f"{self.store}: now {format_count(len(plan.parts[0].tasks), 'task')}, "
            f"discounts {', '.join(map(str, plan.parts[0].discounts))}",
        )
        return 0

    def _read_tasks(self, dataset: str, held: "Sequence[Task]") -> "tuple[Task, ...]":
        """Reads the tasks to add from the environment, which takes seconds."""
        from pipeline.domains.datasets import TASKS, parse_dataset

        missing = sorted(set(self.tasks) - {task.task for task in held})
        if not missing:
            return ()
        if not set(missing) <= set(TASKS):
            raise UsageError(
                f"--tasks: expected tasks of {', '.join(map(str, TASKS))}, got "
                f"{', '.join(map(str, missing))}"
            )
        if held[0].recipe == "stored":
            raise UsageError(
                f"--tasks: expected a store of OGBench's data, got {self.store} of "
                f"{dataset}, whose rewards came with the data; shard data with a "
                "column of rewards for each task"
            )
        domain = parse_dataset(dataset)
        from pipeline.domains.goals import read_tasks

        # All tasks of a store are labelled at one moment.
        return read_tasks(domain, tuple(missing), success_timing=held[0].success_timing)
