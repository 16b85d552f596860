"""A child process that answers messages, and what its parent makes of its death.

Children are spawned, never forked: a copy of a process in which JAX runs may hang.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from pipeline.store.errors import UsageError
from trainer.errors import EvaluationError

_STOP_TIMEOUT_S = 5.0


class Failure(NamedTuple):
    """A child's last message when something raised.

    Attributes:
        summary: One line: what raised, and where.
        details: The traceback.
        usage: Whether a person can put it right: what was asked for cannot be.
    """

    summary: str
    details: str
    usage: bool = False


class Child:
    """One process and the parent's end of its connection.

    Args:
        name: Of the process.
        where: What the child is, for errors.
        target: Run in the child as ``target(connection, *arguments)``. It must be
            importable without what a parent must not load.
        arguments: To pass on; they are pickled.
    """

    def __init__(
        self,
        name: str,
        where: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._where = where
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=target, args=(theirs, *arguments), name=name, daemon=True
        )
        self._process.start()
        # Kept open here, it would hide that the child has died.
        theirs.close()

    def send(self, message: Any) -> None:
        """Sends a message; a child that died is reported by the next ``receive``."""
        try:
            self._connection.send(message)
        except OSError:
            return

    def receive(self, timeout_s: float | None = None) -> Any:
        """Waits for the child's answer.

        Args:
            timeout_s: How long at most; None waits for ever.

        Returns:
            What it sent.

        Raises:
            EvaluationError: If it failed, died, or did not answer in time.
            UsageError: If it was asked for what cannot be.
        """
        try:
            if timeout_s is not None and not self._connection.poll(timeout_s):
                raise EvaluationError(
                    f"{self._where}: no answer within {timeout_s:g} s"
                )
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_STOP_TIMEOUT_S)
            raise EvaluationError(
                f"{self._where}: expected its answer, but its process ended with exit "
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
        self._connection.close()
        self._process.join(0.2)
        for stop in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                stop()
                self._process.join(_STOP_TIMEOUT_S)
        self._process.close()
