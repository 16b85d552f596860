"""Inputs of the user's own kind, read by a class named on the command line.

The class is imported because the user typed its name; nothing that stands in a file or
a store is ever imported.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.episode_reader import ReaderSource
from pipeline.store.errors import UsageError


def is_own(kind: str) -> bool:
    """Tells whether a kind of input is a class of the user's, ``module:Class``."""
    return ":" in kind


@dataclass(frozen=True)
class OwnSource(ReaderSource):
    """An input that a reader of the user's reads."""

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """Says in one line what went wrong in the user's code, and where.

        Raises:
            UsageError: For whatever it raises that has no exit code of its own.
        """
        try:
            yield
        except Exception as error:
            if hasattr(error, "exit_code") or isinstance(error, OSError):
                raise
            places = traceback.extract_tb(error.__traceback__)
            # Where their own code was, whatever it had called.
            theirs = getattr(
                sys.modules.get(self.reader.partition(":")[0]), "__file__", ""
            )
            own = [each for each in places if each.filename == theirs]
            place = (own or places)[-1]
            raise UsageError(
                f"{self.path}: {self.reader} raised {type(error).__name__}: {error} in "
                f"{doing}, at {place.filename}:{place.lineno}; correct it there"
            ) from error
