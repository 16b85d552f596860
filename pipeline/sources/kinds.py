"""The kinds of inputs there are: their names, layouts and readers.

The one table that detection, ``python -m pipeline inputs`` and the README go by.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.sources import robomimic
from pipeline.sources.base import Source
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.episode_reader import ReaderSource
from pipeline.sources.minari import Minari
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.rewarded_npz import OwnNpz
from pipeline.store.manifest import Split

# A file's sources, if it says which of its episodes are of which split.
FindSplits = Callable[[str], list[tuple[Split, Source]]]


@dataclass(frozen=True)
class InputKind:
    """A kind of inputs.

    Attributes:
        name: As ``shard --source`` takes it.
        files: What INPUT is: a file, or a folder and the file in it that tells.
        layout: What is read of it, and how it becomes episodes.
        open: Makes the source of a file that was found.
        find_splits: Makes the sources of a file that has splits of its own; None if
            files of this kind have none.
    """

    name: str
    files: str
    layout: str
    open: Callable[[str], Source]
    find_splits: FindSplits | None = None


def _open_robomimic(path: str) -> Source:
    return ReaderSource(_ROBOMIMIC, path)


def _split_robomimic(path: str) -> list[tuple[Split, Source]]:
    return [
        (split, ReaderSource(_ROBOMIMIC, path, key))
        for split, key in robomimic.find_splits(path)
    ]


_ROBOMIMIC = "pipeline.sources.robomimic:RobomimicReader"
# A kind of the user's own, as a row of the table.
_OWN = (
    "module:Class",
    "whatever the class takes",
    "a subclass of `pipeline.sources.episode_reader.EpisodeReader`: how long its "
    "episodes are, and some of them read",
)

KINDS: dict[str, InputKind] = {
    kind.name: kind
    for kind in (
        InputKind(
            "ogbench",
            "`*.npz`",
            "`observations`, `actions`, `terminals` and the physics `qpos`, `qvel` "
            "(`button_states`), a row a state; rewards are those of the domain's tasks",
            OgbenchNpz,
        ),
        InputKind(
            "npz",
            "`*.npz`",
            "`observations`, `actions`, `rewards`, `terminals`, and either `masks` (0 "
            "where the task is solved; rows are states) or `timeouts` (1 where an "
            "episode was cut off; rows are transitions), perhaps `next_observations`",
            OwnNpz,
        ),
        InputKind(
            "d4rl",
            "`*.hdf5`",
            "the same as data sets: `observations`, `actions`, `rewards`, `terminals`, "
            "`timeouts`, perhaps `next_observations`",
            D4rlHdf5,
        ),
        InputKind(
            "minari",
            "a folder with `data/main_data.hdf5`",
            "groups `episode_N`: `observations` (an array or a dictionary), `actions`, "
            "`rewards`, `terminations`",
            Minari,
        ),
        InputKind(
            "robomimic",
            "`*.hdf5`",
            "groups `data/demo_N`: `obs/NAME`, `next_obs/NAME`, `actions`, `rewards`, "
            "`dones` (no value is bootstrapped after one); images are not read; filter "
            "keys `mask/train` and `mask/valid` are the splits",
            _open_robomimic,
            _split_robomimic,
        ),
    )
}


def table() -> list[tuple[str, str, str]]:
    """Rows of what there is to read: a kind, what INPUT is, and its layout."""
    known = [(kind.name, kind.files, kind.layout) for kind in KINDS.values()]
    return [*known, _OWN]
