import io
import threading
import time

import pytest
from rich.console import Console

from pipeline.assembly.plan import PartPlan
from pipeline.inspection import progress
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


def test_rows_are_counted_from_what_is_written(make_npz, make_plan, tmp_path):
    plan = make_plan(make_npz(LENGTHS))
    assert progress.rows_written(plan) == (0, 0)
    (first,) = write_alone(plan.parts[0])
    assert progress.rows_written(plan) == (first.rows, 1)
    # A part in the middle of being written counts by its observations.
    (tmp_path / "store" / first.folder / "part.json").unlink()
    assert progress.rows_written(plan) == (first.rows, 0)
    write_alone(plan.parts[1])
    assert progress.rows_written(plan) == (sum(LENGTHS), 1)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_or_lines(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "_BAR_EVERY_S", 0.01)
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    counted, again = iter(range(3)), threading.Event()

    def measure():
        if next(counted, None) is None:  # What was measured before is shown.
            again.set()
        return 500, "1 of 2 parts"

    def show(error=None):
        with progress.show_progress(console, "write", 1000, measure):
            assert again.wait(60)
            if error is not None:
                raise error
        return output.getvalue()

    with pytest.raises(OSError, match="disk full"):
        show(OSError("disk full"))
    text = output.getvalue()
    assert "500 of 1,000" in text
    assert "1 of 2 parts" in text
    assert "1,000 of 1,000" not in text
    # Parts without good episodes leave no files, and count once all is done.
    assert "1,000 of 1,000" in show() or not terminal


def test_the_rate_leaves_out_what_was_there_before(monkeypatch):
    clock = iter([10.0, 12.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    rate = progress.Rate(100)
    assert rate.of(300) == 100.0
    assert rate.of(50) == 0.0


def test_folders_are_named_once_however_often_progress_is_measured(
    make_npz, make_plan, monkeypatch
):
    plan, asked = make_plan(make_npz(LENGTHS)), []
    digest = PartPlan.digest
    monkeypatch.setattr(PartPlan, "digest", lambda s: asked.append(s) or digest(s))
    for _ in range(3):
        progress.rows_written(plan)
    assert len(asked) == len(plan.parts) > 1


def test_measuring_takes_a_tenth_of_the_time_at_most(monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    pauses = []

    class Event(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return len(pauses) > 2

    def measure():
        time.sleep(0.05)
        return 1, ""

    console = Console(file=io.StringIO())
    progress._show_lines(console, "write", 2, measure, "rows", Event())
    assert min(pauses) >= 0.5
