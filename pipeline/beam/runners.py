"""Running a pipeline: on this machine by default, on any Beam runner if asked.

The local runner is named explicitly. Beam's ``DirectRunner`` is an alias whose
meaning depends on what is installed, and with it the errors and the counters.
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
from pipeline.store.errors import (
    DataFormatError,
    MissingPackageError,
    UsageError,
    WorkerError,
)

_LOCAL = "FnApiRunner"
_FLINK_WITHOUT_ADDRESS = ("[auto]", "[local]", "[collection]")
# Any of its names is ours: Beam's own counts nothing, and leaves its cluster running.
_DASK = "DaskRunner"
# Imported where it is asked for: it is an extra.
_DASK_MODULE = "pipeline.beam.dask_runner"
# Not imported: it loads half of Beam, and is a program.
_WORKER = "pipeline.beam.worker"
_UNREACHED, _TIMEOUT_S = "VAST_WORKER_UNREACHED", "VAST_WORKER_TIMEOUT_S"
# Starting a worker takes some eight seconds; its first call, none.
_CONNECT_S = 60.0
_LOOK_S = 0.2
# Libraries whose logs say again what comes back as an exception.
_LOUD = ("apache_beam", "distributed")
# What gRPC asks in turn, whether to leave out a proxy that is set for all else.
_NO_PROXY = ("no_grpc_proxy", "no_proxy")
_HERE = "localhost,127.0.0.1,::1"

# A worker in another process reports an error as the text of its traceback.
_REPORTED = re.compile(
    r"^pipeline\.store\.errors\.(?P<kind>\w+): "
    r"(?P<message>.*?)( \[while running '.*'\])?$",
    re.MULTILINE,
)
# The last line of such a text is the error that ended the worker.
_ENDED = re.compile(
    r"^(?P<kind>[\w.]*(Error|Exception|Interrupt|Exit)): "
    r"(?P<message>.*?)( \[while running '.*'\])?$",
    re.MULTILINE,
)
# By name, as in a traceback: Python's own classes of what a disk or network does.
_STORAGE = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, OSError)
}


def make_options(workers: int, beam_arguments: Sequence[str] = ()) -> PipelineOptions:
    """Chooses where a pipeline runs.

    Args:
        workers: Processes of the local runner, or of a Dask cluster of this machine.
        beam_arguments: Beam's own options, handed on untouched; with ``--runner``
            among them nothing else is set.

    Returns:
        Beam's options.

    Raises:
        ModuleNotFoundError: If Dask is asked for and not installed.
        UsageError: If there would be no worker, Beam has no such runner here, or
            Dataflow would refuse an option.
    """
    if workers < 1:
        raise UsageError(f"expected at least 1 worker, got {workers}")
    if any(each.split("=")[0] == "--runner" for each in beam_arguments):
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
    """Refuses a runner that Beam does not know, or cannot load."""
    try:
        create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise UsageError(
            f"--runner={name}: expected one of Beam's runners, or the full name of a "
            f"class, with its package installed ({said}); correct the name, install "
            "the package, or leave --runner out to run on this machine"
        ) from error


def is_local(options: PipelineOptions) -> bool:
    """Tells whether a pipeline runs on this machine, with as many workers as asked."""
    return bool(options.view_as(StandardOptions).runner == _LOCAL)


def given(options: PipelineOptions) -> dict[str, Any]:
    """What was asked of Beam, without its defaults."""
    return dict(sorted(options.get_all_options(drop_default=True).items()))


def run(
    define: Callable[[beam.Pipeline], object],
    options: PipelineOptions,
    watch: remote.Watch = remote.NOBODY,
) -> dict[str, int]:
    """Runs a pipeline to its end.

    Args:
        define: Puts the pipeline together on a root; again where an engine has lost
            the job.
        options: From ``make_options``.
        watch: Is told of losses, and of the end of a job that is ended with this
            process.

    Returns:
        Our counters by name, as far as the runner reports them.

    Raises:
        DataFormatError: As a worker raised it, whichever process it was in.
        OSError: Likewise, where a disk was full or a network failed.
        WorkerError: Likewise, where it failed in another way.
    """

    def make(runner: PipelineRunner | str | None) -> beam.Pipeline:
        pipeline = beam.Pipeline(runner, options=options)
        define(pipeline)
        return pipeline

    with (
        tempfile.NamedTemporaryFile(prefix="vast-rl-workers-", mode="r") as log,
        _quiet(),
    ):
        try:
            with (
                _opened(options, log.name) as runner,
                _own_machine_reached() as unreached,
            ):
                if isinstance(runner, FnApiRunner):
                    result = _run_to_its_end(make(runner), unreached)
                elif runner is None and not is_local(options):
                    result = _run_elsewhere(make, options, watch)
                else:
                    result = make(runner).run()
                    result.wait_until_finish()
                return _counters(result)
        except Exception as error:
            message = error_message(error)
            if message is not None:
                raise DataFormatError(message) from error
            message = storage_message(error)
            if message is not None:
                raise OSError(
                    f"{message}; what was finished stays, repeat the command"
                ) from error
            error.add_note(log.read())
            message = worker_message(error)
            if message is not None:
                kept = _keep_traceback(error)
                raise WorkerError(
                    f"{message}; this is a bug of ours or of a library, report it with "
                    f"its traceback, which is in {kept}"
                ) from error
            raise


def _counters(result: Any) -> dict[str, int]:
    """Our counters; none of a runner that has none."""
    try:
        metrics = result.metrics()
    except NotImplementedError:
        # So Beam says that a runner does not count. What it was run for is done: the
        # store's own manifests say what was written, and commands read those.
        return {}
    counters = metrics.query()["counters"]
    return {
        each.key.metric.name: each.committed
        for each in counters
        if each.key.metric.namespace == "vast_rl" and each.committed is not None
    }


def _run_elsewhere(
    make: Callable[[str], beam.Pipeline], options: PipelineOptions, watch: remote.Watch
) -> Any:
    """Runs a pipeline on an engine, which takes it from here and is elsewhere."""
    # Runners change what they are given: portable ones take their own name out.
    name = options.view_as(StandardOptions).runner
    cloud = options.view_as(GoogleCloudOptions)
    master = options.view_as(FlinkRunnerOptions).flink_master
    end: Callable[[], object] = int
    if master not in _FLINK_WITHOUT_ADDRESS:
        # Flink knows jobs by this one, and there may be others of ours.
        cloud.job_name = f"{cloud.job_name or 'vast-rl'}-{secrets.token_hex(4)}"
        end = functools.partial(flink.end_job, master, cloud.job_name)
    cloudy = dataflow.is_dataflow(options)

    def make_job() -> beam.Pipeline:
        pipeline = make(name)
        if cloudy:
            dataflow.check_job(pipeline)
        return pipeline

    return remote.run(make_job, watch, explained=_is_explained, end=end)


def _is_explained(error: Exception) -> bool:
    """Whether an error says what is wrong with data, a disk or this project."""
    told = (error_message, storage_message, worker_message)
    return any(message(error) is not None for message in told)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Beam and Dask from logging, in a block.

    What goes wrong comes back as an exception; the logs of launcher and workers would
    say it again, over several screens. Some of that Beam says by the root logger: what
    is said by that one itself is left out, and not what other libraries hand to it.
    """

    def refuse(record: logging.LogRecord) -> bool:
        return False

    root = logging.getLogger()
    handlers = list(root.handlers)
    known = {
        name: logging.getLogger(name) for name in [*_LOUD, *root.manager.loggerDict]
    }
    # Some that are below have levels of their own.
    levels = {
        logger: logger.level
        for name, logger in known.items()
        if name in _LOUD or (name.partition(".")[0] in _LOUD and logger.level)
    }
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    root.addFilter(refuse)
    # A worker in this process prints what it logs and hands back as well.
    sdk_worker.print = lambda *values, **options: None
    try:
        yield
    finally:
        vars(sdk_worker).pop("print", None)
        root.removeFilter(refuse)
        for logger, level in levels.items():
            logger.setLevel(level)
        # Whoever says something by it gives it a handler first, if it has none.
        for each in set(root.handlers) - set(handlers):
            root.removeHandler(each)


