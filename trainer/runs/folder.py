"""The folder of a run, on disk or on gs://, and the files in it.

```
RUN/run.json            configuration, task, facts of the data, fingerprint, versions
RUN/training.json       lock of the process that trains there, see `lock`
RUN/metrics.jsonl       one line per seed and log point of training
RUN/tensorboard/        metrics and evaluations for TensorBoard
RUN/wandb.json, wandb/  id of the run at Weights & Biases and its files, if enabled
RUN/checkpoints/STEP/   Orbax: params, train, data, run, digests
RUN/evaluations.jsonl   one line per evaluated step, seed and task
RUN/subgoals/           an inspection of predicted sub-goals, see `subgoal_files`
```

The other modules of this room read and write the contents of these files, and are
given a `RunFolder` to do so.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from etils import epath

from pipeline.store import files
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.files import Content, follow_emulator, is_remote
from trainer.errors import StorageError

FolderLike = str | os.PathLike[str]

RUN_FILE = "run.json"
LOCK_FILE = "training.json"
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
# Packages whose errors gcsfs raises; not all of these are an `OSError`.
_GCSFS_ERRORS = frozenset({"gcsfs", "google", "aiohttp"})


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, which need not exist yet.

    Attributes:
        path: Path on disk or on gs://.
    """

    path: epath.Path

    @classmethod
    def open(cls, path: FolderLike) -> "RunFolder":
        """Makes a run's folder of a path from the user, without looking at the disk.

        Args:
            path: Path as ``open_folder`` takes it.

        Returns:
            The folder.

        Raises:
            MissingPackageError: If the path is on gs:// and a package for that is
                missing.
            UsageError: If the path is on another object store.
        """
        return cls(open_folder(path))

    def __str__(self) -> str:
        return os.fspath(self.path)

    @property
    def name(self) -> str:
        """Name of the folder; for ``.``, the name of the working directory."""
        return self._whole_path.name

    @property
    def parent_name(self) -> str:
        """Name of the folder that this one lies in."""
        return self._whole_path.parent.name

    @property
    def _whole_path(self) -> epath.Path:
        return self.path if self.remote else self.path.resolve()

    @property
    def remote(self) -> bool:
        """Whether the folder is in a bucket."""
        return is_remote(str(self))

    @property
    def checkpoints(self) -> epath.Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    def exists(self) -> bool:
        """Says whether a run has been started there.

        Raises:
            StorageError: If the bucket does not answer.
        """
        with explain_bucket_errors(self.path):
            return (self.path / RUN_FILE).exists()

    def read(self, name: str) -> Content:
        """Reads a small file; its bytes are None if it does not exist."""
        return files.read(str(self), name)

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Reads the objects of a file of JSON lines; a missing file has none.

        Raises:
            DataFormatError: If a line is no JSON object.
        """
        # A last line without its line feed is left out: its writer was killed.
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
        """Writes a small file in one atomic step, replacing a former one."""
        files.write(str(self), name, data)

    def commit(self, name: str, data: bytes, *, replacing: Content) -> None:
        """Writes a small file unless it has changed since it was read.

        Args:
            name: Name of the file.
            data: New contents.
            replacing: Contents as they were read.

        Raises:
            DataFormatError: If another process has written the file meanwhile.
        """
        files.commit(str(self), name, data, replacing=replacing)

    def delete(self, name: str, *, replacing: Content) -> None:
        """Deletes a small file unless it has changed since it was read."""
        files.delete(str(self), name, replacing=replacing)


def open_folder(path: FolderLike) -> epath.Path:
    """Makes a path of a folder that the user gave, without looking at the disk.

    Args:
        path: Local path or ``gs://bucket/path``; not a ``pathlib.Path`` of the latter,
            which has lost a slash.

    Returns:
        The path.

    Raises:
        MissingPackageError: If the path is on gs:// and a package for that is missing.
        UsageError: If the path is on another object store.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return epath.Path(text)
    if not text.startswith("gs://"):
        raise UsageError(
            f"{text}: expected a local path or gs://bucket/path, got another object "
            "store; copy the folder to one of these"
        )
    _configure_gcsfs()
    return epath.Path(text)


