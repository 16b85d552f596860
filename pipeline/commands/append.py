"""``append``: adds data to an existing store."""

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
    list_input_paths,
    make_paths_absolute,
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
        input: File, folder or glob, as for shard. Files whose content the store already
            holds are left out.
        source: Kind of the input, as for shard.
        val: Input of the validation split, if its name does not end in -val.
        part_rows: Target number of rows in each part.
        on_bad_episode: Action for an episode that cannot be trained on, because it
            holds NaN, Inf, values too large for float32, or actions outside their
            bounds.
        max_bad_share: Largest share of the new episodes that may be skipped.
        on_bad_file: Action for a file that is cut short or incomplete.
        on_known_episode: Action for an episode whose observations and actions the store
            already holds: refuse the command, or keep the episode twice.
        engine: Runner of the pipeline.
        take_over: Continue in the place of another append to this store, which may
            still run.
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
        """Plans the new parts, writes them, and adds them to the store."""
        arguments = self.engine.beam_arguments(more)
        paths = "store", *list_input_paths(self.source)
        self = make_paths_absolute(self, arguments, *paths)
        return self._append(output, arguments)

    def _append(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.assembly import append
        from pipeline.assembly.plan import PlanOptions, describe_inputs
        from pipeline.commands import execution
        from pipeline.inspection import tables
        from pipeline.sources.detection import find_sources
        from pipeline.store import claims
        from pipeline.store.reader import Store

        dataset = Store(self.store).manifest.dataset
        _, sources = find_sources(
            self.input, dataset=dataset, kind=self.source, val=self.val
        )
        plan = append.plan_append(
            self.store,
            describe_inputs(sources, on_bad_file=self.on_bad_file),
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
            # An append that was killed after its commit left its claim.
            claims.clear(self.store, append.CLAIM)
            say(output.results, f"{self.store}: holds all of this input already")
            return 0
        tables.print_plan(output.results, plan.added)
        if self.dry_run:
            return 0
        # Beam takes seconds to import, which a dry run should not wait for.
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
