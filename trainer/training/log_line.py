"""The log line of a log point, for consoles that are no terminal."""

from pipeline.store.units import format_duration, format_rate
from trainer.tracking.tracker import Json


def describe_point(point: Json, loss: float, *, steps: int) -> str:
    """Describes the progress of training at a log point.

    Args:
        point: Fields ``step``, ``updates_per_s`` and ``input_blocked_share`` of the
            log point.
        loss: Loss, averaged over seeds and over updates since the last log point.
        steps: Updates of the whole run.

    Returns:
        Step, loss, speed, share of the time spent waiting for data, and time left at
        that speed.

    Example:
        >>> point = {"step": 400, "updates_per_s": 2.0, "input_blocked_share": 0.015}
        >>> describe_point(point, 0.25, steps=1000)
        'step 400 of 1,000: loss 0.25, 2 updates/s, 1.5 % waiting for data, 5 min left'
    """
    step, rate = point["step"], point["updates_per_s"]
    left = (
        f"{format_duration((steps - step) / rate)} left" if step < steps else "all done"
    )
    return (
        f"step {step:,} of {steps:,}: loss {loss:.3g}, {format_rate(rate)} updates/s, "
        f"{100 * point['input_blocked_share']:.2g} % waiting for data, {left}"
    )
