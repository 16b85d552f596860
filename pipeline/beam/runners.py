"""Runs a pipeline on this machine, or on another Beam runner if the options name one.

The local runner is named explicitly. Beam's ``DirectRunner`` is an alias whose
meaning depends on the installed packages, and with it the errors and the counters.
"""

import builtins
import contextlib
import functools
import importlib
import logging
import os
import re
import secrets
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner, create_runner
from apache_beam.runners.worker import sdk_worker
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipeline.beam import dataflow, flink, remote
from pipeline.beam.transforms import COUNTERS
from pipeline.store.errors import (
    DataFormatError,
    MissingPackageError,
    UsageError,
    WorkerError,
)

_LOCAL = "FnApiRunner"
_FLINK_WITHOUT_ADDRESS = ("[auto]", "[local]", "[collection]")
# All of Beam's names of its Dask runner select `dask_runner`, because Beam's own runner
# reports no counters and leaves its cluster running.
_DASK = "DaskRunner"
# Imported only if it is needed, since Dask is an optional extra.
_DASK_MODULE = "pipeline.beam.dask_runner"
_WORKER = "pipeline.beam.worker"
_UNREACHED, _TIMEOUT_S = "VAST_WORKER_UNREACHED", "VAST_WORKER_TIMEOUT_S"
# A worker process starts in about eight seconds, and then connects at once.
_CONNECT_S = 60.0
_POLL_S = 0.2
# Libraries whose logs repeat what comes back as an exception.
_LOUD = ("apache_beam", "distributed")
# Variables in which gRPC looks for hosts to call without a proxy; the first that is set
# counts.
_NO_PROXY = ("no_grpc_proxy", "no_proxy")
_THIS_MACHINE = "localhost,127.0.0.1,::1"

# A worker in another process reports an error as the text of its traceback. An error of
# this project is found by the full name of its class.
_OWN_ERROR = re.compile(
    r"^pipeline\.store\.errors\.(?P<kind>\w+): "
    r"(?P<message>.*?)( \[while running '.*'\])?$",
    re.MULTILINE,
)
# Any error in such a text; the last one ended the worker.
_ANY_ERROR = re.compile(
    r"^(?P<kind>[\w.]*(Error|Exception|Interrupt|Exit)): "
    r"(?P<message>.*?)( \[while running '.*'\])?$",
    re.MULTILINE,
)
# Names, as in a traceback, of Python's classes for faults of disks and networks.
_STORAGE_ERRORS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, OSError)
}


def make_options(workers: int, beam_arguments: Sequence[str] = ()) -> PipelineOptions:
    """Chooses where a pipeline runs.

    Args:
        workers: Processes of the local runner, or of a Dask cluster on this machine.
        beam_arguments: Arguments for Beam, which are passed on unchanged. If
            ``--runner`` is among them, no option of the local runner is added.

    Returns:
        Beam's options.

    Raises:
        ModuleNotFoundError: If Dask is named and not installed.
        UsageError: If ``workers`` is below 1, Beam has no such runner here, or Dataflow
            would refuse an option.
    """
    if workers < 1:
        raise UsageError(f"--workers: expected at least 1 worker, got {workers}")
    if any(word.split("=")[0] == "--runner" for word in beam_arguments):
        options = PipelineOptions(list(beam_arguments))
        name = options.view_as(StandardOptions).runner
        if name.rpartition(".")[2].lower() in ("dask", _DASK.lower()):
            importlib.import_module(_DASK_MODULE)
            dask = [f"--runner={_DASK}", f"--direct_num_workers={workers}"]
            return PipelineOptions([*beam_arguments, *dask])
        _check_runner(name)
        if dataflow.is_dataflow(options):
            dataflow.check_options(options)
        return options
    local = [f"--runner={_LOCAL}", f"--direct_num_workers={workers}"]
    return PipelineOptions([*local, *beam_arguments])


def _check_runner(name: str) -> None:
    """Refuses a runner that Beam does not know, or cannot import."""
    try:
        create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise UsageError(
            f"--runner={name}: expected one of Beam's runners, or the full name of a "
            f"class, with its package installed ({text}); correct the name, install "
            "the package, or leave --runner out to run on this machine"
        ) from error


def is_local(options: PipelineOptions) -> bool:
    """Tells whether a pipeline will run on the local runner."""
    return bool(options.view_as(StandardOptions).runner == _LOCAL)


def given_options(options: PipelineOptions) -> dict[str, Any]:
    """Returns the options that were given to Beam, without its defaults."""
    return dict(sorted(options.get_all_options(drop_default=True).items()))


