"""The meter of metrics and time between log points, and the check for divergence."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from trainer.agents.base import Metrics
from trainer.step.call import CALLS_AHEAD
from trainer.tracking.tracker import Json
from trainer.training.metrics import combine, find_far_values, find_nonfinite

# Values of untrained networks are of size 1, however small rewards are. A narrower
# range of returns is taken as this wide, so that such values do not end a run.
_LEAST_RANGE = 10.0


class Meter:
    """Gathers the metrics of calls, which stay on the devices, and the time they take.

    Attributes:
        logged: Updates done at the last log point.

    Args:
        step: Updates done before the first call.
        clock: Clock in seconds, of any origin.
    """

    def __init__(
        self, step: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.logged = step
        self._step = step
        self._clock = clock
        self._pending: list[Metrics] = []
        self._blocked_s = 0.0
        self._started = self._since = clock()

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Counts the time within the context as spent waiting for batches."""
        started = self._clock()
        yield
        self._blocked_s += self._clock() - started

    def restart(self) -> float:
        """Restarts the clock of this log point; the time before does not count.

        Returns:
            Seconds that were left out.
        """
        # Called after compiling and after measuring on held-out windows: neither is an
        # update, and `updates_per_s` is what people plan runs by.
        now = self._clock()
        left_out = now - self._since
        self._since, self._blocked_s = now, 0.0
        return left_out

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of a call that has been started.

        Args:
            step: Updates done after the call.
            metrics: Metrics on the devices, arrays ``[Q, ...]``.
        """
        self._step = step
        self._pending.append(metrics)
        # JAX returns before a call has run. Without waiting for an earlier call, the
        # host would run ahead, and the batches of all calls would lie on the devices.
        if len(self._pending) > CALLS_AHEAD:
            jax.block_until_ready(self._pending[-1 - CALLS_AHEAD].mean["loss"])

    def take(self) -> tuple[Metrics, Json] | None:
        """Brings the metrics since the last log point to the host, and waits for them.

        Returns:
            Metrics over all updates since, arrays ``[Q, ...]``, and the fields of the
            log point; None if there was no call.
        """
        if not self._pending:
            return None
        metrics = combine(self._pending)
        # After the metrics have come, so that the time includes the devices' work.
        now = self._clock()
        elapsed = now - self._since
        point = {
            "step": self._step,
            "time_s": now - self._started,
            "updates_per_s": (self._step - self.logged) / elapsed,
            "input_blocked_share": self._blocked_s / elapsed,
        }
        self._pending.clear()
        self._since, self._blocked_s, self.logged = now, 0.0, self._step
        return metrics, point


def find_divergence(
    metrics: Metrics, returns: tuple[float, float], *, max_over_estimation: float
) -> tuple[str, str] | None:
    """Finds out whether the metrics of a log point show that training has diverged.

    Args:
        metrics: Metrics on the host.
        returns: Smallest and largest discounted return that are possible.
        max_over_estimation: Distance that values may lie beyond the possible returns,
            in lengths of their range.

    Returns:
        What is wrong, and a hint for the error message; None if nothing is wrong.
    """
    bad = find_nonfinite(metrics)
    if bad:
        return f"{', '.join(bad)} became NaN or infinite", ""
    # Bootstrapped values can grow far beyond any return without ever becoming NaN, and
    # such a policy is as lost as one whose loss is.
    low, high = returns
    margin = max_over_estimation * max(high - low, _LEAST_RANGE)
    too_low, too_high = find_far_values(metrics, low=low - margin, high=high + margin)
    texts = [
        " and ".join(f"{name} {value:.4g}" for name, value in far.items())
        + f" is far {side} any return, {limit:.4g} at {bound}"
        for far, side, limit, bound in (
            (too_low, "below", low, "least"),
            (too_high, "above", high, "most"),
        )
        if far
    ]
    if not texts:
        return None
    return (
        "; ".join(texts),
        "; trainer.max_over_estimation sets how far beyond is allowed",
    )
