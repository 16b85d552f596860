"""Sources whose reader is a class of the user's own, named on the command line.

The class is imported because the user typed its name. A name that stands in a file or a
store is never imported: the file may come from a stranger.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.episode_reader import ReaderSource
from pipeline.store.errors import UsageError

# Start of the names of this package's files.
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def is_own(kind: str) -> bool:
    """Tells whether a kind of input names a class of the user's, ``module:Class``."""
    return ":" in kind


@dataclass(frozen=True)
class UserSource(ReaderSource):
    """An input that a reader class written by the user reads."""

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """Raises UsageError with the file and line where the user's code failed.

        Args:
            doing: Words for the work of the block in the error, such as ``"reading
                episodes 0 to 9"``.

        Raises:
            UsageError: In place of an exception of the user's code. A traceback through
                Beam would bury the line that the user has to mend.
        """
        try:
            yield
        except Exception as error:
            # Exceptions with an exit code are this project's, and say what to do. An
            # OSError may mean that a disk or a network failed, and repeating the
            # command may help.
            if hasattr(error, "exit_code") or isinstance(error, OSError):
                raise
            places = traceback.extract_tb(error.__traceback__)
            # The innermost line of the user's own file, even if the exception was
            # raised deep in a library that it called.
            module_file = getattr(
                sys.modules.get(self.reader.partition(":")[0]), "__file__", ""
            )
            own = [frame for frame in places if frame.filename == module_file]
            # A class may be imported from another module than the one that was named.
            own = own or [f for f in places if not f.filename.startswith(_OURS)]
            if not own:
                raise UsageError(
                    f"{self.path}: {self.reader} returned what cannot be used in "
                    f"{doing} ({type(error).__name__}: {error}); expected a whole "
                    "number for each episode of `lengths`, and of `read` an iterable "
                    "of dictionaries of arrays; correct the class"
                ) from error
            place = own[-1]
            raise UsageError(
                f"{self.path}: {self.reader} raised {type(error).__name__}: {error} in "
                f"{doing}, at {place.filename}:{place.lineno}; correct it there"
            ) from error