def run(
    define: Callable[[beam.Pipeline], object],
    options: PipelineOptions,
    watch: remote.Watch = remote.SILENT,
) -> dict[str, int]:
    """Runs a pipeline to its end.

    Args:
        define: Adds the steps to a pipeline. It is called again for a new pipeline if
            an engine lost the job.
        options: Beam's options, from `make_options`.
        watch: Reports losses of the job to the user, and measures progress.

    Returns:
        Values of this project's counters by name; empty if the runner reports none.

    Raises:
        DataFormatError: If a worker, in whichever process, met wrong data or wrong use.
        OSError: If a disk was full or a network failed.
        WorkerError: If a worker failed in a way that this project does not expect.
        KeyboardInterrupt: If Ctrl-C was pressed.
    """

    def make(runner: PipelineRunner | str | None) -> beam.Pipeline:
        pipeline = beam.Pipeline(runner, options=options)
        define(pipeline)
        return pipeline

    with (
        tempfile.NamedTemporaryFile(prefix="vast-rl-workers-", mode="r") as log,
        _silence_logs(),
    ):
        try:
            with (
                _open_runner(options, log.name) as runner,
                _bypass_proxies() as unreached,
            ):
                if isinstance(runner, FnApiRunner):
                    result = _run_processes(make(runner), unreached)
                elif runner is None and not is_local(options):
                    result = _run_on_engine(make, options, watch)
                else:
                    result = make(runner).run()
                    result.wait_until_finish()
                return _read_counters(result)
        except Exception as error:
            # Ctrl-C within a step is an error to Beam like any other.
            if _is_interruption(error):
                raise KeyboardInterrupt from error
            message = find_data_error(error)
            if message is not None:
                raise DataFormatError(message) from error
            message = find_storage_error(error)
            if message is not None:
                raise OSError(
                    f"{message}; what was finished stays, repeat the command"
                ) from error
            # What worker processes wrote to standard error, such as why they died.
            error.add_note(log.read())
            message = find_worker_error(error)
            if message is not None:
                kept = _keep_traceback(error)
                raise WorkerError(
                    f"{message}; this is a bug of ours or of a library, report it with "
                    f"its traceback, which is in {kept}"
                ) from error
            raise


def _read_counters(result: Any) -> dict[str, int]:
    """Reads this project's counters; returns none if the runner reports none."""
    try:
        metrics = result.metrics()
    except NotImplementedError:
        # The runner has no counters. The work is done all the same, and commands read
        # what was written from the store's manifests.
        return {}
    return {
        counter.key.metric.name: counter.committed
        for counter in metrics.query()["counters"]
        if counter.key.metric.namespace == COUNTERS and counter.committed is not None
    }


def _run_on_engine(
    make: Callable[[str], beam.Pipeline], options: PipelineOptions, watch: remote.Watch
) -> Any:
    """Runs a pipeline on an engine in other processes, such as Flink or Dataflow."""
    # The name is kept here, because portable runners remove it from the options, and
    # the pipeline may have to be made again.
    name = options.view_as(StandardOptions).runner
    cloud = options.view_as(GoogleCloudOptions)
    master = options.view_as(FlinkRunnerOptions).flink_master
    end: Callable[[], object] = int
    if master not in _FLINK_WITHOUT_ADDRESS:
        # The job is cancelled by its name, so the name must be no other job's.
        cloud.job_name = f"{cloud.job_name or 'vast-rl'}-{secrets.token_hex(4)}"
        end = functools.partial(flink.end_job, master, cloud.job_name)
    for_dataflow = dataflow.is_dataflow(options)

    def make_job() -> beam.Pipeline:
        pipeline = make(name)
        if for_dataflow:
            dataflow.check_job(pipeline)
        return pipeline

    return remote.run(make_job, watch, is_explained=_is_explained, end=end)


def _is_explained(error: Exception) -> bool:
    """Tells whether an error names a fault of the data, a disk or this project."""
    finders = (find_data_error, find_storage_error, find_worker_error)
    return any(find(error) is not None for find in finders)


@contextlib.contextmanager
def _silence_logs() -> Iterator[None]:
    """Silences the logs of Beam and Dask while a block runs.

    Errors come back as exceptions; the logs of launcher and workers would repeat them
    over several screens. Beam also logs with the root logger. Records of that logger
    itself are dropped, but not those that other libraries' loggers pass on to it.
    """

    def refuse(record: logging.LogRecord) -> bool:
        return False

    root = logging.getLogger()
    handlers = list(root.handlers)
    known = {
        name: logging.getLogger(name) for name in [*_LOUD, *root.manager.loggerDict]
    }
    # A logger below with a level of its own does not follow the level of these.
    levels = {
        logger: logger.level
        for name, logger in known.items()
        if name in _LOUD or (name.partition(".")[0] in _LOUD and logger.level)
    }
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    root.addFilter(refuse)
    # A worker in this process also prints the traceback that it returns.
    sdk_worker.print = lambda *values, **options: None
    try:
        yield
    finally:
        vars(sdk_worker).pop("print", None)
        root.removeFilter(refuse)
        for logger, level in levels.items():
            logger.setLevel(level)
        # `logging.error` and its like add a handler to a root logger that has none.
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)


