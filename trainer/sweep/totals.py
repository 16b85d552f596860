"""What a sweep takes: cells, runs, updates, and hours by rates that were measured."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.store.units import format_duration
from trainer.runs.evaluations import read_evaluations
from trainer.sweep.cells import Cell
from trainer.sweep.states import State, logged_rates


@dataclass(frozen=True)
class Rates:
    """How fast cells of a method have gone.

    Attributes:
        updates_per_s: Of each method that has trained, all seeds of a cell at once.
        evaluation_s: Mean time of an evaluation of one seed and checkpoint; None if
            there was none.
    """

    updates_per_s: dict[str, float]
    evaluation_s: float | None


def measure(cells: Sequence[Cell], states: Sequence[State]) -> Rates:
    """Reads how fast cells have gone: medians over log points, then over cells."""
    rates: dict[str, list[float]] = defaultdict(list)
    durations = []
    for cell, state in zip(cells, states, strict=True):
        if state.stage in ("new", "differs"):
            continue
        logged = logged_rates(cell)
        if logged:
            rates[cell.method].append(statistics.median(logged))
        durations += [each.duration_s for each in read_evaluations(cell.folder)]
    return Rates(
        {method: statistics.median(each) for method, each in rates.items()},
        statistics.mean(durations) if durations else None,
    )


def count_updates_left(cell: Cell, state: State) -> int:
    """Updates that a cell still lacks."""
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
    """Sums up a sweep.

    Args:
        cells: All of them.
        states: Of each.
        rates: Measured in what there is of them.
        jobs: Cells that run side by side.
        updates_per_s: Where none was measured, as given by a user.

    Returns:
        Lines: what there is, and what is left with the time that it takes.
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
        checkpoints = {"trained": state.missing, "finished": (), "differs": ()}
        evaluations += len(cell.seeds) * len(
            checkpoints.get(state.stage, cell.evaluated_steps)
        )
        rate = rates.updates_per_s.get(cell.method, updates_per_s)
        if lacking and rate is None:
            unknown[cell.method] += 1
        elif lacking and rate is not None:
            used[cell.method] = rate
            left_s += lacking / rate
    if not updates and not evaluations:
        return lines
    left_s += evaluations * (rates.evaluation_s or 0.0)
    what = f"left: {updates:,} updates and {evaluations:,} evaluations"
    if used or (not updates and rates.evaluation_s):
        side_by_side = f" with {jobs} jobs" if jobs > 1 else ""
        speeds = ", ".join(f"{method} {rate:.3g}" for method, rate in used.items())
        what += f", about {format_duration(left_s / jobs)}{side_by_side}"
        what += f" (updates/s: {speeds})" if speeds else ""
    lines.append(what)
    if unknown:
        without = ", ".join(f"{count} of {name}" for name, count in unknown.items())
        lines.append(
            f"no hours for cells of which no rate was measured ({without}): train one "
            "for a minute, or give --updates-per-s"
        )
    if evaluations and rates.evaluation_s is None:
        lines.append("no hours for evaluations: none was done yet")
    return lines
