"""What processes of one run agree on: settings, devices, one folder, when to stop."""

import json
import socket
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

# In the coordinator: the step after which all stop.
_STOP = "vast/stop_after"


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


def check_devices() -> None:
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
