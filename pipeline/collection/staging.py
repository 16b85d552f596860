"""Collected episodes on their way to a store: one staged npz each, and their recipe.

A collection takes hours, so each episode is kept as soon as it is made; a collection
that was killed goes on where it stopped. What was staged is deleted once the store is
committed.
"""

import dataclasses
import hashlib
import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.environments import episode_seed
from pipeline.sources.base import Block, Facts, Rows
from pipeline.sources.episodes import EpisodeRange
from pipeline.sources.ogbench_npz import TERMINALS
from pipeline.store import claims, files, layout, schema
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError, UnseenFileError
from pipeline.store.folder import check_folder
from pipeline.store.manifest import Split

CLAIM = "collect.json"
STAGING = "staging"
_RECIPE = f"{STAGING}/recipe.json"
# Far from every training episode: a longer collection of the same seed never trains
# on what a shorter one validates on.
_FIRST_VAL_EPISODE = 1 << 32
# What NumPy raises of an npz that it cannot make sense of.
_DAMAGE = (
    *(ValueError, KeyError, IndexError, TypeError, SyntaxError, tokenize.TokenError),
    *(OSError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@dataclass(frozen=True)
class Recipe:
    """Everything that a collection's bytes depend on.

    Attributes:
        dataset: Data-set name, such as ``"cube-single-play"``.
        environment_id: Environment to collect in.
        seed: Seed of the collection.
        episodes: Training episodes.
        val_episodes: Validation episodes.
        rows: Rows of an episode, one more than its transitions.
        versions: Of what the episodes are made with.
    """

    dataset: str
    environment_id: str
    seed: int
    episodes: int
    val_episodes: int
    rows: int
    versions: dict[str, str]

    def digest(self) -> str:
        """Identifies the collection."""
        return f"sha256:{hashlib.sha256(self._text().encode()).hexdigest()}"

    def counts(self) -> dict[Split, int]:
        """Episodes of each split that has any."""
        counts: dict[Split, int] = {"train": self.episodes, "val": self.val_episodes}
        return {split: count for split, count in counts.items() if count}

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to be made: what travels to a worker.

    Attributes:
        root: The store.
        dataset: Data-set name.
        split: Which split it belongs to.
        index: Index within the split.
        seed: Its own seed.
        rows: Rows it will have.
    """

    root: str
    dataset: str
    split: Split
    index: int
    seed: int
    rows: int


@dataclass(frozen=True)
class CollectedEpisodes:
    """The staged episodes of one split, as a source.

    Attributes:
        root: The store they are staged in.
        recipe: The collection.
        split: Which of its splits.
    """

    root: str
    recipe: Recipe
    split: Split

    def describe(self) -> Facts:
        """Reads the first episode; all others are like it.

        Returns:
            Facts of the split.

        Raises:
            DataFormatError: If it has not been staged.
        """
        return Facts(
            source="collect",
            name=f"{self.recipe.dataset} ({self.split})",
            digest=self.recipe.digest(),
            fields=schema.input_fields(self._load(0), where=self.root),
            lengths=(self.recipe.rows,) * self.recipe.counts()[self.split],
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams staged episodes, one block for each range.

        Args:
            ranges: In order.

        Yields:
            The blocks.

        Raises:
            DataFormatError: If an episode is missing or damaged.
        """
        for episodes in ranges:
            first = episodes.first_episode
            loaded = [self._load(first + i) for i in range(episodes.episodes)]
            yield Block.of(
                episodes,
                {name: np.concatenate([e[name] for e in loaded]) for name in loaded[0]},
            )

    def _load(self, index: int) -> Rows:
        name = _episode_name(self.split, index)
        content = files.read(self.root, name)
        if content.data is None:
            raise DataFormatError(
                f"{self.root}/{name}: this episode was not collected; repeat the "
                "command to collect what is missing"
            )
        try:
            with np.load(io.BytesIO(content.data), allow_pickle=False) as archive:
                episode = {name: archive[name] for name in archive.files}
            ends = np.flatnonzero(episode.pop(TERMINALS)).tolist()
        except _DAMAGE as error:
            raise DataFormatError(
                f"{self.root}/{name}: expected a staged episode ({error}); delete the "
                "file and repeat the command"
            ) from error
        if ends != [self.recipe.rows - 1]:
            raise DataFormatError(
                f"{self.root}/{name}: expected one episode of {self.recipe.rows} rows, "
                f"got terminals at {ends}; delete the file and repeat the command"
            )
        return episode


def claim(
    root: str, recipe: Recipe, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Says in the folder what is being collected there, as long as a block runs.

    Args:
        root: The store.
        recipe: The collection.
        take_over: Whether to go on in the place of a process that may still run.

    Returns:
        To be entered; the claim.

    Raises:
        DataFormatError: If another collection was begun there, or this one by a
            process that is not known to have ended, or if the folder holds something
            else.
    """
    check_folder(root)
    asked = [recipe.digest()]
    return claims.held(root, CLAIM, asked, what="collection", take_over=take_over)


def start(root: str, recipe: Recipe) -> list[EpisodePlan]:
    """Opens the staging folder for a collection.

    Args:
        root: The store.
        recipe: The collection.

    Returns:
        The episodes that are still to be made, in order.

    Raises:
        DataFormatError: If another collection is staged there, or the folder holds
            something else.
    """
    check_folder(root)
    there = files.read(root, _RECIPE)
    asked = recipe._text()
    if there.data is None:
        files.commit(root, _RECIPE, asked.encode(), replacing=there)
    elif there.data != asked.encode():
        raise DataFormatError(
            f"{root}/{STAGING}: holds the episodes of another collection "
            f"({_difference(there.data, asked)}); choose another folder, or delete "
            "this one"
        )
    staged = set(files.list_names(root, STAGING))
    return [
        EpisodePlan(
            root=root,
            dataset=recipe.dataset,
            split=split,
            index=index,
            seed=_seed(recipe.seed, split, index),
            rows=recipe.rows,
        )
        for split, count in recipe.counts().items()
        for index in range(count)
        if _episode_name(split, index).removeprefix(f"{STAGING}/") not in staged
    ]


def stage(plan: EpisodePlan, episode: Mapping[str, npt.NDArray[Any]]) -> None:
    """Keeps one episode: atomically, the same bytes for the same episode.

    Args:
        plan: Which episode it is.
        episode: ``[rows, ...]`` for each field, ``terminals`` among them.

    Raises:
        DataFormatError: If the collection has been finished or deleted meanwhile.
    """
    if files.read(plan.root, _RECIPE).data is None:
        raise DataFormatError(
            f"{plan.root}/{_RECIPE}: is gone, so another command has finished this "
            "collection, or somebody has deleted it; repeat the command to see which. "
            f"Or else {UnseenFileError.of('it')}"
        )
    buffer = io.BytesIO()
    np.savez(buffer, **episode)  # type: ignore[arg-type]
    name = _episode_name(plan.split, plan.index)
    files.write(plan.root, name, buffer.getvalue())


def count_staged(root: str) -> int:
    """Counts the episodes kept so far."""
    return sum(name.endswith(".npz") for name in files.list_names(root, STAGING))


def finish(root: str, recipe: Recipe) -> None:
    """Deletes what was staged, and the staging folder if nothing else is in it.

    Args:
        root: The store, committed.
        recipe: The collection; another one that is staged there stays.
    """
    there = files.read(root, _RECIPE).data
    if there is not None and there != recipe._text().encode():
        return
    # First of all: whoever is still collecting stops.
    files.delete(root, _RECIPE)
    files.delete_where(
        root, STAGING, lambda name: layout.is_staged_file(f"{STAGING}/{name}")
    )


def _episode_name(split: Split, index: int) -> str:
    return f"{STAGING}/{split}/{index:06d}.npz"


def _seed(seed: int, split: Split, index: int) -> int:
    first = _FIRST_VAL_EPISODE if split == "val" else 0
    return episode_seed(seed, first + index)


def _difference(recipe: bytes, asked_text: str) -> str:
    """What two recipes differ in."""
    asked = json.loads(asked_text)
    try:
        there = dict(json.loads(recipe))
    except (ValueError, TypeError, RecursionError):
        return "its recipe cannot be read"
    return ", ".join(
        f"{key} {there.get(key)} there and {asked.get(key)} here"
        for key in asked
        if there.get(key) != asked.get(key)
    )
