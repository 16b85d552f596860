"""Several processes as one program: how they meet, compare notes and agree.

A launcher gives every process three environment variables, and nothing else differs
between their command lines:

```
VAST_COORDINATOR_ADDRESS   host:port of process 0
VAST_NUM_PROCESSES         how many there are
VAST_PROCESS_ID            which this one is, from 0
VAST_START_TIMEOUT         seconds to wait for the others, 300 if not given
```
"""

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from trainer.errors import HostsError
from trainer.peers import CenterWatch, MemberWatch, Watch

_ADDRESS, _COUNT, _INDEX, _TIMEOUT = (
    "VAST_COORDINATOR_ADDRESS",
    "VAST_NUM_PROCESSES",
    "VAST_PROCESS_ID",
    "VAST_START_TIMEOUT",
)
Facts = dict[str, Any]
# In the coordinator: the step after which all stop.
_STOP = "vast/stop_after"


@dataclass(frozen=True)
class Place:
    """What a launcher says of one process.

    Attributes:
        address: ``host:port`` of process 0.
        count: Processes in all.
        index: Of this one.
        timeout: Seconds to wait for the others.
    """

    address: str
    count: int
    index: int
    timeout: float = 300.0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Place | None":
        """Reads the variables; None where there are none: a single process.

        Raises:
            ValueError: If some are missing or cannot be.
        """
        given = [name for name in (_ADDRESS, _COUNT, _INDEX) if environment.get(name)]
        if not given:
            return None
        missing = {_ADDRESS, _COUNT, _INDEX} - set(given)
        if missing:
            raise ValueError(
                f"{min(missing)}: expected it beside {given[0]}; a launcher sets all "
                "three, a single process has none"
            )
        try:
            place = cls(
                environment[_ADDRESS],
                int(environment[_COUNT]),
                int(environment[_INDEX]),
                float(environment.get(_TIMEOUT) or cls.timeout),
            )
            _, port = place.address.rsplit(":", 1)
            int(port)
        except ValueError as error:
            raise ValueError(
                f"{_ADDRESS}, {_COUNT}, {_INDEX}, {_TIMEOUT}: expected host:port and "
                f"numbers, got {[environment.get(name) for name in (*given, _TIMEOUT)]}"
            ) from error
        if not 0 <= place.index < place.count:
            raise ValueError(
                f"{_INDEX}: expected 0 to {place.count - 1}, as {_COUNT} is "
                f"{place.count}, got {place.index}"
            )
        return place