@contextlib.contextmanager
def _own_machine_reached() -> Iterator[Path]:
    """Has Beam's processes on this machine call each other directly.

    gRPC sends calls to localhost through a proxy too, which knows another one.

    Yields:
        File that a worker writes which does not reach its launcher.
    """
    with tempfile.TemporaryDirectory(prefix="vast-rl-") as folder:
        unreached = Path(folder) / "unreached"
        changes = {_UNREACHED: str(unreached), _TIMEOUT_S: str(_CONNECT_S)}
        first, second = _NO_PROXY
        if first in os.environ:
            changes[first] = f"{os.environ[first]},{_HERE}"
        # Of both spellings, others than gRPC read this one first.
        known = os.environ.get(second) or os.environ.get(second.upper())
        changes[second] = f"{known},{_HERE}" if known else _HERE
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


def _run_to_its_end(pipeline: beam.Pipeline, unreached: Path) -> Any:
    """Runs a pipeline, unless a worker says that it does not reach this process."""

    def run() -> Any:
        result = pipeline.run()
        result.wait_until_finish()
        return result

    ended = remote.in_thread(run, "run-pipeline")
    while True:
        with contextlib.suppress(FutureTimeoutError):
            return ended.result(timeout=_LOOK_S)
        if ended.done():  # It may have ended in a timeout of its own.
            return ended.result()
        if unreached.exists():
            proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
            raise OSError(
                f"a worker process did not reach this one at {unreached.read_text()} "
                f"within {_CONNECT_S:g} s; allow connections on this machine (set are "
                f"{', '.join(sorted(proxies))}), or use --workers 1"
            )


