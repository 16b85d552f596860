"""The line of a log point, for consoles that are no terminal: logs of jobs, pipes."""

from pipeline.store.units import format_duration
from trainer.tracking.tracker import Json


def describe_point(facts: Json, loss: float, *, steps: int) -> str:
    """Says how training goes.

    Args:
        facts: Of the log point: ``step``, ``updates_per_s``, ``input_blocked_share``.
        loss: Averaged over updates since the last log point, and over seeds.
        steps: Updates in all.

    Returns:
        Step, loss, speed, share of the time spent waiting for data, and time left at
        that speed.

    Example:
        >>> facts = {"step": 400, "updates_per_s": 2.0, "input_blocked_share": 0.015}
        >>> describe_point(facts, 0.25, steps=1000)
        'step 400 of 1,000: loss 0.25, 2 updates/s, 1.5 % waiting for data, 5 min left'
    """
    step, rate = facts["step"], facts["updates_per_s"]
    left = (
        f"{format_duration((steps - step) / rate)} left" if step < steps else "all done"
    )
    return (
        f"step {step:,} of {steps:,}: loss {loss:.3g}, {rate:,.3g} updates/s, "
        f"{100 * facts['input_blocked_share']:.2g} % waiting for data, {left}"
    )
