"""Planning a store, running the pipeline that writes it, and saying how it went.

Beam and the simulator are imported where they are needed: each takes seconds.
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
from pipeline.store.reader import Store

# What a command says that another one has taken the place of.
ALREADY = "already finished, by another command that took over"
# Starting worker processes takes as long as writing so many rows.
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
) -> StorePlan:
    """Plans a store with the five tasks of a domain.

    Args:
        domain: The data set.
        out: The store.
        inputs: From `look_at`.
        discounts: As of `plan_inputs`.
        options: As of `plan_inputs`.
        action_scale: As of `plan_inputs`.
        versions: As of `plan_inputs`.
        command: As of `plan_inputs`.

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
        tasks=read_tasks(domain),
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
    """Writes a planned store, unless it is there.

    Args:
        output: Where to say so.
        plan: The store.
        workers: Processes on this machine.
        beam_arguments: Beam's own.
        take_over: Whether to go on in the place of a process that may still run.
    """
    from pipeline.beam import pipelines

    tables.print_plan(output.results, plan)
    if find_committed(plan) is None:
        with claim(plan, take_over=take_over) as claimed:
            # Finished since it was looked for, perhaps.
            if find_committed(plan) is None:
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
    say(output.results, f"{plan.root}: already finished, nothing to do")


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
        output: Where to say how it goes.
        plan: The parts.
        workers: Processes on this machine.
        beam_arguments: Beam's own.
        claimed: The claim to write them under.
        define: Puts the pipeline together, given its root, into how many ``runs`` to
            group the parts, whether large inputs are ``divided``, and as ``claimed``
            the claim.
    """
    from pipeline.beam import runners

    def measure() -> tuple[int, str]:
        rows, parts = progress.rows_written(plan)
        return rows, f"{parts} of {len(plan.parts)} parts"

    # A part has one writer.
    runs = len(plan.parts)
    options = runners.make_options(min(workers, runs), beam_arguments)
    # Here all runs begin at once, and none is waited for longer than for the reading of
    # one file.
    divided = not runners.is_local(options)
    if not divided:
        runs = useful_processes(plan, workers)
        options = runners.make_options(runs, beam_arguments)
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
    numbers = {part.index for part in plan.parts}
    parts = [p for p in Store(plan.root).manifest.parts if p.index in numbers]
    dropped = sum(len(e) for part in parts for e in part.dropped.values())
    rows = sum(part.rows for part in parts)
    say(
        output.results,
        f"{plan.root}: finished, {rows:,} rows in {len(parts)} parts, "
        f"{clock.of(rows):,.0f} rows/s"
        + (f", {dropped} bad episodes left out" if dropped else ""),
    )


def run_shown(
    output: Output,
    label: str,
    rows: int,
    measure: Callable[[], tuple[int, str]],
    define: Callable[..., object],
    options: Any,
) -> None:
    """Runs a pipeline, and shows how far it is and what became of a job elsewhere.

    Args:
        output: Where to.
        label: What is being done.
        rows: How many there are to do.
        measure: How many are done, and a remark.
        define: Puts the pipeline together, given its root.
        options: Beam's, from ``runners.make_options``.
    """
    from pipeline.beam import remote, runners

    watch = remote.Watch(functools.partial(say, output.progress), lambda: measure()[0])
    with progress.shown(output.progress, label, rows, measure):
        runners.run(define, options, watch)


def useful_processes(plan: StorePlan, workers: int) -> int:
    """How many processes of this machine write a store soonest.

    A part has one writer, and a small store is written before processes start. One file
    is read from its beginning, so a second process on it does much of the first one's
    work again; and the threads of one keep about two cores busy.

    Args:
        plan: The store.
        workers: Processes asked for.
    """
    files = [sum(part.episodes.rows for part in run) for run in plan.runs(1)]
    sources = round(plan.rows / max(files))
    return min(
        max(sources, workers // 2),
        workers,
        len(plan.parts),
        1 + plan.rows // _ROWS_WORTH_A_PROCESS,
    )


def export_store(output: Output, store: str, npz: str) -> None:
    """Writes a store back as OGBench's npz, and says so."""
    paths = export.export_npz(Store(store), npz)
    for path in paths:
        say(output.results, f"{path}: written")
