"""Plans a store, runs the pipeline that writes it, and reports the result.

Functions import Beam and the simulator only when they need them, since each import
takes seconds.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.assembly.commit import CLAIM, claim, find_committed
from pipeline.assembly.plan import DEFAULTS, Inputs, PlanOptions, StorePlan, plan_inputs
from pipeline.domains.datasets import Domain
from pipeline.inspection import export, progress, tables
from pipeline.output import Output, say
from pipeline.store import claims
from pipeline.store.action_scale import ActionScale
from pipeline.store.claims import Claim
from pipeline.store.manifest import SuccessTiming
from pipeline.store.reader import Store
from pipeline.store.units import format_count

# Message of a command whose claim another command has taken over.
ALREADY = "already finished, by another command that took over"
# A worker process takes as long to start as one process takes to write these rows.
_ROWS_WORTH_A_PROCESS = 1_000_000


def plan_relabelled(
    domain: Domain,
    out: str,
    inputs: Inputs,
    *,
    discounts: Sequence[float],
    options: PlanOptions = DEFAULTS,
    action_scale: ActionScale | None = None,
    versions: Mapping[str, str] | None = None,
    command: str = "",
    success_timing: SuccessTiming = "pre",
) -> StorePlan:
    """Plans a store with the five tasks of a domain.

    Args:
        domain: Domain of the data set.
        out: Folder of the store.
        inputs: Inputs, from `describe_inputs`.
        discounts: Discounts to store return sums for.
        options: Options of the plan.
        action_scale: Scale of the actions; None stores them as they are.
        versions: Versions of packages, as in `plan_inputs`.
        command: Line of the store's history.
        success_timing: State that rewards are to be of, see `Task`.

    Returns:
        The plan.

    Raises:
        UsageError: If an option is out of range.
        DataFormatError: If the inputs do not fit.
    """
    from pipeline.domains.goals import read_tasks

    return plan_inputs(
        out,
        inputs,
        dataset=domain.dataset,
        environment_id=domain.environment_id,
        tasks=read_tasks(domain, success_timing=success_timing),
        discounts=discounts,
        options=options,
        action_scale=action_scale,
        versions=versions,
        command=command,
    )


def write_store(
    output: Output,
    plan: StorePlan,
    workers: int,
    beam_arguments: Sequence[str],
    *,
    take_over: bool,
) -> None:
    """Writes a planned store, unless it is finished already.

    Args:
        output: Consoles.
        plan: Plan of the store.
        workers: Number of processes on this machine.
        beam_arguments: Arguments for Beam.
        take_over: Whether to take the claim of another process, which may still run.
    """
    from pipeline.beam import pipelines

    tables.print_plan(output.results, plan)
    committed = find_committed(plan)
    if committed is None:
        with claim(plan, take_over=take_over) as claimed:
            # Another process may have finished the store before the claim.
            committed = find_committed(plan)
            if committed is None:
                run_parts(
                    output,
                    plan,
                    workers,
                    beam_arguments,
                    claimed,
                    functools.partial(pipelines.define_sharding, plan=plan),
                )
                return
    claims.clear(plan.root, CLAIM)
    # The store may hold more than this command asks for, either from `append` or since
    # it was made from more files, of which these are the first.
    more = committed.planned_parts[len(plan.parts) :]
    rows = sum(part.rows for part in more)
    say(
        output.results,
        f"{plan.root}: already finished, nothing to do"
        + (
            f"; it also holds {rows:,} rows of other input, give another --out for a "
            "store without them"
            if more
            else ""
        ),
    )


def run_parts(
    output: Output,
    plan: StorePlan,
    workers: int,
    beam_arguments: Sequence[str],
    claimed: Claim,
    define: Callable[..., object],
) -> None:
    """Runs a pipeline that writes parts and commits them.

    Args:
        output: Consoles.
        plan: Plan of the parts.
        workers: Number of processes on this machine.
        beam_arguments: Arguments for Beam.
        claimed: Claim under which the parts are written.
        define: Adds the steps to a pipeline; called as `define_sharding` is, without
            the plan.
    """
    from pipeline.beam import runners

    def measure() -> tuple[int, str]:
        rows, parts = progress.rows_written(plan)
        return rows, f"{parts} of {len(plan.parts)} parts"

    # On a cluster every part is a run, so that any number of workers is kept busy.
    runs = len(plan.parts)
    options = runners.make_options(min(workers, runs), beam_arguments)
    divided = not runners.is_local(options)
    if not divided:
        # On this machine there are as many runs as processes. All begin at once and
        # read their files from the beginning, which takes no longer than one file.
        runs = count_useful_processes(plan, workers)
        options = runners.make_options(runs, beam_arguments)
    # Parts that an earlier command finished do not count as speed of this one.
    clock = progress.Rate(measure()[0])
    run_shown(
        output,
        "write",
        plan.rows,
        measure,
        lambda root: define(root, runs=runs, divided=divided, claimed=claimed),
        options,
    )
    if not claimed.stands():
        say(output.results, f"{plan.root}: {ALREADY}")
        return
    # The manifest says what was written even if the runner reports no counters. After
    # an append the store holds other parts as well.
    numbers = {part.index for part in plan.parts}
    planned = Store(plan.root).manifest.planned_parts
    planned = tuple(part for part in planned if part.index in numbers)
    dropped = sum(len(e) for part in planned for e in part.dropped.values())
    parts = [part for part in planned if part.rows]
    rows = sum(part.rows for part in parts)
    say(
        output.results,
        f"{plan.root}: finished, {format_count(rows, 'row')} in "
        f"{format_count(len(parts), 'part')}, {clock.of(rows):,.0f} rows/s"
        + (f", {format_count(dropped, 'bad episode')} left out" if dropped else ""),
    )


def run_shown(
    output: Output,
    label: str,
    rows: int,
    measure: Callable[[], tuple[int, str]],
    define: Callable[..., object],
    options: Any,
) -> None:
    """Runs a pipeline, and shows its progress and losses of its job.

    Args:
        output: Consoles.
        label: Name of the work, at the beginning of the progress line.
        rows: Number of rows in total.
        measure: Returns the number of rows that are finished, and a remark.
        define: Adds the steps to a pipeline.
        options: Beam's options, from `runners.make_options`.
    """
    from pipeline.beam import remote, runners

    watch = remote.Watch(functools.partial(say, output.progress), lambda: measure()[0])
    with progress.show_progress(output.progress, label, rows, measure):
        runners.run(define, options, watch)


def count_useful_processes(plan: StorePlan, workers: int) -> int:
    """Counts the processes that write a store fastest on this machine.

    More processes do not help if there are fewer parts, or if the store is so small
    that one process writes it before others have started. Nor do many processes help
    for one file: each reads the file from its beginning, and repeats much of the work
    of the others. Since the threads of a process keep about two cores busy, a process
    for every two workers is then enough.

    Args:
        plan: Plan of the store.
        workers: Number of processes that the user allows.
    """
    files = [sum(part.episodes.rows for part in run) for run in plan.runs(1)]
    # Small files, such as a validation split, count as fractions of the largest.
    sources = round(plan.rows / max(files))
    return min(
        max(sources, workers // 2),
        workers,
        len(plan.parts),
        1 + plan.rows // _ROWS_WORTH_A_PROCESS,
    )


def export_store(output: Output, store: str, npz: str) -> None:
    """Writes a store as OGBench's npz, and prints the paths of the files."""
    paths = export.export_npz(Store(store), npz)
    for path in paths:
        say(output.results, f"{path}: written")
