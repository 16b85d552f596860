"""Keeps collected episodes, each in an npz of its own, until the store is committed.

A collection takes hours. Every episode is therefore staged as soon as it is made, and a
collection that was killed continues where it stopped. Staged files are deleted once the
store is committed.
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
from pipeline.sources.base import Block, Description, Rows
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
# Index of the first validation episode, far above all training episodes. If validation
# episodes followed the training episodes, a longer collection with the same seed would
# train on the validation episodes of a shorter one.
_FIRST_VAL_EPISODE = 1 << 32
# Exceptions that NumPy raises for a damaged npz, as fuzzed files showed.
_DAMAGE = (
    *(ValueError, KeyError, IndexError, TypeError, SyntaxError, tokenize.TokenError),
    *(OSError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@dataclass(frozen=True)
class Recipe:
    """All settings that the bytes of a collection depend on.

    Attributes:
        dataset: Data-set name, such as ``"cube-single-play"``.
        environment_id: Environment to collect in.
        seed: Seed of the collection.
        episodes: Number of training episodes.
        val_episodes: Number of validation episodes.
        rows: Rows of an episode, one more than its transitions.
        versions: Versions of the packages that make the episodes, by name.
    """

    dataset: str
    environment_id: str
    seed: int
    episodes: int
    val_episodes: int
    rows: int
    versions: dict[str, str]

    def digest(self) -> str:
        """Computes ``sha256:...`` of the recipe, which identifies the collection."""
        return f"sha256:{hashlib.sha256(self._text().encode()).hexdigest()}"

    def counts(self) -> dict[Split, int]:
        """Returns the number of episodes of each split that has any."""
        counts: dict[Split, int] = {"train": self.episodes, "val": self.val_episodes}
        return {split: count for split, count in counts.items() if count}

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class EpisodePlan:
    """The description of one episode to collect, which Beam sends to a worker.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        dataset: Data-set name.
        split: Split of the episode.
        index: Index of the episode within the split.
        seed: Seed of the episode.
        rows: Rows of the episode.
    """

    root: str
    dataset: str
    split: Split
    index: int
    seed: int
    rows: int


@dataclass(frozen=True)
class CollectedEpisodes:
    """The source of the staged episodes of one split.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        recipe: Recipe of the collection.
        split: Split to read.
    """

    root: str
    recipe: Recipe
    split: Split

    def describe(self) -> Description:
        """Reads the first episode, whose layout all others share.

        Returns:
            The description of the split.

        Raises:
            DataFormatError: If the first episode has not been staged.
        """
        return Description(
            source="collect",
            name=f"{self.recipe.dataset} ({self.split})",
            digest=self.recipe.digest(),
            fields=schema.input_fields(self._load(0), where=self.root),
            lengths=(self.recipe.rows,) * self.recipe.counts()[self.split],
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams staged episodes, one block for each range.

        Args:
            ranges: Ranges of episodes in order.

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
        """Reads and checks one staged episode."""
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
    """Claims a folder for a collection; see `pipeline.store.claims.hold`.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        recipe: Recipe of the collection.
        take_over: Whether to take the claim of a process that may still run.

    Returns:
        A context manager that holds the claim.

    Raises:
        DataFormatError: If another collection was begun in the folder, if a process
            that may still run is collecting this one, or if the folder holds foreign
            files.
    """
    check_folder(root)
    asked = [recipe.digest()]
    return claims.hold(root, CLAIM, asked, what="collection", take_over=take_over)


def start(root: str, recipe: Recipe) -> list[EpisodePlan]:
    """Writes the recipe into the staging folder, and lists the missing episodes.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        recipe: Recipe of the collection.

    Returns:
        The episodes that are not staged yet, in order.

    Raises:
        DataFormatError: If episodes of another collection are staged, or the folder
            holds foreign files.
    """
    check_folder(root)
    staged_recipe = files.read(root, _RECIPE)
    asked = recipe._text()
    if staged_recipe.data is None:
        files.commit(root, _RECIPE, asked.encode(), replacing=staged_recipe)
    elif staged_recipe.data != asked.encode():
        raise DataFormatError(
            f"{root}/{STAGING}: holds the episodes of another collection "
            f"({_difference(staged_recipe.data, asked)}); choose another folder, or "
            "delete this one"
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
    """Writes one episode into the staging folder, atomically.

    The same episode gives the same bytes, so that a repeated bundle of Beam does no
    harm.

    Args:
        plan: Description of the episode.
        episode: ``[rows, ...]`` for each field, ``terminals`` among them.

    Raises:
        DataFormatError: If the collection has been finished or deleted meanwhile.
    """
    # A worker that outlives its collection must not stage anything: nobody would
    # delete it.
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
    """Counts the episodes staged so far."""
    return sum(name.endswith(".npz") for name in files.list_names(root, STAGING))


def finish(root: str, recipe: Recipe) -> None:
    """Deletes the staged files, and the staging folder if nothing else is in it.

    Args:
        root: Local path or ``gs://bucket/path`` of the committed store.
        recipe: Recipe of the collection; files of another collection stay.
    """
    staged_recipe = files.read(root, _RECIPE).data
    if staged_recipe is not None and staged_recipe != recipe._text().encode():
        return
    # The recipe goes first, because workers that are still collecting then stop.
    files.delete(root, _RECIPE)
    files.delete_where(
        root, STAGING, lambda name: layout.is_staged_file(f"{STAGING}/{name}")
    )


def _episode_name(split: Split, index: int) -> str:
    return f"{STAGING}/{split}/{index:06d}.npz"


def _seed(seed: int, split: Split, index: int) -> int:
    """Derives the seed of an episode of a split."""
    first = _FIRST_VAL_EPISODE if split == "val" else 0
    return episode_seed(seed, first + index)


def _difference(recipe: bytes, asked_text: str) -> str:
    """Formats the settings in which two recipes differ."""
    asked = json.loads(asked_text)
    try:
        staged = dict(json.loads(recipe))
    except (ValueError, TypeError, RecursionError):
        return "its recipe cannot be read"
    return ", ".join(
        f"{key} {staged.get(key)} there and {asked.get(key)} here"
        for key in asked
        if staged.get(key) != asked.get(key)
    )
