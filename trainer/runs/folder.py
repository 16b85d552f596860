"""The folder of a run, on disk or gs://, and what lies in it.

```
RUN/run.json            configuration, task, facts of the data, fingerprint, versions
RUN/training.json       who trains there, while it does, see `lock`
RUN/metrics.jsonl       one line per seed and log point of training
RUN/tensorboard/        the same and evaluations, for TensorBoard
RUN/wandb.json, wandb/  id of the run at Weights & Biases and its files, if asked for
RUN/checkpoints/STEP/   Orbax: params, train, data, run
RUN/evaluations.jsonl   one line per evaluated step, seed and task
RUN/subgoals/           an inspection of predicted sub-goals, see `subgoal_files`
```

What is in these files is read and written by the other modules of this room; a
`RunFolder` is all that they are handed.
"""

import importlib.util
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from etils import epath

from pipeline.store import files
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.files import Content, follow_emulator, is_remote

FolderLike = str | os.PathLike[str]

RUN_FILE = "run.json"
LOCK_FILE = "training.json"
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, which need not exist yet.

    Attributes:
        path: On disk or gs://.
    """

    path: epath.Path

    @classmethod
    def open(cls, path: FolderLike) -> "RunFolder":
        """Makes a run's folder of what a user gave; nothing is looked up.

        Args:
            path: As ``open_folder`` takes it.

        Returns:
            The folder.
        """
        return cls(open_folder(path))

    def __str__(self) -> str:
        return os.fspath(self.path)

    @property
    def name(self) -> str:
        """Name of the folder; that of the working directory for ``.``."""
        return (self.path if self.remote else self.path.resolve()).name

    @property
    def remote(self) -> bool:
        """Whether it is in a bucket."""
        return is_remote(str(self))

    @property
    def checkpoints(self) -> epath.Path:
        """Where the checkpoints are."""
        return self.path / CHECKPOINTS

    def exists(self) -> bool:
        """Whether a run has been started there."""
        return (self.path / RUN_FILE).exists()

    def read(self, name: str) -> Content:
        """Reads a small file; its bytes are None if it does not exist."""
        return files.read(str(self), name)

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Reads a file of JSON lines; one that does not exist is empty.

        A last line without its end is left out: a killed writer's.

        Raises:
            DataFormatError: If a line is no JSON object.
        """
        complete, _, _ = (self.read(name).data or b"").rpartition(b"\n")
        return [
            load_object(
                line,
                where=f"{self}/{name}, line {number}",
                remedy="the file is damaged, remove the line",
            )
            for number, line in enumerate(complete.split(b"\n"), start=1)
            if line
        ]

    def write(self, name: str, data: bytes) -> None:
        """Writes a small file in one atomic step, replacing what was there."""
        files.write(str(self), name, data)

    def commit(self, name: str, data: bytes, *, replacing: Content) -> None:
        """Writes a small file unless it has changed since it was read.

        Raises:
            DataFormatError: If somebody else has written it meanwhile.
        """
        files.commit(str(self), name, data, replacing=replacing)

    def delete(self, name: str, *, replacing: Content) -> None:
        """Deletes a small file unless it has changed since it was read."""
        files.delete(str(self), name, replacing=replacing)


def open_folder(path: FolderLike) -> epath.Path:
    """Makes a path of what a user gave for a folder.

    Args:
        path: Local path or ``gs://bucket/path``; not a ``pathlib.Path`` of the latter,
            which has lost a slash.

    Returns:
        The path; nothing is looked up.

    Raises:
        MissingPackageError: If it is on gs:// and what reads that is not installed.
        UsageError: If it is on any other object store.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return epath.Path(text)
    if not text.startswith("gs://"):
        raise UsageError(f"{text}: expected a local path or gs://bucket/path")
    _configure_gcsfs()
    return epath.Path(text)


def find_runs(pattern: FolderLike) -> list[RunFolder]:
    """Folders that a path stands for; no shell knows those on gs://.

    Args:
        pattern: A folder, or one whose last part is a pattern, as a shell's:
            ``gs://bucket/runs/*``.

    Returns:
        The folder as given, whatever it holds; of a pattern, those that match and hold
        a run, by name.

    Raises:
        DataFormatError: If nothing matches.
    """
    given = RunFolder.open(pattern)
    parent, name = given.path.parent, given.path.name
    # A folder may be called as a pattern is written.
    if not set(name) & set("*?[") or given.exists():
        return [given]
    there = sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
    matching = (
        RunFolder(parent / each)
        for each in there
        # As in a shell, names with a dot are asked for by it.
        if fnmatchcase(each, name) and each.startswith(".") <= name.startswith(".")
    )
    found = [folder for folder in matching if folder.exists()]
    if not found:
        raise DataFormatError(f"{os.fspath(pattern)}: matches no folder of a run")
    return found


def _configure_gcsfs() -> None:
    """Sets how gcsfs, which Orbax reaches gs:// by, works in this process."""
    missing = [
        module for module in ("fsspec", "gcsfs") if not importlib.util.find_spec(module)
    ]
    if missing:
        raise MissingPackageError(
            f"runs on gs:// need {' and '.join(missing)}; install it with "
            "`pip install 'vast-rl[cloud]'`"
        )
    import fsspec

    # What it has listed once it would list for ever, whatever others write.
    options: dict[str, object] = {"use_listings_cache": False}
    if follow_emulator():
        # By itself it would send real credentials there, and its class for buckets of
        # all kinds waits a minute for an answer over gRPC to which kind one is.
        options["token"] = "anon"
        for protocol in ("gs", "gcs"):
            fsspec.register_implementation(
                protocol, "gcsfs.core.GCSFileSystem", clobber=True
            )
    fsspec.config.conf["gs"] = {**fsspec.config.conf.get("gs", {}), **options}
