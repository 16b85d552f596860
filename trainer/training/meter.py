"""What happens between two log points: figures of calls, time, and what ends a run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from trainer.agents.base import Metrics
from trainer.step.call import CALLS_AHEAD
from trainer.tracking.tracker import Json
from trainer.training.metrics import combine, nonfinite, over_estimated

# Untrained networks' values are of size 1, however small the rewards are.
_LEAST_RANGE = 10.0


class Meter:
    """Gathers the metrics of calls, on the devices, and the time they take.

    Args:
        step: Updates done before the first call.
        clock: Seconds, from anywhere.
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
        """Counts the time within as spent on waiting for batches."""
        started = self._clock()
        yield
        self._blocked_s += self._clock() - started

    def restart(self) -> float:
        """Starts the clock of this log point anew, after what is no update.

        That is compiling the first call, and measuring on held-out windows.

        Returns:
            Seconds since the clock was started, which count as none.
        """
        now = self._clock()
        left_out = now - self._since
        self._since, self._blocked_s = now, 0.0
        return left_out

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of a call that has been started.

        Waits for an earlier call, so that batches of a few calls at most lie on the
        devices.

        Args:
            step: Updates done after it.
            metrics: ``[Q]``, on the devices.
        """
        self._step = step
        self._pending.append(metrics)
        if len(self._pending) > CALLS_AHEAD:
            jax.block_until_ready(self._pending[-1 - CALLS_AHEAD].mean["loss"])

    def take(self) -> tuple[Metrics, Json] | None:
        """Brings to the host what came since the last log point, and waits for it.

        Returns:
            Metrics ``[Q]`` over all updates since, and the facts of a record; None if
            there was no call.
        """
        if not self._pending:
            return None
        metrics = combine(self._pending)
        now = self._clock()
        elapsed = now - self._since
        facts = {
            "step": self._step,
            "time_s": now - self._started,
            "updates_per_s": (self._step - self.logged) / elapsed,
            "input_blocked_share": self._blocked_s / elapsed,
        }
        self._pending.clear()
        self._since, self._blocked_s, self.logged = now, 0.0, self._step
        return metrics, facts


def find_divergence(
    metrics: Metrics, returns: tuple[float, float], *, max_over_estimation: float
) -> tuple[str, str] | None:
    """Tells what of a log point's figures ends a run.

    Args:
        metrics: On the host.
        returns: Least and largest discounted return there can be.
        max_over_estimation: How far values may lie above, in lengths of that range.

    Returns:
        What is wrong, and what else to look at; None if nothing is.
    """
    bad = nonfinite(metrics)
    if bad:
        return f"{', '.join(bad)} became NaN or infinite", ""
    low, high = returns
    limit = high + max_over_estimation * max(high - low, _LEAST_RANGE)
    too_high = over_estimated(metrics, limit=limit)
    if not too_high:
        return None
    values = " and ".join(f"{name} {value:.4g}" for name, value in too_high.items())
    return (
        f"{values} is far above any return, {high:.4g} at most",
        "; trainer.max_over_estimation is how far is too far",
    )
