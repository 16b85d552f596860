"""The curve of held-out windows: where it was measured, beside the training windows."""

import numpy as np
import pytest

from trainer.report import charts
from trainer.runs.history import History


def history(*, measured: bool, segments: bool = False) -> History:
    """Two seeds of four log points; every second one is measured."""
    records = {}
    for step in (10, 20, 30, 40):
        for seed in (0, 1):
            record = {"step": step, "seed": seed, "loss": 9 / step, "critic_loss": 1.0}
            if segments:
                record["segment_error"] = 1 / step
            if measured and step % 20 == 0:
                record |= {
                    f"validation_{name}": 2 * value
                    for name, value in record.items()
                    if name not in ("step", "seed")
                }
                record["validation_return_error"] = 3.0 + seed
            records[step, seed] = record
    return History(np.array([10, 20, 30, 40]), (0, 1), records)


@pytest.mark.parametrize("segments", [False, True])
def test_only_measured_points_are_drawn(segments: bool) -> None:
    figure = charts.draw_validation(history(measured=True, segments=segments))
    assert figure is not None
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    between = ["Error of G"] * segments
    assert titles == ["Loss", *between, "Values of actions"]
    trained, held_out = figure.axes[0].get_lines()
    assert list(trained.get_xdata()) == [10, 20, 30, 40]
    assert list(held_out.get_xdata()) == [20, 40]
    assert list(held_out.get_ydata()) == pytest.approx([2 * 9 / 20, 2 * 9 / 40])
    (values,) = figure.axes[-1].get_lines()
    assert list(values.get_ydata()) == pytest.approx([3.5, 3.5])


def test_nothing_is_drawn_of_what_was_not_measured() -> None:
    assert charts.draw_validation(history(measured=False)) is None


def test_losses_of_held_out_windows_are_not_among_those_of_training() -> None:
    figure = charts.draw_losses(history(measured=True))
    assert figure is not None
    assert len(figure.axes[0].get_lines()) == 1
