"""The roll call: processes meet at process 0, which names those that are missing.

A launcher gives every process these environment variables, the last three of which are
optional. Command lines are the same for all processes.

```
VAST_COORDINATOR_ADDRESS   host:port of process 0
VAST_NUM_PROCESSES         number of processes
VAST_PROCESS_ID            number of this process, from 0
VAST_START_TIMEOUT         seconds to wait for the others, 300 by default
VAST_TOKEN                 secret of the run; connections without it are dropped
VAST_BIND_ADDRESS          address that process 0 listens at, if it is another one
```
"""

import errno
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.store.errors import UsageError
from trainer.errors import HostsError
from trainer.parallel.messages import GREETING_S, Connection, Greeting, Greetings, Host
from trainer.parallel.peer_watch import CenterWatch, MemberWatch, PeerWatch

_ADDRESS, _COUNT, _INDEX, _TIMEOUT = (
    "VAST_COORDINATOR_ADDRESS",
    "VAST_NUM_PROCESSES",
    "VAST_PROCESS_ID",
    "VAST_START_TIMEOUT",
)
_TOKEN, _BIND = "VAST_TOKEN", "VAST_BIND_ADDRESS"
# Seconds in which a name may still lead to the address of the pod that had it before:
# caches of the DNS keep answers for up to 30 s.
_STALE_S = 60.0
# A greeting contains the token and a host name, and must fit `LONGEST_BYTES`.
_LONGEST_TOKEN = 256


@dataclass(frozen=True)
class Place:
    """The place of one process in its run, as the launcher gives it.

    Attributes:
        address: ``host:port`` of process 0.
        count: Number of processes.
        index: Number of this process.
        timeout: Seconds to wait for the others.
        token: Secret that all processes of the run know; empty if the launcher gives
            none.
        bind: Host that process 0 listens at; empty for the host of ``address``.
    """

    address: str
    count: int
    index: int
    timeout: float = 300.0
    # Left out of the `repr`, which may be logged.
    token: str = field(default="", repr=False)
    bind: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Place | None":
        """Reads the launcher's variables.

        Args:
            environment: Environment variables.

        Returns:
            The place, or None for a single process, which has no such variables.

        Raises:
            UsageError: If a variable is missing or invalid.
        """
        given = [name for name in (_ADDRESS, _COUNT, _INDEX) if environment.get(name)]
        if not given:
            return None
        missing = {_ADDRESS, _COUNT, _INDEX} - set(given)
        if missing:
            raise UsageError(
                f"{min(missing)}: expected it beside {given[0]}, got none; set "
                f"{_ADDRESS}, {_COUNT} and {_INDEX}, or for a single process none of "
                "them"
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
                "; correct what the launcher sets"
            ) from error
        if not 0 <= place.index < place.count:
            raise UsageError(
                f"{_INDEX}: expected 0 to {place.count - 1}, as {_COUNT} is "
                f"{place.count}, got {place.index}; correct what the launcher sets"
            )
        if len(place.token) > _LONGEST_TOKEN:
            raise UsageError(
                f"{_TOKEN}: expected at most {_LONGEST_TOKEN} characters, got "
                f"{len(place.token)}; choose a shorter token for all processes"
            )
        return place


def hold_roll_call(place: Place) -> PeerWatch:
    """Waits until all processes have arrived, and tells all of them if some have not.

    Args:
        place: Place of this process.

    Returns:
        This process's part in the watch over all processes, not started.

    Raises:
        UsageError: If process 0 cannot listen at its address.
        HostsError: If processes are missing, or two have the same number.
    """
    # Process 0 listens at the address of JAX's coordinator, the only one that all
    # processes know, and frees it before the coordinator starts. The watch needs a port
    # for the whole run, which process 0 names in its answer.
    deadline = time.monotonic() + place.timeout
    return (_call if place.index == 0 else _answer)(place, deadline)


def find_bind_address(place: Place) -> str:
    """Resolves the only address that process 0 listens at.

    Args:
        place: Place of process 0.

    Returns:
        ``address:port``, both numeric.

    Raises:
        OSError: If the name of the host cannot be resolved.
    """
    # JAX's coordinator would listen at all interfaces by default.
    host, port = _resolve(place)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(place: Place) -> tuple[str, int]:
    _, port = place.address.rsplit(":", 1)
    candidates = socket.getaddrinfo(
        _read_host(place), int(port), type=socket.SOCK_STREAM
    )
    # An address of IPv4, if the host has one, because the others try that first.
    *_, address = min(candidates, key=lambda entry: entry[0] != socket.AF_INET)
    return str(address[0]), int(address[1])