@contextmanager
def together(
    environment: Mapping[str, str] = os.environ,
    *,
    alike: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Makes this process one of several, if its launcher says so. Before any device.

    While it lasts, a process that is gone ends the others: each says who it is, and
    exits with 1.

    Args:
        environment: That the launcher's variables are in.
        alike: Errors that all processes raise if one does, besides those of hosts:
            good ends, after which nobody is missed.

    Raises:
        ValueError: If the launcher's variables cannot be.
        HostsError: If not all processes are there in time, or some have fewer devices
            than others, naming which.
    """
    place = Place.read(environment)
    if place is None or place.count == 1:
        yield
        return
    alike = (HostsError, *alike)
    # JAX ends a process that waits in vain without a word of who is missing.
    watch = roll_call(place)
    watch.start()
    # Its handler of SIGTERM notes the signal for whoever asks JAX, and nobody does: a
    # process told to stop before it trains would go on as if nothing were.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            place.address,
            place.count,
            place.index,
            initialization_timeout=max(10, round(place.timeout)),
        )
        _check_devices()
        yield
    except alike:
        watch.leave()
        raise
    except jax.errors.JaxRuntimeError:
        watch.await_loss()
        watch.fail()
        raise
    except BaseException:
        watch.fail()
        raise
    watch.leave()


def roll_call(place: Place) -> Watch:
    """Waits until all processes are there, and tells every one if not.

    Process 0 listens where JAX's coordinator will, and has left when it starts; where
    it is watched, on a port that is free, it says in its answer.

    Returns:
        This process's part in the watch over all, not started.

    Raises:
        HostsError: If some are missing, or two have one number.
    """
    deadline = time.monotonic() + place.timeout
    return (_call if place.index == 0 else _answer)(place, deadline)


def _call(place: Place, deadline: float) -> Watch:
    here = {0: socket.gethostname()}
    doubled = ""
    answers: list[socket.socket] = []
    port = int(place.address.rsplit(":", 1)[1])
    with socket.create_server(("", port)) as server:
        while len(here) < place.count and not doubled:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
                connection.settimeout(5)
                answers.append(connection)
                index, host = json.loads(connection.makefile("r").readline())
            except TimeoutError:
                if time.monotonic() >= deadline:
                    break
                continue
            except (ValueError, OSError):
                continue  # Something else knocked: a health check, say.
            if index in here:
                doubled = f"process {index} is there twice: {here[index]} and {host}"
            here[index] = host
        missing = sorted(set(range(place.count)) - set(here))
        verdict = doubled
        if missing and not doubled:
            verdict = (
                f"after {place.timeout:.0f} s {', '.join(map(str, missing))} of "
                f"{place.count} processes (numbered from 0) did not come to "
                f"{place.address}; here are "
                + ", ".join(f"{index} on {here[index]}" for index in sorted(here))
                + ". Look at the missing ones' logs, then start all of them again"
            )
        watched = socket.create_server(("", 0), backlog=place.count)
        for connection in answers:
            _tell(connection, _Verdict(verdict, here[0], watched.getsockname()[1]))
    if verdict:
        watched.close()
        raise HostsError(verdict)
    return CenterWatch(here, watched)


@dataclass(frozen=True)
class _Verdict:
    """Process 0's answer to all: what is wrong, if anything, and where to go on."""

    error: str
    host: str
    port: int


def _tell(connection: socket.socket, verdict: _Verdict) -> None:
    with connection:
        try:
            connection.sendall((json.dumps(asdict(verdict)) + "\n").encode())
            connection.recv(1)  # Whoever closes last keeps no port busy.
        except OSError:
            pass  # Gone: it will be missed in what comes next.


def _answer(place: Place, deadline: float) -> Watch:
    host, port = place.address.rsplit(":", 1)
    verdict = _hear(place, (host, int(port)), deadline)
    if verdict.error:
        raise HostsError(verdict.error)
    try:
        connection = socket.create_connection((host, verdict.port), timeout=30)
    except OSError as error:
        raise HostsError(
            f"process {place.index} on {socket.gethostname()} does not reach port "
            f"{verdict.port} of process 0 on {host} ({error}); processes must reach "
            "any port of each other"
        ) from error
    return MemberWatch(place.index, connection, verdict.host)


def _hear(place: Place, address: tuple[str, int], deadline: float) -> _Verdict:
    reason: Exception | None = None
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(address, timeout=5) as connection:
                line = json.dumps([place.index, socket.gethostname()]) + "\n"
                connection.sendall(line.encode())
                # The caller's own deadline decides: it may have begun later.
                connection.settimeout(place.timeout + 10)
                return _Verdict(**json.loads(connection.makefile("r").readline()))
        except (OSError, ValueError) as error:  # Not up yet, or not in the DNS yet.
            reason = error
            time.sleep(0.2)
    raise HostsError(
        f"process {place.index} on {socket.gethostname()} found no process 0 at "
        f"{place.address} within {place.timeout:.0f} s ({reason})"
    )


def is_primary() -> bool:
    """Whether this process writes what is written once: process 0 does."""
    return jax.process_index() == 0


def wait_for_all(where: str, *, timeout_s: float = 600) -> None:
    """Waits until every process is there; without a collective, which waits 30 s.

    Args:
        where: Name of the place, the same in all.
        timeout_s: How long to wait.

    Raises:
        JaxRuntimeError: If not all come.
    """
    multihost.get_barrier_sync_fn()(key=where, timeout_ms=round(1e3 * timeout_s))


def gather(facts: Facts) -> list[Facts]:
    """Facts of every process, by its number. All of them must call this."""
    if jax.process_count() == 1:
        return [facts]
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size)).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    return [
        json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def check_alike(facts: Facts) -> None:
    """Refuses to go on unless all processes hold the same of what must be the same.

    Args:
        facts: JSON-ready values by name, nested or not.

    Raises:
        HostsError: Naming the processes and what differs.
    """
    wait_for_all("check_alike")
    everyone = gather({"host": socket.gethostname(), "facts": facts})
    first = dict(_flat(everyone[0]["facts"]))
    for index, other in enumerate(everyone):
        for name, value in _flat(other["facts"]):
            if value != first.get(name):
                raise HostsError(
                    f"{name} differs: {first.get(name)!r} in process 0 on "
                    f"{everyone[0]['host']}, {value!r} in process {index} on "
                    f"{other['host']}; start all processes with the same command, "
                    "packages and data"
                )


def introduce(held: str) -> list[str]:
    """Says who is there with which devices, and what each holds. All must call this.

    Args:
        held: What this process holds of each batch.

    Returns:
        A line a process.
    """
    devices = jax.local_devices()
    everyone = gather(
        {
            "host": socket.gethostname(),
            "devices": f"{devices[0].device_kind} "
            + ", ".join(str(device.id) for device in devices),
            "held": held,
        }
    )
    return [
        f"process {index} on {each['host']}: {each['devices']}; {each['held']}"
        for index, each in enumerate(everyone)
    ]


def _check_devices() -> None:
    """Refuses unequal numbers of devices, which JAX cannot even compare notes over."""
    counts = Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        raise HostsError(
            "expected as many devices in every process, got "
            + ", ".join(
                f"{counts[index]} in process {index}" for index in sorted(counts)
            )
            + f" (this is process {jax.process_index()} on {socket.gethostname()}); "
            "look for hosts that lack devices, then start all of them again"
        )


def _flat(facts: Facts, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check_one_folder(file: epath.Path) -> None:
    """Refuses a file whose folder is not one and the same for all processes.

    A local path may be a disk of each machine's own. All would wait for each other's
    parts of the first checkpoint there.

    Args:
        file: In that folder, which is made if it does not exist; what is written there
            for a moment has its name and more. All of them must call this.

    Raises:
        HostsError: Naming the processes that see another folder.
    """
    if jax.process_count() == 1:
        return
    token = gather({"token": uuid.uuid4().hex})[0]["token"]
    mark = file.parent / f"{file.name}.{token}"
    if is_primary():
        file.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text("")
    wait_for_all("marked")
    everyone = gather({"host": socket.gethostname(), "sees": mark.exists()})
    if is_primary():
        mark.unlink()
    apart = [
        f"{index} on {each['host']}"
        for index, each in enumerate(everyone)
        if not each["sees"]
    ]
    if apart:
        raise HostsError(
            f"{file.parent}: is another folder for process {', '.join(apart)} than for "
            f"process 0 on {everyone[0]['host']}; give an --out that all of them share"
        )


class Stop:
    """Has all processes stop after the same step, soon after one was told to.

    Whoever is told writes in JAX's coordinator after which step all stop, and every one
    looks there before each call: nothing waits, as agreeing by a collective would.

    Args:
        ahead: Steps that a process may have started beyond those of any other.
    """

    def __init__(self, *, ahead: int) -> None:
        self._ahead = ahead
        self._after: int | None = None

    def reached(self, step: int, *, told: bool) -> bool:
        """Whether to stop. All of them must call this before each call.

        Args:
            step: Started so far.
            told: Whether this process is to stop.
        """
        if jax.process_count() == 1:
            return told
        client = multihost.get_jax_distributed_client()
        if told and self._after is None:
            with suppress(jax.errors.JaxRuntimeError):  # Another was told as well.
                client.key_value_set(_STOP, str(step + 2 * self._ahead))
        if self._after is None:
            with suppress(jax.errors.JaxRuntimeError):  # Nobody was told.
                self._after = int(client.key_value_try_get(_STOP))
        return self._after is not None and step >= self._after
