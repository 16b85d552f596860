"""Several processes as one program, for as long as a command trains."""

import ctypes
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from trainer.errors import HostsError
from trainer.parallel.agreement import check_devices
from trainer.parallel.roll_call import Place, bound_address, roll_call

# What gRPC asks in turn, whether to leave out a proxy that is set for all else.
_NO_PROXY = ("no_grpc_proxy", "no_proxy")


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
        UsageError: If the launcher's variables cannot be.
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
    _hold_up_aborts()
    # Its handler of SIGTERM notes the signal for whoever asks JAX, and nobody does: a
    # process told to stop before it trains would go on as if nothing were.
    jax.config.update("jax_enable_preemption_service", False)
    _leave_out_of_proxies(place.address.rsplit(":", 1)[0].strip("[]"))
    try:
        jax.distributed.initialize(
            place.address,
            place.count,
            place.index,
            initialization_timeout=max(10, round(place.timeout)),
            coordinator_bind_address=bound_address(place) if place.index == 0 else None,
        )
        check_devices()
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


def _hold_up_aborts() -> None:
    """Gives the watch time to say which process is gone, and to exit with 1.

    JAX aborts a process that has lost process 0, and gloo one whose devices lost
    others in the middle of a sum and go on with another, both from threads of their own
    that ask nobody. A handler of SIGABRT is called in that thread, with the signal's
    number, and an abort goes on once it has returned: libc's ``sleep`` returns after
    six seconds, which is longer than the grace of any process.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (
        [ctypes.c_int, ctypes.c_void_p],
        ctypes.c_void_p,
    )
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _leave_out_of_proxies(host: str) -> None:
    """Has gRPC, and so JAX, call process 0 directly, whatever proxy is set."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return
    first, second = _NO_PROXY
    known = os.environ.get(second) or os.environ.get(second.upper())
    os.environ[second] = f"{known},{host}" if known else host
    if first in os.environ:
        os.environ[first] += f",{host}"
    jax.config.update("jax_check_proxy_envs", False)
