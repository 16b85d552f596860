"""Runs a job on an engine: submits it, waits for it, and cancels it on a signal.

Engines such as Flink restart a job if a worker fails. They cannot tell a lost worker,
after which a restart helps, from wrong data, which fail every time. Therefore the
engines are configured to give up a job at the first failure, where that is possible,
and this module decides: an error that a worker of ours explained is raised at once, and
any other failed job is submitted again. Parts that it finished are kept.
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

# Times that a job may be lost in a row without a row finished in between; Spark tries a
# task as often by default.
ATTEMPTS = 4
# A launcher's pod has a minute from the signal to its end, as infra sets in
# `terminationGracePeriodSeconds`, and each of two requests may take this long.
_CANCEL_S = 15.0
# Words of Beam, Flink and Spark for a job that a user cancelled on the engine.
_CANCELLED = re.compile(r"in state CANCELLED|JobCancellationException|was cancelled")
# Names of runners, since importing Dataflow's takes seconds.
_SUBMIT = {"PortableRunner", "DataflowRunner"}
_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Watch:
    """Functions that report on a job and measure its progress.

    Attributes:
        say: Prints a line for the user.
        measure: Returns the number of rows finished so far.
    """

    say: Callable[[str], None] = lambda text: None
    measure: Callable[[], int] = lambda: 0


SILENT = Watch()


class JobFailedError(Exception):
    """The engine had accepted a job and gave it up; the cause is the engine's error."""


class _ToldToEndError(BaseException):
    """A signal that ends this process arrived.

    The class is no `Exception`, so that no ``except Exception`` of a library stops it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(
    make: Callable[[], beam.Pipeline],
    watch: Watch,
    *,
    is_explained: Callable[[Exception], bool],
    end: Callable[[], object] = lambda: None,
) -> Any:
    """Runs a job to its end, and submits it again if it was lost.

    Args:
        make: Makes the pipeline.
        watch: Reports losses to the user, and measures progress.
        is_explained: Tells whether an error explains what is wrong. Such an error would
            come again, so the job is not submitted again.
        end: Cancels the job where the runner's own ``cancel`` does not.

    Returns:
        Beam's result of the job that succeeded.

    Raises:
        Exception: The engine's error, if it is explained.
        OSError: If the engine did not accept the job, the job was cancelled on the
            engine, or was lost `ATTEMPTS` times in a row without a row finished in
            between.
    """
    lost, before = 0, watch.measure()
    while True:
        try:
            return _run_once(make(), watch, end)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise OSError(
                f"the engine did not take the job ({_shorten(error)}); look whether "
                "its job server runs, and whether --job_endpoint is its address"
            ) from error
        except JobFailedError as failed:
            reason = failed.__cause__
            assert isinstance(reason, Exception)
            if is_explained(reason):
                raise reason from None
            if _CANCELLED.search(str(reason)):
                raise OSError(
                    f"the job was cancelled on the engine ({_shorten(reason)}); what "
                    "was finished stays, repeat the command to go on"
                ) from reason
            # Progress resets the count: a long job on machines that are taken away
            # now and then may lose many workers, and still reach its end.
            rows = watch.measure()
            lost = 1 if rows > before else lost + 1
            before = max(before, rows)
            if lost == ATTEMPTS:
                raise OSError(
                    f"the engine gave the job up {lost} times in a row without "
                    f"anything finished in between ({_shorten(reason)}); look at the "
                    "engine's own logs, what was finished stays, then repeat the "
                    "command"
                ) from reason
            watch.say(
                f"the engine gave the job up, as where a worker is lost "
                f"({_shorten(reason)}); handed in again, what was finished stays"
            )


def _run_once(pipeline: beam.Pipeline, watch: Watch, end: Callable[[], object]) -> Any:
    """Submits a job and waits for it; cancels it if this process is told to end."""
    result = None
    try:
        with _listen_to_signals(kept=_submits(pipeline.runner)) as signals:
            result = pipeline.run()
            # The main thread must not be inside gRPC when a signal raises an exception:
            # gRPC's locks would stay held, and `cancel` might wait for them.
            ended = run_in_thread(result.wait_until_finish, "wait-for-job")
            signals.raise_from_now_on()
            try:
                ended.result()
            except Exception as error:
                raise JobFailedError from error
            return result
    except _ToldToEndError as told:
        watch.say("told to end: the engine is told to end the job, too")
        if result is not None:
            _try_briefly(result.cancel)
            _try_briefly(end)
        # The previous handler is in place again. The default one ends the process.
        signal.raise_signal(told.number)
        raise


def run_in_thread(work: Callable[[], _T], name: str) -> "Future[_T]":
    """Runs a function in a thread that does not keep the process alive.

    Executors of the standard library would wait for their threads when Python exits.

    Args:
        work: Function to run.
        name: Name of the thread.

    Returns:
        Future of the function's result or exception.
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
    """Signals that end this process: kept while a job is submitted, later raised.

    An exception in the middle of a submission would leave a job on the engine that this
    process has no handle to cancel.

    Args:
        kept: Whether to keep a signal at first. False raises every signal at once.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept: int | None = None
        self._raises = not kept
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Installs the handlers; also again, after a runner has installed its own."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # A signal that is ignored, as SIGHUP under `nohup`, stays ignored.
            if handler != signal.SIG_IGN:
                self._before.setdefault(number, handler)
                signal.signal(number, self._handle)

    def raise_from_now_on(self) -> None:
        """Raises the signal that was kept, if any, and later ones as they come."""
        self._raises = True
        if self._kept is not None:
            raise _ToldToEndError(self._kept)
        if self._before:
            self.listen()

    def restore(self) -> None:
        """Installs the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        # A user who sends a second signal does not want to wait for the submission.
        if self._raises or self._kept is not None:
            raise _ToldToEndError(number)
        self._kept = number


def _submits(runner: object) -> bool:
    """Tells whether a runner's ``run`` returns when the job begins, not at its end."""
    return bool({kind.__name__ for kind in type(runner).__mro__} & _SUBMIT)


@contextlib.contextmanager
def _listen_to_signals(*, kept: bool) -> Iterator[_Signals]:
    """Listens to signals while a block runs, and restores the handlers afterwards."""
    signals = _Signals(kept=kept)
    # Python lets only the main thread install handlers.
    if threading.current_thread() is threading.main_thread():
        signals.listen()
    try:
        yield signals
    finally:
        signals.restore()


def _try_briefly(work: Callable[[], object]) -> None:
    """Runs a function for a limited time, and ignores its errors.

    The process was told to end and has to do so soon, even if the engine never answers.
    """
    with contextlib.suppress(Exception):
        run_in_thread(work, "end-job").result(timeout=_CANCEL_S)


def _shorten(error: BaseException) -> str:
    """Formats an error in one line of at most about 300 characters."""
    # The text of a gRPC error has several lines; its details are the message alone.
    if isinstance(error, grpc.RpcError) and callable(getattr(error, "details", None)):
        message = error.details() or ""
    else:
        message = str(error)
    text = " ".join(message.split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."
