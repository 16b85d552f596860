"""Agreement of a run's processes: on settings, devices, folder, and when to stop."""

import json
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from trainer.errors import HostsError

Facts = dict[str, Any]

# Seconds in which a machine may still believe that a new folder does not exist: clients
# of NFS keep such answers for up to a minute, and this process has looked before.
_BELIEF_S = 65.0
# Key in JAX's coordinator whose value is the step after which all processes stop.
_STOP = "vast/stop_after"


def is_primary() -> bool:
    """Says whether this is process 0, which writes the files that a run has once."""
    return jax.process_index() == 0


def wait_for_all(where: str, *, timeout_s: float = 600) -> None:
    """Waits until every process has called this function.

    Args:
        where: Name of the barrier, the same in all processes.
        timeout_s: Longest time to wait, in seconds.

    Raises:
        JaxRuntimeError: If a process does not arrive in time.
    """
    # A barrier of the coordinator and not a collective: gloo's collectives give up
    # after 30 s, and one process may compile or read data for longer than the others.
    multihost.get_barrier_sync_fn()(key=where, timeout_ms=round(1e3 * timeout_s))


def gather_facts(facts: Facts) -> list[Facts]:
    """Collects the facts of all processes; every process must call this.

    Args:
        facts: JSON-ready facts of this process, by name.

    Returns:
        Facts of every process, by the number of the process.
    """
    if jax.process_count() == 1:
        return [facts]
    # An all-gather needs arrays of equal shape: JSON texts are padded to the longest.
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size)).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    return [
        json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def check_alike(facts: Facts) -> None:
    """Checks that facts are equal in all processes; every process must call this.

    Processes whose settings differ would train different programs: their collectives
    would never match, or, worse, match with wrong results.

    Args:
        facts: JSON-ready values by name, nested or not.

    Raises:
        HostsError: If a fact differs; the error names the processes and the fact.
    """
    wait_for_all("check_alike")
    reports = gather_facts({"host": socket.gethostname(), "facts": facts})
    first = dict(_flatten(reports[0]["facts"]))
    for index, report in enumerate(reports):
        for name, fact in _flatten(report["facts"]):
            if fact != first.get(name):
                raise HostsError(
                    f"{name} differs: {first.get(name)!r} in process 0 on "
                    f"{reports[0]['host']}, {fact!r} in process {index} on "
                    f"{report['host']}; start all processes with the same command, "
                    "packages and data"
                )


def describe_processes(held: str) -> list[str]:
    """Describes all processes and their devices; every process must call this.

    Args:
        held: Description of the part of each batch that this process holds.

    Returns:
        A line for each process.
    """
    devices = jax.local_devices()
    reports = gather_facts(
        {
            "host": socket.gethostname(),
            "devices": f"{devices[0].device_kind} "
            + ", ".join(str(device.id) for device in devices),
            "held": held,
        }
    )
    return [
        f"process {index} on {report['host']}: {report['devices']}; {report['held']}"
        for index, report in enumerate(reports)
    ]


def check_devices() -> None:
    """Checks that all processes have the same number of devices.

    Raises:
        HostsError: If the numbers differ; the error names them.
    """
    # Unlike other facts, the counts are compared without a collective, since JAX's
    # all-gather fails in a reshape if they differ. Every process knows all devices.
    counts = Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        raise HostsError(
            "expected the same number of devices in every process, got "
            + ", ".join(
                f"{counts[index]} in process {index}" for index in sorted(counts)
            )
            + f" (this is process {jax.process_index()} on {socket.gethostname()}); "
            "look for the hosts that lack devices, then start all processes again"
        )


def _flatten(facts: Facts, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested facts with dotted names, so that an error can name a single one."""
    for name, fact in facts.items():
        if isinstance(fact, dict):
            yield from _flatten(fact, f"{prefix}{name}.")
        else:
            yield prefix + name, fact


def check_one_folder(file: epath.Path) -> None:
    """Checks that all processes see the same folder; every process must call this.

    A local path may name a separate disk on each machine. All processes would then wait
    for each other's parts of the first checkpoint.

    Args:
        file: A file in the folder; the folder is made if it does not exist. A marker
            file whose name begins like the file's lies there for a moment.

    Raises:
        HostsError: If processes see other folders; the error names these processes.
    """
    if jax.process_count() == 1:
        return
    # A fresh name for each check, which no marker of a killed start can have.
    token = gather_facts({"token": uuid.uuid4().hex})[0]["token"]
    mark = file.parent / f"{file.name}.{token}"
    if is_primary():
        file.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text("")
    wait_for_all("marked")
    sees = _sees(mark)
    # The others wait here for a process that does not see the file, and not in the
    # collective below, which may give up earlier.
    wait_for_all("looked")
    reports = gather_facts({"host": socket.gethostname(), "sees": sees})
    if is_primary():
        mark.unlink()
    apart = [
        f"{index} on {report['host']}"
        for index, report in enumerate(reports)
        if not report["sees"]
    ]
    if apart:
        raise HostsError(
            f"{file.parent}: is another folder for process {', '.join(apart)} than for "
            f"process 0 on {reports[0]['host']}; give an --out that all processes share"
        )


def _sees(file: epath.Path) -> bool:
    """Says whether this process sees a file that process 0 has written."""
    until = time.monotonic() + _BELIEF_S
    while not file.exists():
        if time.monotonic() >= until:
            return False
        time.sleep(1)
    return True


class Stop:
    """Makes all processes stop after the same step, soon after one is told to stop.

    The process that is told to stop writes the last step into JAX's coordinator. All
    processes look there before each call. Agreeing by a collective instead would make
    every call wait for the slowest process.

    Args:
        ahead: Most steps that a process may have started before any other process has.
    """

    def __init__(self, *, ahead: int) -> None:
        self._ahead = ahead
        self._after: int | None = None

    def reached(self, step: int, *, told: bool) -> bool:
        """Decides whether to stop; every process must call this before each call.

        Args:
            step: Number of steps that this process has started.
            told: Whether this process was told to stop.

        Returns:
            Whether this process has started the last step.
        """
        if jax.process_count() == 1:
            return told
        client = multihost.get_jax_distributed_client()
        if told and self._after is None:
            # The key can be set once: another process that was told, too, came first.
            with suppress(jax.errors.JaxRuntimeError):
                # Another process may be ahead by the whole lead, and start as many
                # steps again until it reads the key: no process may be past the step.
                client.key_value_set(_STOP, str(step + 2 * self._ahead))
        if self._after is None:
            # The key does not exist as long as no process was told.
            with suppress(jax.errors.JaxRuntimeError):
                self._after = int(client.key_value_try_get(_STOP))
        return self._after is not None and step >= self._after
