"""The table of input kinds: their names, layouts and readers.

Detection, ``python -m pipeline inputs`` and the README all read this one table.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.sources import hdf5, lerobot, rlds, robomimic
from pipeline.sources.base import Source
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.episode_reader import ReaderSource
from pipeline.sources.minari import MAIN_FILE, Minari
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store.manifest import Split

NPZ = (".npz",)


@dataclass(frozen=True)
class InputKind:
    """A kind of inputs.

    Attributes:
        name: Name of the kind, as ``shard --source`` takes it.
        layout: Arrays that are read, and how they become episodes.
        open: Makes the source of a file.
        suffixes: Endings of file names; empty if an input is a folder.
        markers: Files by which a folder of this kind is recognised; the first one that
            exists is opened.
        find_splits: Makes one source for each split that a file itself names; None if
            files of this kind name no splits.
    """

    name: str
    layout: str
    open: Callable[[str], Source]
    suffixes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    find_splits: Callable[[str], list[tuple[Split, Source]]] | None = None

    @property
    def files(self) -> str:
        """The files or folder that the argument INPUT names."""
        if self.markers:
            return f"a folder with `{self.markers[0]}`"
        return ", ".join(f"`*{suffix}`" for suffix in self.suffixes)


def _with_reader(
    name: str,
    layout: str,
    reader: str,
    find_splits: Callable[[str], list[tuple[Split, str]]],
    *,
    suffixes: tuple[str, ...] = (),
    markers: tuple[str, ...] = (),
) -> InputKind:
    """Makes a kind whose inputs an `EpisodeReader` reads, and which may name splits."""

    def split(path: str) -> list[tuple[Split, Source]]:
        return [
            (ours, ReaderSource(reader, path, theirs))
            for ours, theirs in find_splits(path)
        ]

    def open_whole(path: str) -> Source:
        return ReaderSource(reader, path)

    return InputKind(name, layout, open_whole, suffixes, markers, split)


# The row of the table for a reader class of the user's own.
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
            "`observations`, `actions`, `terminals` and the physics `qpos`, `qvel` "
            "(`button_states`), a row a state; rewards are those of the domain's tasks",
            OgbenchNpz,
            NPZ,
        ),
        InputKind(
            "npz",
            "`observations`, `actions`, `rewards` (`[rows, tasks]` of several tasks), "
            "`terminals`, and `masks` (0 where the task is solved, for all tasks or "
            "each) or `timeouts` (1 where an episode was cut off); rows are "
            "transitions, but states if there are `masks` and neither "
            "`next_observations` nor `timeouts`",
            RewardedNpz,
            NPZ,
        ),
        InputKind(
            "d4rl",
            "the same as data sets: `observations`, `actions`, `rewards`, `terminals`, "
            "`timeouts`, perhaps `next_observations`",
            D4rlHdf5,
            hdf5.SUFFIXES,
        ),
        InputKind(
            "minari",
            "groups `episode_N`: `observations` (an array or a dictionary), `actions`, "
            "`rewards`, `terminations`",
            Minari,
            hdf5.SUFFIXES,
            (f"data/{MAIN_FILE}", MAIN_FILE),
        ),
        _with_reader(
            "robomimic",
            "groups `data/demo_N`: `obs/NAME`, `next_obs/NAME`, `actions`, `rewards`, "
            "`dones` (no value is bootstrapped after one); images are not read; filter "
            "keys `mask/train` and `mask/valid` are the splits",
            "pipeline.sources.robomimic:RobomimicReader",
            robomimic.find_splits,
            suffixes=hdf5.SUFFIXES,
        ),
        _with_reader(
            "lerobot",
            "format v2 or v3, Parquet: `observation.*` of numbers, `action`, "
            "`next.reward` (else 1 where `next.success`), `next.success` (else "
            "`next.done`: no value is bootstrapped after one); images and videos are "
            "not read; splits `train` and `val` of `info.json`",
            "pipeline.sources.lerobot:LeRobotReader",
            lerobot.find_splits,
            markers=(lerobot.INFO,),
        ),
        _with_reader(
            "rlds",
            "TFDS, TFRecord or ArrayRecord: `steps` with `observation` (an array or a "
            "dictionary of them), `action`, `reward`, `is_terminal`; the last step is "
            "the state an episode ends in; images and texts are not read; splits "
            "`train` and `val` of the files' names",
            "pipeline.sources.rlds:RldsReader",
            rlds.find_splits,
            markers=(rlds.FEATURES,),
        ),
    )
}


def list_kinds() -> list[tuple[str, str, str]]:
    """Lists the rows of the table: kind, files that INPUT names, and layout."""
    known = [(kind.name, kind.files, kind.layout) for kind in KINDS.values()]
    return [*known, _OWN]
