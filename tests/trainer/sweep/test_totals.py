"""Totals of a sweep: the work that is left, at rates measured in the sweep."""

import json
from pathlib import Path

import pytest

from pipeline.output import Output
from pipeline.store.errors import UsageError
from tests.trainer.sweep.made_up_cells import cells_of, commit, evaluate
from trainer.commands.sweep import Sweep
from trainer.runs.folder import METRICS_FILE
from trainer.sweep.states import read_state
from trainer.sweep.totals import describe_totals, measure_rates


def totals(
    sweep: Path, *, jobs: int = 1, updates_per_s: float | None = None
) -> list[str]:
    cells = cells_of(sweep)
    states = [read_state(cell) for cell in cells]
    return describe_totals(
        cells,
        states,
        measure_rates(cells, states),
        jobs=jobs,
        updates_per_s=updates_per_s,
    )


def log(folder: Path, *rates: float) -> None:
    lines = [
        json.dumps({"step": 10 * (n + 1), "seed": 0, "updates_per_s": rate})
        for n, rate in enumerate(rates)
    ]
    (folder / METRICS_FILE).write_text("\n".join(lines) + "\n")


def test_nothing_is_known_of_a_new_sweep_but_its_size(sweep: Path) -> None:
    # Four cells of seeds 0 and 1 and four of seed 2, of 20 updates and 2 checkpoints.
    assert totals(sweep) == [
        "8 cells with 12 training seeds: 8 new",
        "left: 160 updates and 24 evaluations",
        "no hours for cells of which no rate was measured (4 of vast, 4 of fql): train "
        "one for a minute, or give --updates-per-s",
        "no hours for evaluations: none was done yet",
    ]
    # 160 updates at 0.5 a second, two at once.
    said = totals(sweep, updates_per_s=0.5, jobs=2)[1]
    assert said.endswith("about 2.7 min with 2 jobs (updates/s: vast 0.5, fql 0.5)")


def test_hours_are_by_rates_of_the_method(sweep: Path) -> None:
    cells = cells_of(sweep)
    finished, trained, begun = cells[0], cells[1], cells[2]
    commit(finished, 10, 20)
    evaluate(finished, [10, 20])  # One second each.
    commit(trained, 10, 20)
    evaluate(trained, [10])
    commit(begun, 10)
    log(Path(str(finished.folder)), 3, 2, 1)
    log(Path(str(begun.folder)), 0.5)
    # vast: two cells of 20 updates at 2 a second; fql: 10 of the begun cell and three
    # of 20 at 0.5. Evaluations: one of the trained cell, 4 of each of three cells of
    # two seeds, 2 of each of three cells of one.
    updates, evaluations = 2 * 20 + 10 + 3 * 20, 1 + 3 * 4 + 3 * 2
    seconds = 40 / 2 + 70 / 0.5 + evaluations
    assert totals(sweep) == [
        "8 cells with 12 training seeds: 1 finished, 1 trained, 1 begun, 5 new",
        f"left: {updates} updates and {evaluations} evaluations, about "
        f"{seconds / 60:.2g} min (updates/s: fql 0.5, vast 2)",
    ]


def test_a_wrong_rate_is_refused(sweep: Path) -> None:
    with pytest.raises(UsageError, match="--updates-per-s: expected a rate above 0"):
        Sweep(sweep, updates_per_s=0.0, dry_run=True).execute(Output.silent())
    with pytest.raises(UsageError, match="--updates-per-s: expected --dry-run beside"):
        Sweep(sweep, updates_per_s=2.0).execute(Output.silent())
