"""``append``: more data for a store that is there."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.commands.arguments import (
    LOCAL,
    Engine,
    Flag,
    Input,
    StorePath,
    describe,
    seen_from_anywhere,
)
from pipeline.output import Output, say
from pipeline.sources.options import (
    PART_ROWS,
    OnBadEpisode,
    OnBadFile,
    OnKnownEpisode,
)


@dataclass(frozen=True)
class Append:
    """Adds data of the same kind to a store, as new parts.

    Attributes:
        store: Folder of the store.
        input: A file, a folder or a glob, as of shard; a file whose content the store
            holds already is left out.
        source: What the input is, as of shard.
        val: Input of the validation split, if it is not called -val.
        part_rows: Rows aimed at for each part.
        on_bad_episode: What to do with an episode that cannot be trained on: of NaN,
            Inf, values too large for float32, or actions outside their bounds.
        max_bad_share: Share of the new episodes that may be skipped.
        on_bad_file: What to do with a file that is cut short or incomplete.
        on_known_episode: What to do where the store holds an episode already, by its
            observations and actions: refuse all, or keep it twice.
        engine: Where it runs.
        take_over: As of shard.
        dry_run: Print the plan and stop.
    """

    store: StorePath
    input: Input
    source: str | None = None
    val: str | None = None
    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01
    on_bad_file: OnBadFile = "refuse"
    on_known_episode: OnKnownEpisode = "refuse"
    engine: Engine = LOCAL
    take_over: Flag = False
    dry_run: Flag = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Plans, writes the new parts and takes them in."""
        arguments = self.engine.beam_arguments(more)
        self = seen_from_anywhere(self, arguments, "store", "input", "val")
        return self._append(output, arguments)

    def _append(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.assembly import append
        from pipeline.assembly.plan import PlanOptions, look_at
        from pipeline.commands import execution
        from pipeline.inspection import tables
        from pipeline.sources.detection import find_sources
        from pipeline.store import claims
        from pipeline.store.reader import Store

        dataset = Store(self.store).manifest.dataset
        _, found = find_sources(
            self.input, dataset=dataset, kind=self.source, val=self.val
        )
        plan = append.plan_append(
            self.store,
            look_at(found, on_bad_file=self.on_bad_file),
            PlanOptions(self.part_rows, self.on_bad_episode, self.max_bad_share),
            on_known_episode=self.on_known_episode,
            command=describe(
                "append",
                part_rows=self.part_rows,
                on_bad_episode=self.on_bad_episode,
                on_bad_file=self.on_bad_file,
                on_known_episode=self.on_known_episode,
            ),
        )
        if plan is None:
            claims.clear(self.store, append.CLAIM)
            say(output.results, f"{self.store}: holds all of it already")
            return 0
        tables.print_plan(output.results, plan.added)
        if self.dry_run:
            return 0
        from pipeline.beam import pipelines

        with append.claim(plan, take_over=self.take_over) as claimed:
            execution.run_parts(
                output,
                plan.added,
                self.engine.workers,
                beam_arguments,
                claimed,
                functools.partial(pipelines.define_appending, plan=plan),
            )
        return 0
