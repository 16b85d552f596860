"""Joins several processes into one JAX program, for as long as a command trains."""

import ctypes
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from trainer.errors import HostsError
from trainer.parallel.agreement import check_devices
from trainer.parallel.roll_call import Place, find_bind_address, hold_roll_call

# Variables with the hosts that gRPC reaches without a proxy; it reads the first one
# that is set.
_NO_PROXY = ("no_grpc_proxy", "no_proxy")


@contextmanager
def join_processes(
    environment: Mapping[str, str] = os.environ,
    *,
    alike: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Joins this process with the others of its run, if the launcher started several.

    It must be entered before JAX uses any device. Inside, the loss of a process ends
    all others: each of them names the lost process and exits with 1.

    Args:
        environment: Environment variables, among them the launcher's.
        alike: Errors that all processes raise at the same step, besides `HostsError`. A
            process that leaves with such an error does not count as lost.

    Raises:
        UsageError: If the launcher's variables are incomplete or invalid.
        HostsError: If not all processes arrive in time, or some have fewer devices than
            others; the error names them.
    """
    place = Place.read(environment)
    if place is None or place.count == 1:
        yield
        return
    alike = (HostsError, *alike)
    # The roll call comes before JAX's own meeting, which ends a process that waits in
    # vain without naming the missing ones.
    watch = hold_roll_call(place)
    watch.start()
    _delay_aborts()
    # JAX's handler of SIGTERM only records the signal for its preemption service, which
    # nothing here asks: a process that is told to stop before it trains would continue.
    jax.config.update("jax_enable_preemption_service", False)
    _bypass_proxies(place.address.rsplit(":", 1)[0].strip("[]"))
    try:
        jax.distributed.initialize(
            place.address,
            place.count,
            place.index,
            # If JAX detected Slurm or Open MPI, it would leave each process one GPU,
            # because it expects that they start a process for each GPU.
            cluster_detection_method="deactivate",
            initialization_timeout=max(10, round(place.timeout)),
            coordinator_bind_address=find_bind_address(place)
            if place.index == 0
            else None,
        )
        check_devices()
        yield
    except alike:
        watch.leave()
        raise
    except jax.errors.JaxRuntimeError:
        # A collective fails here if another process is gone: the watch names it then,
        # and ends this process before the error is reported as its own.
        watch.await_loss()
        watch.fail()
        raise
    except BaseException:
        watch.fail()
        raise
    watch.leave()


def _delay_aborts() -> None:
    """Delays aborts, so that the watch can name the lost process and exit with 1.

    JAX aborts a process that has lost process 0. Gloo aborts a process whose devices
    lost others in the middle of a sum and start another one. Both call ``abort`` in
    threads of their own, where no Python handler runs.
    """
    # A C handler runs in the thread that aborts, with the number of the signal as its
    # argument, and the abort goes on when the handler returns. SIGABRT is signal 6, so
    # libc's `sleep` as the handler waits six seconds: longer than any process's grace.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (
        [ctypes.c_int, ctypes.c_void_p],
        ctypes.c_void_p,
    )
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _bypass_proxies(host: str) -> None:
    """Makes gRPC, and so JAX, call process 0 directly, even if a proxy is set.

    A proxy does not know the names of a cluster, so processes would not meet.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return
    first, second = _NO_PROXY
    known = os.environ.get(second) or os.environ.get(second.upper())
    os.environ[second] = f"{known},{host}" if known else host
    if first in os.environ:
        os.environ[first] += f",{host}"
    # JAX otherwise warns that a proxy may break its coordinator.
    jax.config.update("jax_check_proxy_envs", False)
