"""The totals of a sweep: cells, runs, updates, and hours at measured rates."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.store.units import format_duration
from trainer.runs.evaluations import read_evaluations
from trainer.sweep.cells import Cell
from trainer.sweep.states import State, read_logged_rates


@dataclass(frozen=True)
class Rates:
    """Measured speeds of the cells of a sweep.

    Attributes:
        updates_per_s: Updates of a cell per second, by method; an update is one of all
            seeds of the cell. Methods that have not trained are missing.
        evaluation_s: Mean seconds to evaluate one seed and checkpoint; None if nothing
            was evaluated.
    """

    updates_per_s: dict[str, float]
    evaluation_s: float | None


def measure_rates(cells: Sequence[Cell], states: Sequence[State]) -> Rates:
    """Reads the speeds of cells; medians over log points, then over cells."""
    # A mean would follow the first log points, which include the compilation.
    rates: dict[str, list[float]] = defaultdict(list)
    durations = []
    for cell, state in zip(cells, states, strict=True):
        # Records in the folder of a cell that differs are of another run.
        if state.stage in ("new", "differs"):
            continue
        logged = read_logged_rates(cell)
        if logged:
            rates[cell.method].append(statistics.median(logged))
        durations += [result.duration_s for result in read_evaluations(cell.folder)]
    return Rates(
        {method: statistics.median(medians) for method, medians in rates.items()},
        statistics.mean(durations) if durations else None,
    )


def count_updates_left(cell: Cell, state: State) -> int:
    """Counts the updates that a cell still lacks."""
    if state.stage in ("trained", "finished", "differs"):
        return 0
    return max(0, cell.config.trainer.steps - state.step)


def describe_totals(
    cells: Sequence[Cell],
    states: Sequence[State],
    rates: Rates,
    *,
    jobs: int,
    updates_per_s: float | None = None,
) -> list[str]:
    """Describes the work of a sweep: in all, and what is left with its hours.

    Args:
        cells: Cells of the sweep.
        states: State of each cell.
        rates: Measured speeds.
        jobs: Number of cells that run side by side.
        updates_per_s: Speed of methods without a measured one; None if the user gave
            none.

    Returns:
        The lines of the description.
    """
    stages = [state.stage for state in states]
    counts = ", ".join(
        f"{stages.count(stage)} {stage}"
        for stage in ("finished", "trained", "begun", "new", "differs")
        if stage in stages
    )
    runs = sum(len(cell.seeds) for cell in cells)
    lines = [f"{len(cells)} cells with {runs} training seeds: {counts}"]
    left_s, evaluations, updates = 0.0, 0, 0
    unknown: dict[str, int] = defaultdict(int)
    used: dict[str, float] = {}
    for cell, state in zip(cells, states, strict=True):
        lacking = count_updates_left(cell, state)
        updates += lacking
        missing = {"trained": state.missing, "finished": (), "differs": ()}
        # Each training seed of each checkpoint is evaluated on its own.
        evaluations += len(cell.seeds) * len(
            missing.get(state.stage, cell.evaluated_steps)
        )
        # The rate of another method would mislead: an update costs several times more
        # in one method than in another.
        rate = rates.updates_per_s.get(cell.method, updates_per_s)
        if lacking and rate is None:
            unknown[cell.method] += 1
        elif lacking and rate is not None:
            used[cell.method] = rate
            left_s += lacking / rate
    if not updates and not evaluations:
        return lines
    # An unknown duration counts as nothing, and the last line says so.
    left_s += evaluations * (rates.evaluation_s or 0.0)
    work = f"left: {updates:,} updates and {evaluations:,} evaluations"
    if used or (not updates and rates.evaluation_s):
        side_by_side = f" with {jobs} jobs" if jobs > 1 else ""
        speeds = ", ".join(f"{method} {rate:.3g}" for method, rate in used.items())
        work += f", about {format_duration(left_s / jobs)}{side_by_side}"
        work += f" (updates/s: {speeds})" if speeds else ""
    lines.append(work)
    if unknown:
        without = ", ".join(f"{count} of {name}" for name, count in unknown.items())
        lines.append(
            f"no hours for cells of which no rate was measured ({without}): train one "
            "for a minute, or give --updates-per-s"
        )
    if evaluations and rates.evaluation_s is None:
        lines.append("no hours for evaluations: none was done yet")
    return lines
