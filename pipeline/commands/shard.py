"""``shard``: writes existing data as a store."""

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
    list_input_paths,
    make_paths_absolute,
)
from pipeline.output import Output, say
from pipeline.sources.options import PART_ROWS, OnBadEpisode, OnBadFile
from pipeline.store.errors import UsageError

if TYPE_CHECKING:
    from pipeline.assembly.plan import StorePlan


@dataclass(frozen=True)
class Shard:
    """Writes data as a store; the command inputs lists the kinds of data it reads.

    Attributes:
        input: File, folder or glob: a local path or gs://bucket/path. Files ending in
            -val.npz among them or beside them become the validation split.
        dataset: Name of the data set. Data of OGBench, such as cube-single-play, are
            relabelled for OGBench's five tasks.
        out: Folder of the store: a local path or gs://bucket/path.
        source: Kind of the input, as the command inputs lists them, or MODULE:CLASS, a
            reader of your own. By default it is inferred from names and content.
        val: Input of the validation split, if its name does not end in -val.
        environment: ID of the environment to evaluate in, for data with rewards. By
            default it is the one that the data name, as Minari's do, or the name of the
            data set. The command set-environment compares an environment with the data.
        success_timing: State that a row's reward belongs to: pre for the row's own
            state, post for the state that its action leads to. By default pre for data
            of OGBench, as in its single-task data sets, and post for data with rewards.
        discounts: Discounts to store return sums for.
        action_bounds: Bounds of the actions, if they are not -1 and 1: LOW HIGH, or the
            word data for the bounds of each component in the data. Actions are stored
            scaled to -1 and 1, and scaled back when a policy acts.
        part_rows: Target number of rows in each part.
        on_bad_episode: Action for an episode that cannot be trained on, because it
            holds NaN, Inf, values too large for float32, or actions outside their
            bounds.
        max_bad_share: Largest share of the episodes that may be skipped.
        on_bad_file: Action for a file that is cut short or incomplete.
        engine: Runner of the pipeline.
        take_over: Continue in the place of another process that writes to this folder,
            and may still run.
        dry_run: Print the plan, with what looks wrong, and stop.
    """

    input: Input
    dataset: str
    out: str
    source: str | None = None
    val: str | None = None
    environment: str | None = None
    success_timing: Literal["pre", "post"] | None = None
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
        """Plans the store, then writes it."""
        arguments = self.engine.beam_arguments(more)
        paths = "out", *list_input_paths(self.source)
        self = make_paths_absolute(self, arguments, *paths)
        return self._shard(output, arguments)

    def _shard(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.commands import execution
        from pipeline.inspection import tables
        from pipeline.store.folder import check_folder

        # This check takes no time, and looking through the input may take minutes.
        check_folder(self.out)
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
        """Plans the store: with OGBench's tasks, or with the rewards of the data."""
        from pipeline.assembly.actions import choose_scale
        from pipeline.assembly.labels import count_tasks
        from pipeline.assembly.plan import PlanOptions, describe_inputs, plan_inputs
        from pipeline.commands import execution
        from pipeline.domains.datasets import parse_dataset
        from pipeline.domains.environments import check_environment_id
        from pipeline.sources.detection import find_sources
        from pipeline.store.manifest import Task

        kind, sources = find_sources(
            self.input, dataset=self.dataset, kind=self.source, val=self.val
        )
        # Data of other kinds may have any name.
        domain = parse_dataset(self.dataset) if kind == "ogbench" else None
        if domain is not None and self.environment is not None:
            raise UsageError(
                "--environment: expected none for data of OGBench, whose tasks have "
                f"environments of their own, got {self.environment}; leave it out, or "
                "give it to `train` or `evaluate`"
            )
        # Bad inputs are refused here, before the simulator starts to read tasks.
        inputs = describe_inputs(sources, on_bad_file=self.on_bad_file)
        options = PlanOptions(self.part_rows, self.on_bad_episode, self.max_bad_share)
        scale = choose_scale(inputs, self.action_bounds)
        timing = self.success_timing or ("post" if domain is None else "pre")
        command = describe(
            "shard",
            dataset=self.dataset,
            environment=self.environment,
            # Histories of OGBench's data say nothing of its usual timing.
            success_timing=timing if domain is None or timing != "pre" else None,
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
                success_timing=timing,
            )
        environment_id, arguments, scores = self.environment or self.dataset, {}, None
        environments = (
            description.environment for _, _, description in inputs.described
        )
        recorded = next(filter(None, environments), None)
        if recorded is not None and self.environment is None:
            say(output.progress, str(recorded))
            environment_id, arguments = recorded.environment_id, recorded.arguments
            scores = recorded.reference_scores
        if ":" in (self.environment or ""):
            raise UsageError(
                f"--environment: expected ID, got {self.environment}: sharding imports "
                "no module; leave it out, and name both to `set-environment` afterwards"
            )
        check_environment_id(environment_id)
        count = count_tasks(inputs.described[0][2].fields)
        tasks = [
            Task(
                task=number,
                name="stored" if count == 1 else f"stored_{number}",
                environment_id=environment_id,
                environment_kwargs=arguments,
                recipe="stored",
                success_timing=timing,
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
    """Prints the options for Beam, if the user gave any."""
    if not beam_arguments:
        return
    from pipeline.beam import runners

    options = runners.make_options(workers, beam_arguments)
    for name, value in runners.given_options(options).items():
        say(output.results, f"  --{name}={value}")