@contextlib.contextmanager
def _bypass_proxies() -> Iterator[Path]:
    """Lets Beam's processes on this machine call each other without a proxy.

    gRPC sends calls to localhost through a proxy too, whose localhost is another
    machine.

    Yields:
        Path of the file that a worker writes if it cannot reach this process.
    """
    with tempfile.TemporaryDirectory(prefix="vast-rl-") as folder:
        unreached = Path(folder) / "unreached"
        changes = {_UNREACHED: str(unreached), _TIMEOUT_S: str(_CONNECT_S)}
        first, second = _NO_PROXY
        if first in os.environ:
            changes[first] = f"{os.environ[first]},{_THIS_MACHINE}"
        # Other libraries prefer the spelling in small letters, so setting it must not
        # hide hosts that only the one in capital letters names.
        known = os.environ.get(second) or os.environ.get(second.upper())
        changes[second] = f"{known},{_THIS_MACHINE}" if known else _THIS_MACHINE
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield unreached
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _run_processes(pipeline: beam.Pipeline, unreached: Path) -> Any:
    """Runs a pipeline in worker processes; fails if one cannot reach this process.

    Beam itself would wait forever for such a worker. The thread in which it waits
    does not keep this process alive.
    """

    def run() -> Any:
        result = pipeline.run()
        result.wait_until_finish()
        return result

    ended = remote.run_in_thread(run, "run-pipeline")
    while True:
        with contextlib.suppress(FutureTimeoutError):
            return ended.result(timeout=_POLL_S)
        # The pipeline itself may have ended with a `TimeoutError`.
        if ended.done():
            return ended.result()
        if unreached.exists():
            proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
            raise OSError(
                f"a worker process did not reach this one at {unreached.read_text()} "
                f"within {_CONNECT_S:g} s; allow connections on this machine (set are "
                f"{', '.join(sorted(proxies))}), or use --workers 1"
            )


@contextlib.contextmanager
def _open_runner(options: PipelineOptions, log: str) -> Iterator[PipelineRunner | None]:
    """Makes the runner, and closes it at the end.

    Args:
        options: Beam's options.
        log: File for the standard error of worker processes.

    Yields:
        A runner; None if Beam makes it from the options.
    """
    if options.view_as(StandardOptions).runner == _DASK:
        with importlib.import_module(_DASK_MODULE).open_cluster(options) as runner:
            yield runner
        return
    direct = options.view_as(DirectOptions)
    if not is_local(options) or direct.direct_running_mode != "in_memory":
        yield None
    elif direct.direct_num_workers == 1:
        # A process takes about eight seconds to start, so a single worker is a thread.
        yield None
    else:
        # `worker` is named and not imported, since it is a program that loads most of
        # Beam's workers.
        command = f"{shlex.quote(sys.executable)} -m {_WORKER} 2>>{shlex.quote(log)}"
        yield FnApiRunner(SubprocessSDKEnvironment.from_command_string(command))


def _is_interruption(error: BaseException) -> bool:
    """Tells whether an exception was raised because of Ctrl-C."""
    cause: BaseException | None = error
    # An error that came back from another thread may be among its own causes.
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def find_data_error(error: Exception) -> str | None:
    """Finds the message of an error of data, use or packages in a runner's exception.

    Args:
        error: Exception that the runner raised.

    Returns:
        The message without Beam's additions; None if the error is another one.
    """
    if isinstance(error, (DataFormatError, MissingPackageError, UsageError)):
        return _remove_stage(error)
    kind, message = _find_own_error(error)
    return None if kind == WorkerError.__name__ else message


def find_worker_error(error: Exception) -> str | None:
    """Finds the message of a `WorkerError` in a runner's exception.

    Args:
        error: Exception that the runner raised.

    Returns:
        The message without Beam's additions; None if the error is another one.
    """
    if isinstance(error, WorkerError):
        return _remove_stage(error)
    kind, message = _find_own_error(error)
    return message if kind == WorkerError.__name__ else None


def find_storage_error(error: Exception) -> str | None:
    """Finds the message of a fault of a disk or network in a runner's exception.

    Args:
        error: Exception that the runner raised.

    Returns:
        The message without Beam's additions; None if the error is another one.
    """
    if isinstance(error, OSError):
        return _remove_stage(error)
    errors = list(_ANY_ERROR.finditer(str(error)))
    # Only the last error counts: a bug that followed a fault of a disk is a bug.
    if not errors or errors[-1]["kind"] not in _STORAGE_ERRORS:
        return None
    return errors[-1]["message"]


def _find_own_error(error: Exception) -> tuple[str | None, str | None]:
    """Finds class and message of this project's last error in an exception's text."""
    errors = list(_OWN_ERROR.finditer(str(error)))
    return (errors[-1]["kind"], errors[-1]["message"]) if errors else (None, None)


def _remove_stage(error: Exception) -> str:
    """Removes the name of the stage that Beam appends to the message."""
    return re.sub(r" \[while running '.*'\]$", "", str(error))


def _keep_traceback(error: Exception) -> str:
    """Writes the traceback of a bug to a file that is kept, and returns its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="vast-rl-", suffix=".log", delete=False
    ) as file:
        file.writelines(traceback.format_exception(error))
    return file.name
