"""``relabel``: more tasks or discounts for a store that is there."""

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
    seen_from_anywhere,
)
from pipeline.output import Output, say
from pipeline.store.errors import UsageError

if TYPE_CHECKING:
    from pipeline.store.manifest import Task


@dataclass(frozen=True)
class Relabel:
    """Adds tasks or discounts to a store; observations stay where they are.

    Attributes:
        store: Folder of the store.
        discounts: Discounts to add.
        tasks: Numbers of the tasks to add.
        engine: Where it runs.
        take_over: Go on in the place of another process that has begun to relabel
            the store, which may still run.
    """

    store: StorePath
    discounts: tuple[float, ...] = ()
    tasks: tuple[int, ...] = ()
    engine: Engine = LOCAL
    take_over: Flag = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Writes the new labels, then moves the store over to them."""
        arguments = self.engine.beam_arguments(more)
        self = seen_from_anywhere(self, arguments, "store")
        return self._relabel(output, arguments)

    def _relabel(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.assembly import relabel
        from pipeline.commands import execution
        from pipeline.store import claims, files, manifest
        from pipeline.store.reader import Store

        value = Store(self.store).manifest
        if not self.discounts and not self.tasks:
            raise UsageError("expected --discounts or --tasks to add, got neither")
        tasks = self._tasks(value.dataset, [task.task for task in value.tasks])
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
            claims.clear(self.store, relabel.CLAIM)
            say(output.results, f"{self.store}: holds all of it already")
            return 0
        from pipeline.beam import pipelines, runners

        def measure() -> tuple[int, str]:
            names = {f"parts/{n}" for n in files.list_names(self.store, "parts")}
            ending = f"{plan.parts[0].labels}/{manifest.PART_MANIFEST}"
            folders = (each.part.folder for each in plan.parts)
            done = {folder for folder in folders if f"{folder}/{ending}" in names}
            rows = sum(p.part.rows for p in plan.parts if p.part.folder in done)
            return rows, f"{len(done)} of {len(plan.parts)} parts"

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
            f"{self.store}: now {len(plan.parts[0].tasks)} tasks, discounts "
            f"{', '.join(map(str, plan.parts[0].discounts))}",
        )
        return 0

    def _tasks(self, dataset: str, held: Sequence[int]) -> "tuple[Task, ...]":
        """The tasks to add, read out of the environment: a matter of seconds."""
        from pipeline.domains.datasets import TASKS, parse_dataset

        missing = sorted(set(self.tasks) - set(held))
        if not missing:
            return ()
        if not set(missing) <= set(TASKS):
            raise UsageError(
                f"expected tasks of {', '.join(map(str, TASKS))}, got "
                f"{', '.join(map(str, missing))}"
            )
        domain = parse_dataset(dataset)
        from pipeline.domains.goals import read_tasks

        return read_tasks(domain, tuple(missing))
