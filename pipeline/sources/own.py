"""Sources whose reader is a class of the user's own, named on the command line.

The class is imported because the user typed its name. A name that stands in a file or a
store is never imported: the file may come from a stranger.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.episode_reader import ReaderSource
from pipeline.store.errors import UsageError


def is_own(kind: str) -> bool:
    """Tells whether a kind of input names a class of the user's, ``module:Class``."""
    return ":" in kind


@dataclass(frozen=True)
class UserSource(ReaderSource):
    """An input that a reader class of the user's reads."""

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """Raises UsageError with the file and line where the user's code failed.

        Args:
            doing: What the reader does in the block, for the error.

        Raises:
            UsageError: In place of any exception without an exit code. A traceback
                through Beam would bury the line that the user has to mend.
        """
        try:
            yield
        except Exception as error:
            if hasattr(error, "exit_code") or isinstance(error, OSError):
                raise
            places = traceback.extract_tb(error.__traceback__)
            # The innermost line of the user's own file, even if the exception was
            # raised deep in a library that it called.
            module_file = getattr(
                sys.modules.get(self.reader.partition(":")[0]), "__file__", ""
            )
            own = [frame for frame in places if frame.filename == module_file]
            place = (own or places)[-1]
            raise UsageError(
                f"{self.path}: {self.reader} raised {type(error).__name__}: {error} in "
                f"{doing}, at {place.filename}:{place.lineno}; correct it there"
            ) from error