def _listen(place: Place, deadline: float) -> socket.socket:
    stale = min(deadline, time.monotonic() + _STALE_S)
    while True:
        try:
            host, port = _resolve(place)
            return _serve(host, port, place.count)
        except socket.gaierror as error:
            # A pod starts before the DNS has its name.
            if time.monotonic() >= deadline:
                raise _cannot_listen(place, error) from error
        except OSError as error:
            # A pod that replaces another one has its name, and a new address. With a
            # number for a host, there is nothing that could change.
            renamed = error.errno == errno.EADDRNOTAVAIL and host != _read_host(place)
            if not renamed or time.monotonic() >= stale:
                raise _cannot_listen(place, error) from error
        time.sleep(0.2)


def _read_host(place: Place) -> str:
    """Reads the host that process 0 listens at, a name or a number."""
    return place.bind or place.address.rsplit(":", 1)[0].strip("[]")


def _cannot_listen(place: Place, error: OSError) -> UsageError:
    return UsageError(
        f"{_ADDRESS}: process 0 on {socket.gethostname()} cannot listen at "
        f"{place.bind or place.address} ({error}); give an address of this machine, or "
        f"set {_BIND} to one if others reach it by another address"
    )


def _serve(host: str, port: int, count: int) -> socket.socket:
    # All processes may connect in the same moment; Python's default backlog is smaller.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=max(128, count))


def _call(place: Place, deadline: float) -> PeerWatch:
    """Calls the roll, as process 0: collects all others and answers each of them."""
    hosts = {0: socket.gethostname()}
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
            if index in hosts:
                doubled = (
                    f"{_INDEX}: expected a number for each process, got {index} twice, "
                    f"from {hosts[index]} and from {greeting.host}; correct what the "
                    "launcher sets"
                )
                break
            hosts[index] = greeting.host
            if len(hosts) == place.count:
                break
        missing = sorted(set(range(place.count)) - set(hosts))
        verdict = doubled
        if missing and not doubled:
            verdict = (
                f"after {place.timeout:.0f} s {', '.join(map(str, missing))} of "
                f"{place.count} processes (numbered from 0) did not come to "
                f"{place.address}; those that came are "
                + ", ".join(f"{index} on {hosts[index]}" for index in sorted(hosts))
                + _describe_strangers(coming.strangers)
                + ". Look at the logs of the missing processes, then start all of "
                "them again"
            )
        # Answers wait until the verdict is known, so that every process has the same.
        watched = _serve(server.getsockname()[0], 0, place.count)
        for connection in answers:
            _tell(connection, _Verdict(verdict, hosts[0], watched.getsockname()[1]))
    if verdict:
        watched.close()
        raise HostsError(verdict)
    return CenterWatch(hosts, watched, token=place.token)


def _describe_strangers(count: int) -> str:
    # A missing process may be among them: one with another token looks like a stranger.
    if not count:
        return ""
    return f", and {count} connections without this run's {_TOKEN} were dropped"


@dataclass(frozen=True)
class _Verdict:
    """Process 0's answer to all others.

    Attributes:
        error: Reason not to start, empty if there is none.
        host: Name of process 0's machine.
        port: Port of the watch.
    """

    error: str
    host: Host
    port: int


def _tell(connection: Connection, verdict: _Verdict) -> None:
    connection.send(verdict)
    # The end that closes first keeps its port in TIME_WAIT. Process 0 waits for the
    # other end to close, because JAX's coordinator needs the port next.
    connection.fill(GREETING_S)
    connection.close()


def _answer(place: Place, deadline: float) -> PeerWatch:
    """Answers the roll call, as any process but 0, and connects to the watch."""
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
            f"{verdict.port} of process 0 on {host} ({error}); let the processes reach "
            "all ports of each other"
        ) from error
    return MemberWatch(place.index, connection, verdict.host, token=place.token)


def _hear(place: Place, address: tuple[str, int], deadline: float) -> _Verdict:
    reason: object = None
    while time.monotonic() < deadline:
        try:
            connection = Connection(socket.create_connection(address, timeout=5))
        except OSError as error:
            # Process 0 may not have started yet, or its name not be in the DNS.
            reason = error
        else:
            connection.send(
                Greeting(place.token, place.index, socket.gethostname()[:255])
            )
            # Process 0's own deadline decides, and it may have started to wait later
            # than this process: giving up earlier would miss its answer.
            until = time.monotonic() + place.timeout + 10
            verdict = connection.receive(_Verdict, until=until)
            connection.socket.close()
            if verdict is not None:
                return verdict
            # Process 0 drops a greeting with another token, as it drops a stranger's.
            reason = f"no answer; does process 0 have another {_TOKEN}?"
        time.sleep(0.2)
    raise HostsError(
        f"process {place.index} on {socket.gethostname()} found no process 0 at "
        f"{place.address} within {place.timeout:.0f} s ({reason}); look at the log of "
        "process 0, then start all of them again"
    )
