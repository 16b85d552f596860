"""Folders of runs, on disk or gs://, as one kind of path, and what lies in them.

```
RUN/run.json            configuration, task, facts of the data, fingerprint, versions
RUN/metrics.jsonl       one line per seed and log point of training
RUN/tensorboard/        the same, for TensorBoard
RUN/checkpoints/STEP/   Orbax: params, train, data, run
RUN/evaluations.jsonl   one line per evaluated step, seed and task
RUN/subgoals/           an inspection of predicted sub-goals, see `subgoal_files`
```

Small files are read and written through ``pipeline.store.files``; this is for what
needs a path: Orbax, and asking what a folder holds.
"""

import importlib.metadata
import importlib.util
import json
import os
from fnmatch import fnmatchcase
from typing import Any

from etils import epath

from pipeline.store import files
from pipeline.store.errors import MissingPackageError, UsageError
from pipeline.store.files import follow_emulator, is_remote

FolderLike = str | os.PathLike[str]

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


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


def find_folders(pattern: FolderLike, *, holding: str) -> list[epath.Path]:
    """Folders that a path stands for; no shell knows those on gs://.

    Args:
        pattern: A folder, or one whose last part is a pattern, as a shell's:
            ``gs://bucket/runs/*``.
        holding: File that makes a matching folder one of those meant.

    Returns:
        The folder as given, whatever it holds; of a pattern, those that match and hold
        the file, by name.
    """
    given = open_folder(pattern)
    parent, name = given.parent, given.name
    # A folder may be called as a pattern is written.
    if not set(name) & set("*?[") or (given / holding).exists():
        return [given]
    there = sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
    return [
        parent / each
        for each in there
        # As in a shell, names with a dot are asked for by it.
        if fnmatchcase(each, name)
        and each.startswith(".") <= name.startswith(".")
        and (parent / each / holding).exists()
    ]


def name_of(folder: epath.Path) -> str:
    """Name of a folder; that of the working directory for ``.``."""
    return (folder if is_remote(os.fspath(folder)) else folder.resolve()).name


def absolute(folder: epath.Path) -> epath.Path:
    """A path that holds in any working directory, which gs:// always does."""
    return folder if is_remote(os.fspath(folder)) else folder.absolute()


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


def read_lines(path: FolderLike) -> list[dict[str, Any]]:
    """Reads a JSON-lines file, on disk or gs://; one that does not exist is empty.

    A last line without its end is left out: a killed writer's.
    """
    folder, name = os.path.split(os.fspath(path))
    data = files.read(folder, name).data or b""
    complete, _, _ = data.decode().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines() if line]