@contextlib.contextmanager
def _opened(options: PipelineOptions, log: str) -> Iterator[PipelineRunner | None]:
    """A runner of ours, closed at the end, or None: what the options name will do."""
    if options.view_as(StandardOptions).runner == _DASK:
        with importlib.import_module(_DASK_MODULE).connected(options) as runner:
            yield runner
        return
    direct = options.view_as(DirectOptions)
    if not is_local(options) or direct.direct_running_mode != "in_memory":
        yield None
    elif direct.direct_num_workers == 1:
        # Starting processes takes about eight seconds, so one works in this process.
        yield None
    else:
        command = f"{shlex.quote(sys.executable)} -m {_WORKER} 2>>{shlex.quote(log)}"
        yield FnApiRunner(SubprocessSDKEnvironment.from_command_string(command))


def error_message(error: Exception) -> str | None:
    """Finds the message of a data error in what a runner raised.

    Args:
        error: What the runner raised.

    Returns:
        The message without Beam's additions; None if it was another error.
    """
    if isinstance(error, (DataFormatError, MissingPackageError, UsageError)):
        return _without_stage(error)
    kind, message = _reported(error)
    return None if kind == WorkerError.__name__ else message


def worker_message(error: Exception) -> str | None:
    """Finds what a worker was at when it failed in what a runner raised.

    Args:
        error: What the runner raised.

    Returns:
        The message without Beam's additions; None if it was another error.
    """
    if isinstance(error, WorkerError):
        return _without_stage(error)
    kind, message = _reported(error)
    return message if kind == WorkerError.__name__ else None


def storage_message(error: Exception) -> str | None:
    """Finds the message of a fault of storage in what a runner raised.

    Args:
        error: What the runner raised.

    Returns:
        The message without Beam's additions; None if it was another error.
    """
    if isinstance(error, OSError):
        return _without_stage(error)
    found = list(_ENDED.finditer(str(error)))
    return found[-1]["message"] if found and found[-1]["kind"] in _STORAGE else None


def _reported(error: Exception) -> tuple[str | None, str | None]:
    """Class and message of an error of ours within what a runner raised."""
    found = list(_REPORTED.finditer(str(error)))
    return (found[-1]["kind"], found[-1]["message"]) if found else (None, None)


def _without_stage(error: Exception) -> str:
    return re.sub(r" \[while running '.*'\]$", "", str(error))


def _keep_traceback(error: Exception) -> str:
    """Writes what a bug looks like to a file that stays; its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="vast-rl-", suffix=".log", delete=False
    ) as file:
        file.writelines(traceback.format_exception(error))
    return file.name
