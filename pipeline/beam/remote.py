"""A job on an engine elsewhere: handed in, waited for, and ended with its launcher.

Engines start a job again by themselves if one of its workers fails, and know no
difference between a worker that was lost, which is worth it, and data that are wrong,
which are so every time. Ours are therefore told to give a job up at once, where that
can be set, and the launcher decides: what a worker of ours has said is said here and
now, and a job that ended otherwise is handed in again. What it had finished stays.
"""

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import apache_beam as beam
import grpc

# Losses of a job, one after another, without a row finished in between.
ATTEMPTS = 4
# Kubernetes gives a minute from a signal to the end, as infra asks of it.
_CANCEL_S = 15.0
# What Beam, Flink and Spark call a job that somebody has ended there.
_CANCELLED = re.compile(r"in state CANCELLED|JobCancellationException|was cancelled")
# By name: importing Dataflow's takes seconds.
_HAND_IN = {"PortableRunner", "DataflowRunner"}
_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Watch:
    """Who is told of a job, and who knows how far it is.

    Attributes:
        say: Takes a line for people.
        measure: Rows finished so far.
    """

    say: Callable[[str], None] = lambda text: None
    measure: Callable[[], int] = lambda: 0


NOBODY = Watch()


class JobFailedError(Exception):
    """A job that the engine had taken, and gave up."""


class _ToldToEndError(BaseException):
    """A signal that ends this process. No `Exception`: nothing may hold it up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(
    make: Callable[[], beam.Pipeline],
    watch: Watch,
    *,
    explained: Callable[[Exception], bool],
    end: Callable[[], object] = lambda: None,
) -> Any:
    """Runs a job to its end, and again if it was lost.

    Args:
        make: Makes the pipeline.
        watch: Is told of losses.
        explained: Whether an error says what is wrong, so that to repeat it is no use.
        end: Ends the job where the runner's own way does not.

    Returns:
        Beam's result of the job that succeeded.

    Raises:
        Exception: What the engine raised of a job, if it is explained.
        OSError: If the job could not be handed in, or was lost `ATTEMPTS` times in a
            row without a row finished in between.
    """
    lost, before = 0, watch.measure()
    while True:
        try:
            return _run_once(make(), watch, end)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise OSError(
                f"the engine did not take the job ({_line(error)}); look whether its "
                "job server runs, and whether --job_endpoint is its address"
            ) from error
        except JobFailedError as failed:
            reason = failed.__cause__
            assert isinstance(reason, Exception)
            if explained(reason):
                raise reason from None
            if _CANCELLED.search(str(reason)):
                raise OSError(
                    "the job was cancelled on the engine; what was finished stays, "
                    "repeat the command to go on"
                ) from reason
            rows = watch.measure()
            lost = 1 if rows > before else lost + 1
            before = max(before, rows)
            if lost == ATTEMPTS:
                raise OSError(
                    f"the engine gave the job up {lost} times in a row without "
                    f"anything finished in between ({_line(reason)}); look at the "
                    "engine's own logs, what was finished stays, then repeat the "
                    "command"
                ) from reason
            watch.say(
                f"the engine gave the job up, as where a worker is lost "
                f"({_line(reason)}); handed in again, what was finished stays"
            )


def _run_once(pipeline: beam.Pipeline, watch: Watch, end: Callable[[], object]) -> Any:
    """Hands a job in and waits for it; ends it if this process is told to end."""
    result = None
    try:
        with _signals(kept=_hands_in(pipeline.runner)) as signals:
            result = pipeline.run()
            # Amid gRPC's calls a signal would leave locks held.
            ended = in_thread(result.wait_until_finish, "wait-for-job")
            signals.heard()
            try:
                ended.result()
            except Exception as error:
                raise JobFailedError from error
            return result
    except _ToldToEndError as told:
        watch.say("told to end: the engine is told to end the job, too")
        if result is not None:
            _bounded(result.cancel)
            _bounded(end)
        # To whoever handled it before us, such as the default, which ends the process.
        signal.raise_signal(told.number)
        raise


def in_thread(work: Callable[[], _T], name: str) -> "Future[_T]":
    """Does something in a thread that nobody has to wait for.

    Args:
        work: To do.
        name: Of the thread.

    Returns:
        What it returns or raises.
    """
    ended: Future[_T] = Future()

    def attempt() -> None:
        try:
            result = work()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    threading.Thread(target=attempt, name=name, daemon=True).start()
    return ended


class _Signals:
    """What would end this process: kept while a job is handed in, then raised."""

    def __init__(self, *, kept: bool) -> None:
        self._kept: int | None = None
        self._raises = not kept
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Starts, or starts again: runners have handlers of their own."""
        for number in _SIGNALS:
            there = signal.getsignal(number)
            # Of `nohup`, a signal that is ignored stays so.
            if there != signal.SIG_IGN:
                self._before.setdefault(number, there)
                signal.signal(number, self._hear)

    def heard(self) -> None:
        """Raises what was kept, and from now on whatever comes."""
        self._raises = True
        if self._kept is not None:
            raise _ToldToEndError(self._kept)
        if self._before:
            self.listen()

    def restore(self) -> None:
        """Stops, as if nothing had been."""
        for number, there in self._before.items():
            signal.signal(number, there)

    def _hear(self, number: int, _: object) -> None:
        # A second one is meant.
        if self._raises or self._kept is not None:
            raise _ToldToEndError(number)
        self._kept = number


def _hands_in(runner: object) -> bool:
    """Whether a runner's ``run`` returns when the job begins, not when it ends."""
    return bool({kind.__name__ for kind in type(runner).__mro__} & _HAND_IN)


@contextlib.contextmanager
def _signals(*, kept: bool) -> Iterator[_Signals]:
    """Listens while a block runs; Python tells signals to the main thread alone."""
    signals = _Signals(kept=kept)
    if threading.current_thread() is threading.main_thread():
        signals.listen()
    try:
        yield signals
    finally:
        signals.restore()


def _bounded(work: Callable[[], object]) -> None:
    """Does something for a while: whoever ends this process may not wait for long."""
    # It is ended as far as can be; what was asked of this process is to end.
    with contextlib.suppress(Exception):
        in_thread(work, "end-job").result(timeout=_CANCEL_S)


def _line(error: BaseException) -> str:
    """What an error says, in one line of a bearable length."""
    if isinstance(error, grpc.RpcError) and callable(getattr(error, "details", None)):
        said = error.details() or ""
    else:
        said = str(error)
    text = " ".join(said.split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."
