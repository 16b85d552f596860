"""How processes meet: a launcher says where, and process 0 calls the roll.

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
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pipeline.store.errors import UsageError
from trainer.errors import HostsError
from trainer.parallel.peer_watch import CenterWatch, MemberWatch, Watch

_ADDRESS, _COUNT, _INDEX, _TIMEOUT = (
    "VAST_COORDINATOR_ADDRESS",
    "VAST_NUM_PROCESSES",
    "VAST_PROCESS_ID",
    "VAST_START_TIMEOUT",
)


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
            UsageError: If some are missing or cannot be.
        """
        given = [name for name in (_ADDRESS, _COUNT, _INDEX) if environment.get(name)]
        if not given:
            return None
        missing = {_ADDRESS, _COUNT, _INDEX} - set(given)
        if missing:
            raise UsageError(
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
            raise UsageError(
                f"{_ADDRESS}, {_COUNT}, {_INDEX}, {_TIMEOUT}: expected host:port and "
                f"numbers, got {[environment.get(name) for name in (*given, _TIMEOUT)]}"
            ) from error
        if not 0 <= place.index < place.count:
            raise UsageError(
                f"{_INDEX}: expected 0 to {place.count - 1}, as {_COUNT} is "
                f"{place.count}, got {place.index}"
            )
        return place


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