def check_writable(path: epath.Path) -> None:
    """Refuses a folder that this process may not write to, before hours of work.

    Folders in buckets are not checked, since only writing shows the rights there.

    Args:
        path: The folder, which need not exist yet.

    Raises:
        UsageError: If the path leads to or through a file.
        StorageError: If files cannot be written there.
    """
    if is_remote(os.fspath(path)):
        return
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if existing.is_file():
        raise UsageError(
            f"{path}: expected a folder, but {existing} is a file; give another --out"
        )
    if not os.access(existing, os.W_OK):
        raise StorageError(
            f"{path}: cannot be written to; check its permissions, or work on a copy"
        )


@contextmanager
def explain_bucket_errors(path: epath.Path) -> Iterator[None]:
    """Turns errors of a bucket into one that names the path and what to do.

    Raises:
        StorageError: If the bucket refuses or does not answer. Errors of a disk, and of
            anything else, are passed on.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _GCSFS_ERRORS:
            raise
        raise StorageError(
            f"{path}: cannot be read ({error}); check your rights and the network, and "
            "try again"
        ) from error


def find_runs(pattern: FolderLike) -> list[RunFolder]:
    """Finds the folders that a path or a pattern stands for.

    Args:
        pattern: Path of a folder; its last part may be a pattern as in a shell, such as
            ``gs://bucket/runs/*``.

    Returns:
        The folder itself for a path, whatever it holds; for a pattern, the folders that
        match and hold a run, by name.

    Raises:
        DataFormatError: If no folder of a run matches the pattern.
        StorageError: If the bucket does not answer.
    """
    # Shells expand patterns on disk, but not on gs://.
    folder = RunFolder.open(pattern)
    parent, name = folder.path.parent, folder.path.name
    # A folder that exists may have such characters in its name.
    if not set(name) & set("*?[") or folder.exists():
        return [folder]
    with explain_bucket_errors(parent):
        paths = list(parent.iterdir()) if parent.is_dir() else []
    names = sorted(path.name for path in paths)
    matching = [
        RunFolder(parent / candidate)
        for candidate in names
        # As in a shell, a pattern matches hidden names only if it starts with a dot.
        if fnmatchcase(candidate, name)
        and candidate.startswith(".") <= name.startswith(".")
    ]
    runs = [folder for folder in matching if folder.exists()]
    if not runs:
        raise DataFormatError(
            f"{os.fspath(pattern)}: matches no folder of a run; check the path, or "
            "train one"
        )
    return runs


def _configure_gcsfs() -> None:
    """Configures gcsfs, through which Orbax reads and writes gs://, in this process."""
    missing = [
        module for module in ("fsspec", "gcsfs") if not importlib.util.find_spec(module)
    ]
    if missing:
        raise MissingPackageError(
            f"runs on gs:// need {' and '.join(missing)}; install it with "
            "`pip install 'vast-rl[cloud]'`"
        )
    import fsspec

    # gcsfs would return a listing that it has seen once for ever, and never show the
    # checkpoints that a trainer on another machine writes.
    options: dict[str, object] = {"use_listings_cache": False}
    if follow_emulator():
        # By default gcsfs would send real credentials to the emulator. Its newer class
        # asks over gRPC which kind a bucket is of, which an emulator answers only by a
        # timeout of a minute, so the older class is registered.
        options["token"] = "anon"
        for protocol in ("gs", "gcs"):
            fsspec.register_implementation(
                protocol, "gcsfs.core.GCSFileSystem", clobber=True
            )
    fsspec.config.conf["gs"] = {**fsspec.config.conf.get("gs", {}), **options}
