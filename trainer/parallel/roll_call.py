"""How processes meet: a launcher says where, and process 0 calls the roll.

A launcher gives every process three environment variables, and nothing else differs
between their command lines:

```
VAST_COORDINATOR_ADDRESS   host:port of process 0
VAST_NUM_PROCESSES         how many there are
VAST_PROCESS_ID            which this one is, from 0
VAST_START_TIMEOUT         seconds to wait for the others, 300 if not given
VAST_TOKEN                 what all know and nobody else; who does not is passed over
VAST_BIND_ADDRESS          where process 0 listens, if not at the coordinator's address
```
"""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.store.errors import UsageError
from trainer.errors import HostsError
from trainer.parallel.messages import GREETING_S, Connection, Greeting, Greetings, Host
from trainer.parallel.peer_watch import CenterWatch, MemberWatch, Watch

_ADDRESS, _COUNT, _INDEX, _TIMEOUT = (
    "VAST_COORDINATOR_ADDRESS",
    "VAST_NUM_PROCESSES",
    "VAST_PROCESS_ID",
    "VAST_START_TIMEOUT",
)
_TOKEN, _BIND = "VAST_TOKEN", "VAST_BIND_ADDRESS"
# A message holds it, and more.
_LONGEST_TOKEN = 256


@dataclass(frozen=True)
class Place:
    """What a launcher says of one process.

    Attributes:
        address: ``host:port`` of process 0.
        count: Processes in all.
        index: Of this one.
        timeout: Seconds to wait for the others.
        token: What all processes of the run know; empty if the launcher gives none.
        bind: Where process 0 listens; empty for the address.
    """

    address: str
    count: int
    index: int
    timeout: float = 300.0
    token: str = field(default="", repr=False)
    bind: str = ""

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
                environment.get(_TOKEN, ""),
                environment.get(_BIND, ""),
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
        if len(place.token) > _LONGEST_TOKEN:
            raise UsageError(
                f"{_TOKEN}: expected at most {_LONGEST_TOKEN} characters, got "
                f"{len(place.token)}"
            )
        return place


def roll_call(place: Place) -> Watch:
    """Waits until all processes are there, and tells every one if not.

    Process 0 listens where JAX's coordinator will, and has left when it starts; where
    it is watched, on a port that is free, it says in its answer.

    Returns:
        This process's part in the watch over all, not started.

    Raises:
        UsageError: If process 0 cannot listen at its address.
        HostsError: If some are missing, or two have one number.
    """
    deadline = time.monotonic() + place.timeout
    return (_call if place.index == 0 else _answer)(place, deadline)


def bound_address(place: Place) -> str:
    """Where process 0 listens, and nowhere else: ``address:port``, of numbers."""
    host, port = _bound(place)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(place: Place) -> tuple[str, int]:
    host, port = place.address.rsplit(":", 1)
    found = socket.getaddrinfo(
        place.bind or host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
    # One of version 4, if there is any: what others find first.
    *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return str(address[0]), int(address[1])


def _listen(place: Place, deadline: float) -> socket.socket:
    while True:
        try:
            return _serve(*_bound(place), place.count)
        except socket.gaierror as error:  # Its own name may not be in the DNS yet.
            if time.monotonic() >= deadline:
                raise _cannot_listen(place, error) from error
            time.sleep(0.2)
        except OSError as error:
            raise _cannot_listen(place, error) from error


def _cannot_listen(place: Place, error: OSError) -> UsageError:
    return UsageError(
        f"{_ADDRESS}: process 0 on {socket.gethostname()} cannot listen at "
        f"{place.bind or place.address} ({error}); give an address of this machine, or "
        f"with {_BIND} the one to listen at where that is another"
    )


def _serve(host: str, port: int, count: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=max(128, count))


def _call(place: Place, deadline: float) -> Watch:
    here = {0: socket.gethostname()}
    doubled = ""
    answers: list[Connection] = []
    with _listen(place, deadline) as server:
        coming = Greetings(server, place.token, until=deadline)
        for connection, greeting in coming:
            index = greeting.index
            if not 0 < index < place.count:
                connection.close()
                continue
            answers.append(connection)
            if index in here:
                doubled = (
                    f"process {index} is there twice: {here[index]} and {greeting.host}"
                )
                break
            here[index] = greeting.host
            if len(here) == place.count:
                break
        missing = sorted(set(range(place.count)) - set(here))
        verdict = doubled
        if missing and not doubled:
            verdict = (
                f"after {place.timeout:.0f} s {', '.join(map(str, missing))} of "
                f"{place.count} processes (numbered from 0) did not come to "
                f"{place.address}; here are "
                + ", ".join(f"{index} on {here[index]}" for index in sorted(here))
                + _passed_over(coming.strangers)
                + ". Look at the missing ones' logs, then start all of them again"
            )
        watched = _serve(server.getsockname()[0], 0, place.count)
        for connection in answers:
            _tell(connection, _Verdict(verdict, here[0], watched.getsockname()[1]))
    if verdict:
        watched.close()
        raise HostsError(verdict)
    return CenterWatch(here, watched, token=place.token)


def _passed_over(strangers: int) -> str:
    if not strangers:
        return ""
    return f", and {strangers} others were passed over, as who has another {_TOKEN} is"


@dataclass(frozen=True)
class _Verdict:
    """Process 0's answer to all: what is wrong, if anything, and where to go on."""

    error: str
    host: Host
    port: int


def _tell(connection: Connection, verdict: _Verdict) -> None:
    connection.send(verdict)
    connection.fill(GREETING_S)  # Whoever closes last keeps no port busy.
    connection.close()


def _answer(place: Place, deadline: float) -> Watch:
    host, port = place.address.rsplit(":", 1)
    host = host.strip("[]")
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
    return MemberWatch(place.index, connection, verdict.host, token=place.token)


def _hear(place: Place, address: tuple[str, int], deadline: float) -> _Verdict:
    reason: object = None
    while time.monotonic() < deadline:
        try:
            connection = Connection(socket.create_connection(address, timeout=5))
        except OSError as error:  # Not up yet, or not in the DNS yet.
            reason = error
        else:
            connection.send(
                Greeting(place.token, place.index, socket.gethostname()[:255])
            )
            # The caller's own deadline decides: it may have begun later.
            until = time.monotonic() + place.timeout + 10
            verdict = connection.receive(_Verdict, until=until)
            connection.socket.close()
            if verdict is not None:
                return verdict
            reason = f"no answer there: has it another {_TOKEN}?"
        time.sleep(0.2)
    raise HostsError(
        f"process {place.index} on {socket.gethostname()} found no process 0 at "
        f"{place.address} within {place.timeout:.0f} s ({reason})"
    )
