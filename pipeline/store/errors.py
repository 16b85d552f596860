"""What can be wrong with data on disk, as exceptions a person can act on."""


class DataFormatError(Exception):
    """Bytes on disk are not what the format says.

    The message names what was expected, what came, where, and what to do next; a
    command line prints it as one line and exits with 2.
    """


class UnfinishedStoreError(DataFormatError):
    """A store without ``dataset.json``: a run that never committed."""


class FormatVersionError(DataFormatError):
    """A store written by a newer version of this project than the reader's."""


class BadEpisodeError(DataFormatError):
    """An episode that must not be trained on: NaN, Inf or fields of unlike length.

    Attributes:
        reason: One word to count by, such as ``"nonfinite"``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
