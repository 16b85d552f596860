"""A child process that answers messages; its failure or death raises in the parent."""

import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from pipeline.store.errors import UsageError
from trainer.errors import EvaluationError

# Seconds to wait for a process to end, before it is ended by a stronger signal.
_STOP_TIMEOUT_S = 5.0


class Failure(NamedTuple):
    """The last message of a child in which an exception was raised.

    Attributes:
        summary: One line with the exception and what the child was doing.
        details: Traceback.
        usage: Whether the user's request caused it, so that the user can correct it.
    """

    summary: str
    details: str
    usage: bool = False


class Child:
    """One process and the parent's end of its connection.

    Args:
        name: Name of the process.
        where: Description of the child, for error messages.
        target: Function that the child runs as ``target(connection, *arguments)``. The
            child imports its module, which should import nothing heavy.
        arguments: Further arguments of the function; they are pickled.
    """

    def __init__(
        self,
        name: str,
        where: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
    ) -> None:
        # Spawned, never forked: JAX runs threads, and a forked copy of a process with
        # threads may wait for ever for a lock that one of them held.
        context = multiprocessing.get_context("spawn")
        self._where = where
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=target, args=(theirs, *arguments), name=name, daemon=True
        )
        self._process.start()
        # The child's end must be open in the child only: `recv` raises EOFError when
        # the last copy is closed, which is how the child's death is noticed.
        theirs.close()

    def send(self, message: Any) -> None:
        """Sends a message; if the child has died, the next ``receive`` raises."""
        try:
            self._connection.send(message)
        except OSError:
            # The child may have sent a `Failure` before it ended, which says more.
            return

    def receive(self, timeout_s: float | None = None) -> Any:
        """Waits for the child's answer.

        Args:
            timeout_s: Seconds to wait at most; None waits for ever.

        Returns:
            The message that the child sent.

        Raises:
            EvaluationError: If the child failed, died, or did not answer in time.
            UsageError: If the user's request caused the failure.
        """
        try:
            if timeout_s is not None and not self._connection.poll(timeout_s):
                raise EvaluationError(
                    f"{self._where}: expected an answer, got none within "
                    f"{timeout_s:g} s; try again on a less busy machine"
                )
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_STOP_TIMEOUT_S)
            raise EvaluationError(
                f"{self._where}: expected an answer, but the process ended with exit "
                f"code {self._process.exitcode}; if it was killed for lack of memory, "
                "use fewer environments or workers"
            ) from error
        if isinstance(message, Failure):
            if message.usage:
                raise UsageError(message.summary)
            error_of_child = EvaluationError(f"{self._where}: {message.summary}")
            error_of_child.add_note(message.details)
            raise error_of_child
        return message

    def close(self) -> None:
        """Ends the process, by force if it does not end by itself."""
        # A child that waits for a message ends when the connection is closed.
        self._connection.close()
        self._process.join(0.2)
        for stop in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                stop()
                self._process.join(_STOP_TIMEOUT_S)
        # On a busy machine even a killed process may take longer to end. The handle is
        # left open then: an error here would lose what the child has sent.
        with contextlib.suppress(ValueError):
            self._process.close()
