"""``shard``: data of others, written as a store."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.commands.arguments import (
    LOCAL,
    Engine,
    Flag,
    Input,
    describe,
    seen_from_anywhere,
)
from pipeline.output import Output, say
from pipeline.sources.options import PART_ROWS, OnBadEpisode, OnBadFile

if TYPE_CHECKING:
    from pipeline.assembly.plan import StorePlan


@dataclass(frozen=True)
class Shard:
    """Writes data as a store: of any kind that the command inputs lists, or your own.

    Attributes:
        input: A file, a folder or a glob; a local path or gs://bucket/path. Files
            ending in -val.npz among them or beside them become the validation split.
        dataset: Name of the data set; what OGBench knows, such as cube-single-play,
            is relabelled for its five tasks.
        out: Folder of the store: a local path or gs://bucket/path.
        source: What the input is, of the kinds that the command inputs lists, or
            module:Class, a reader of your own. Inferred from names and content if
            not given.
        val: Input of the validation split, if it is not called -val.
        environment: Environment to evaluate data with rewards of their own in, if
            it is not the one that Minari's data name, nor called as the data set is;
            `set-environment` compares one with the data.
        success_timing: Of such data: pre if a row is rewarded for its state, post
            if for the state it leads to.
        discounts: Discounts to store return sums for.
        action_bounds: Bounds of the actions, where they are not -1 and 1, to store
            them scaled: LOW HIGH, or data to read them off the data, component by
            component. Acting scales back.
        part_rows: Rows aimed at for each part.
        on_bad_episode: What to do with an episode that cannot be trained on: of NaN,
            Inf, values too large for float32, or actions outside their bounds.
        max_bad_share: Share of the episodes that may be skipped.
        on_bad_file: What to do with a file that is cut short or incomplete.
        engine: Where it runs.
        take_over: Go on in the place of another process that has begun to write
            here, which may still run.
        dry_run: Print the plan, with what looks wrong, and stop.
    """

    input: Input
    dataset: str
    out: str
    source: str | None = None
    val: str | None = None
    environment: str | None = None
    success_timing: Literal["pre", "post"] = "post"
    discounts: tuple[float, ...] = (0.99,)
    action_bounds: tuple[str, ...] = ()
    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01
    on_bad_file: OnBadFile = "refuse"
    engine: Engine = LOCAL
    take_over: Flag = False
    dry_run: Flag = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Plans, then writes the store."""
        arguments = self.engine.beam_arguments(more)
        self = seen_from_anywhere(self, arguments, "input", "val", "out")
        return self._shard(output, arguments)

    def _shard(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.commands import execution
        from pipeline.inspection import tables
        from pipeline.store.folder import check_folder

        check_folder(self.out)  # Before the input is looked through.
        plan = self._plan(output)
        if self.dry_run:
            tables.print_plan(output.results, plan)
            _print_beam(output, beam_arguments, self.engine.workers)
        else:
            execution.write_store(
                output,
                plan,
                self.engine.workers,
                beam_arguments,
                take_over=self.take_over,
            )
        return 0

    def _plan(self, output: Output) -> "StorePlan":
        from pipeline.assembly.actions import choose_scale
        from pipeline.assembly.labels import count_tasks
        from pipeline.assembly.plan import PlanOptions, look_at, plan_inputs
        from pipeline.commands import execution
        from pipeline.domains.datasets import parse_dataset
        from pipeline.domains.environments import check_environment_id
        from pipeline.sources.detection import find_sources
        from pipeline.store.manifest import Task

        # A name that OGBench does not know is an error only if it is needed.
        kind, found = find_sources(
            self.input, dataset=self.dataset, kind=self.source, val=self.val
        )
        domain = parse_dataset(self.dataset) if kind == "ogbench" else None
        # Before the simulator is started for the tasks.
        inputs = look_at(found, on_bad_file=self.on_bad_file)
        options = PlanOptions(self.part_rows, self.on_bad_episode, self.max_bad_share)
        scale = choose_scale(inputs, self.action_bounds)
        command = describe(
            "shard",
            dataset=self.dataset,
            environment=self.environment if domain is None else None,
            success_timing=self.success_timing if domain is None else None,
            discounts=sorted(set(self.discounts)),
            part_rows=self.part_rows,
            on_bad_episode=self.on_bad_episode,
            on_bad_file=self.on_bad_file,
            action_bounds=self.action_bounds,
        )
        if domain is not None:
            return execution.plan_relabelled(
                domain,
                self.out,
                inputs,
                discounts=self.discounts,
                options=options,
                action_scale=scale,
                command=command,
            )
        environment_id, arguments, scores = self.environment or self.dataset, {}, None
        told = (facts.environment for _, _, facts in inputs.found)
        recorded = next((each for each in told if each is not None), None)
        if recorded is not None and self.environment is None:
            say(output.progress, str(recorded))
            environment_id, arguments = recorded.environment_id, recorded.arguments
            scores = recorded.reference_scores
        check_environment_id(environment_id)
        count = count_tasks(inputs.found[0][2].fields)
        tasks = [
            Task(
                task=number,
                name="stored" if count == 1 else f"stored_{number}",
                environment_id=environment_id,
                environment_kwargs=arguments,
                recipe="stored",
                success_timing=self.success_timing,
            )
            for number in range(1, count + 1)
        ]
        plan = plan_inputs(
            self.out,
            inputs,
            dataset=self.dataset,
            environment_id=environment_id,
            tasks=tasks,
            discounts=self.discounts,
            options=options,
            action_scale=scale,
            command=command,
        )
        return dataclasses.replace(plan, reference_scores=scores)


def _print_beam(output: Output, beam_arguments: Sequence[str], workers: int) -> None:
    """Says what Beam would be told, if it is told anything."""
    if not beam_arguments:
        return
    from pipeline.beam import runners

    options = runners.make_options(workers, beam_arguments)
    for name, value in runners.given(options).items():
        say(output.results, f"  --{name}={value}")
