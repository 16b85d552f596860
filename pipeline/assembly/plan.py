"""What a run is going to do, known before it does anything: the plan of a store.

Pure but for reading headers and ``terminals``. A run of part plans is the element
that travels to workers: plain values only, no arrays.
"""

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.assembly.labels import label_tasks
from pipeline.sources import files
from pipeline.sources.base import Facts, Source
from pipeline.sources.episodes import EpisodeRange, cut, single_rows
from pipeline.sources.options import PART_ROWS, OnBadEpisode, OnBadFile
from pipeline.store import arrays, schema
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import (
    FORMAT_VERSION,
    FieldSpec,
    Origin,
    Split,
    Task,
    describe_fields,
    part_folder,
)

# Blocks are what a worker holds in memory: whole episodes of about so many rows or
# bytes, whichever is less.
BLOCK_ROWS = 32_768
BLOCK_BYTES = 16 << 20
# Python, NumPy, TensorStore and Beam, before any data.
_PROCESS_BYTES = 300 << 20


@dataclass(frozen=True)
class PlanOptions:
    """How a store is cut into parts, and what may be wrong with its input.

    Attributes:
        part_rows: Rows aimed at for each part.
        on_bad_episode: What workers do with an episode that cannot be trained on.
        max_bad_share: Share of episodes that may be skipped before the run fails.
    """

    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_bad_share <= 1.0:
            raise UsageError(
                f"expected a bad share in [0, 1], got {self.max_bad_share}"
            )


DEFAULTS = PlanOptions()


@dataclass(frozen=True)
class PartPlan:
    """Everything a worker needs to write one part.

    Attributes:
        root: The store.
        index: Number of the part.
        split: Which split it belongs to.
        source: Where to read.
        origin: What the manifest says of that.
        episodes: Which episodes of the source.
        fields: Fields of the source.
        tasks: Columns of rewards and masks.
        discounts: Discounts to store return sums for.
        on_bad_episode: ``"refuse"`` fails at the first bad episode, ``"skip"``
            leaves it out.
        keyed: Whether the part's folder is named after what it holds; those of a store
            of version 1 are not.
        action_scale: Bounds that are stored as -1 and 1; None to store actions as
            they are, in [-1, 1].
    """

    root: str
    index: int
    split: Split
    source: Source
    origin: Origin
    episodes: EpisodeRange
    fields: dict[str, FieldSpec]
    tasks: tuple[Task, ...]
    discounts: tuple[float, ...]
    on_bad_episode: OnBadEpisode = "refuse"
    keyed: bool = True
    action_scale: ActionScale | None = None

    def blocks(self) -> list[EpisodeRange]:
        """The pieces to read it in: whole episodes, one block in memory at a time."""
        return cut_blocks(self.episodes, self.fields)

    def stored_fields(self) -> dict[str, FieldSpec]:
        """Every array the part will have."""
        return {**self.fields, **schema.task_fields(self.discounts)}

    @property
    def key(self) -> str:
        """What the part's folder is named after: the plan, and how it is written."""
        if not self.keyed:
            return ""
        asked = f"{FORMAT_VERSION} {self.digest()}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """Folder of the part, relative to the store."""
        return part_folder(self.index, self.key)

    def digest(self) -> str:
        """Identifies what is asked for, on whatever machine and in whatever folder."""
        asked = {
            "split": self.split,
            "origin": dataclasses.asdict(self.origin),
            "lengths": self.episodes.lengths,
            "fields": {k: dataclasses.asdict(v) for k, v in self.fields.items()},
            "tasks": [dataclasses.asdict(task) for task in self.tasks],
            "discounts": self.discounts,
            "on_bad_episode": self.on_bad_episode,
        }
        if self.action_scale is not None:
            asked["action_scale"] = dataclasses.asdict(self.action_scale)
        text = json.dumps(asked, sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class StorePlan:
    """A whole store, before it is written.

    Attributes:
        root: The store.
        dataset: Data-set name.
        environment_id: Environment that made the data.
        parts: In order, at least one.
        max_bad_share: Share of episodes that may be skipped before the run fails.
        versions: Of what the data depend on.
        ignored: Members of the inputs that are not read.
        warnings: What looks wrong with the inputs.
        notes: What else a person may want to know of them.
        skipped: Files that are left out, by name, and why.
        command: What decides what it will hold, for its history.
        reference_scores: Returns that count as a normalised score of 0 and of 100.
    """

    root: str
    dataset: str
    environment_id: str
    parts: tuple[PartPlan, ...]
    max_bad_share: float
    versions: dict[str, str]
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    command: str = ""
    reference_scores: tuple[float, float] | None = None

    def runs(self, count: int) -> list[tuple[PartPlan, ...]]:
        """Groups parts for workers: neighbours of one source are read in one pass.

        Args:
            count: Groups aimed at; there are at least as many as sources, and at
                most as many as parts.

        Returns:
            Every part once, in order.
        """
        return [run for runs in self.runs_by_source(count) for run in runs]

    def runs_by_source(self, count: int) -> list[list[tuple[PartPlan, ...]]]:
        """The same runs as `runs`, those of one source together."""
        sources = [
            tuple(parts)
            for _, parts in itertools.groupby(
                self.parts, lambda part: (part.split, part.source)
            )
        ]
        grouped = []
        for parts in sources:
            pieces = min(len(parts), -(-count // len(sources)))
            bounds = [len(parts) * i // pieces for i in range(pieces + 1)]
            grouped.append([parts[a:b] for a, b in itertools.pairwise(bounds)])
        return grouped

    def without_lengths(self) -> "StorePlan":
        """The plan as its commit needs it: without what grows with the episodes.

        Returns:
            A plan that no part can be written by, and whose parts are not identified
            by their digests or keys.
        """
        parts = (
            dataclasses.replace(
                part, episodes=dataclasses.replace(part.episodes, lengths=())
            )
            for part in self.parts
        )
        return dataclasses.replace(self, parts=tuple(parts))

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.episodes.rows for part in self.parts)

    @property
    def episodes(self) -> int:
        """Episodes of all parts."""
        return sum(part.episodes.episodes for part in self.parts)

    @property
    def single_row_episodes(self) -> int:
        """Episodes that hold no transition."""
        return sum(single_rows(part.episodes.lengths) for part in self.parts)

    @property
    def store_bytes(self) -> int:
        """Bytes of all arrays before compression."""
        part = self.parts[0]
        fields = part.stored_fields().values()
        return self.rows * sum(_row_bytes(field, len(part.tasks)) for field in fields)

    @property
    def worker_bytes(self) -> int:
        """Most memory one worker will need: shards being written, blocks being read."""
        part, tasks = self.parts[0], len(self.parts[0].tasks)
        shards = sum(
            2 * arrays.shard_rows(field) * _row_bytes(field, tasks)
            for field in part.stored_fields().values()
        )
        longest = max(block.rows for plan in self.parts for block in plan.blocks())
        row_bytes = sum(_row_bytes(f, tasks) for f in part.stored_fields().values())
        # One block being inflated, one worked on, and copies of it in float64.
        return _PROCESS_BYTES + shards + 5 * longest * row_bytes


@dataclass(frozen=True)
class Inputs:
    """Inputs of a store that were looked at.

    Attributes:
        found: Split, source and facts of each, in order.
        skipped: Files that are left out, by name, and why.
    """

    found: tuple[tuple[Split, Source, Facts], ...]
    skipped: dict[str, str]


def look_at(
    inputs: Sequence[tuple[Split, Source]], *, on_bad_file: OnBadFile = "refuse"
) -> Inputs:
    """Reads what a plan needs of every input.

    Args:
        inputs: Splits and where they come from, in order.
        on_bad_file: What to do with a file that is cut short or incomplete.

    Returns:
        The inputs, and what was left out.

    Raises:
        DataFormatError: If an input is damaged and not to be skipped, or if none is
            left to train on.
    """
    found: list[tuple[Split, Source, Facts]] = []
    skipped = {}

    def describe(source: Source) -> Facts | DataFormatError:
        try:
            return source.describe()
        except DataFormatError as error:
            if on_bad_file == "refuse":
                raise
            return error

    looked = files.side_by_side(describe, [source for _, source in inputs])
    for (split, source), facts in zip(inputs, looked, strict=True):
        if isinstance(facts, Facts):
            found.append((split, source, facts))
            continue
        path = str(getattr(source, "path", source))
        name = os.path.basename(path)
        # The manifest names files, never folders of this machine.
        skipped[name] = str(facts).replace(path, name)
    if not any(split == "train" for split, _, _ in found):
        raise DataFormatError(
            f"expected at least one good file to train on, got none of {len(inputs)}: "
            f"{'; '.join(skipped.values()) or 'all are of the validation split'}"
        )
    return Inputs(tuple(found), skipped)


def plan_inputs(
    root: str,
    inputs: Inputs,
    *,
    dataset: str,
    environment_id: str,
    tasks: Sequence[Task],
    discounts: Sequence[float],
    options: PlanOptions = DEFAULTS,
    action_scale: ActionScale | None = None,
    versions: Mapping[str, str] | None = None,
    first_part: int = 0,
    keyed: bool = True,
    command: str = "",
) -> StorePlan:
    """Plans a store, and finds what can be found early.

    Args:
        root: The store to be.
        inputs: From `look_at`.
        dataset: Data-set name, for the manifest.
        environment_id: Environment that made the data.
        tasks: Tasks to relabel for.
        discounts: Each in (0, 1].
        options: How to cut it, and what may be wrong with the inputs.
        action_scale: Bounds of the actions, to store them scaled.
        versions: For the manifest; what is installed here by default.
        first_part: Number of the first part: those before are there.
        keyed: As of the parts' plans.
        command: For the history.

    Returns:
        The plan.

    Raises:
        UsageError: If an argument is out of range.
        DataFormatError: If an input lacks the physics state that the tasks need,
            inputs disagree, or one is of both splits.
    """
    for discount in discounts:
        if not 0.0 < discount <= 1.0:
            raise UsageError(f"expected discounts in (0, 1], got {discount}")
    parts: list[PartPlan] = []
    repeated = _find_repeated(inputs)
    for split, source, facts in inputs.found:
        _check_fields(facts, tasks, parts)
        _check_scale(facts, action_scale)
        for episodes in cut(facts.episodes, options.part_rows):
            origin = Origin(
                source=facts.source,
                name=facts.name,
                digest=facts.digest,
                first_episode=episodes.first_episode,
            )
            parts.append(
                PartPlan(
                    root=root,
                    index=first_part + len(parts),
                    split=split,
                    source=source,
                    origin=origin,
                    episodes=episodes,
                    fields=facts.fields,
                    tasks=tuple(tasks),
                    discounts=tuple(sorted(set(discounts))),
                    on_bad_episode=options.on_bad_episode,
                    keyed=keyed,
                    action_scale=action_scale,
                )
            )
    return StorePlan(
        root=root,
        dataset=dataset,
        environment_id=environment_id,
        parts=tuple(parts),
        max_bad_share=options.max_bad_share,
        versions=dict(installed_versions() if versions is None else versions),
        ignored=tuple(
            sorted({n for _, _, facts in inputs.found for n in facts.ignored})
        ),
        warnings=(
            *repeated,
            *(w for _, _, facts in inputs.found for w in facts.warnings),
        ),
        # Files of one collection say the same.
        notes=tuple(
            dict.fromkeys(n for _, _, facts in inputs.found for n in facts.notes)
        ),
        skipped=inputs.skipped,
        command=command,
    )


def installed_versions() -> dict[str, str]:
    """Versions of what the data of a store depend on, as installed here."""
    versions = {}
    for name in ("vast-rl", "numpy", "ogbench", "mujoco"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def both_splits(name: str, other: str) -> DataFormatError:
    """The error of validating on what is trained on."""
    return DataFormatError(
        f"{name}: expected other content in the val split than in the train split, got "
        f"that of {other} in both; give --val another input, or leave it out"
    )


def _find_repeated(inputs: Inputs) -> list[str]:
    """Refuses content that is of both splits; warns of what comes twice in one."""
    warnings = []
    known: dict[tuple[str, str], tuple[Split, str]] = {}
    for split, _, facts in inputs.found:
        # One recipe makes both splits of a collection.
        content = facts.digest, facts.name if facts.source == "collect" else ""
        if content not in known:
            known[content] = split, facts.name
            continue
        earlier, name = known[content]
        if earlier != split:
            raise both_splits(facts.name, name)
        warnings.append(
            f"{facts.name} holds the same as {name}: its episodes will count twice"
        )
    return warnings


def _check_scale(facts: Facts, scale: ActionScale | None) -> None:
    """Refuses bounds of another number of components than the actions have."""
    (width,) = facts.fields[schema.ACTIONS].shape
    if scale is not None and len(scale.low) != width:
        raise DataFormatError(
            f"{facts.name}: expected actions of {len(scale.low)} components, as the "
            f"bounds have, got {width}; one store holds data of one kind"
        )


def _check_fields(
    facts: Facts, tasks: Sequence[Task], parts: Sequence[PartPlan]
) -> None:
    """Refuses inputs that cannot be relabelled, or that differ from each other."""
    no_rows = {
        name: np.empty((0, *field.shape), field.dtype)
        for name, field in facts.fields.items()
    }
    try:
        label_tasks(tasks, no_rows)
    except DataFormatError as error:
        raise DataFormatError(f"{facts.name}: {error}") from error
    if parts and parts[0].fields != facts.fields:
        raise DataFormatError(
            f"{facts.name}: expected the fields of {parts[0].origin.name}, "
            f"{describe_fields(parts[0].fields)}, got {describe_fields(facts.fields)}; "
            "one store holds data of one kind"
        )


def cut_blocks(
    episodes: EpisodeRange, fields: Mapping[str, FieldSpec]
) -> list[EpisodeRange]:
    """Cuts episodes into blocks of whole ones that bounded memory holds."""
    row_bytes = sum(_row_bytes(field, 0) for field in fields.values())
    return cut(episodes, max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes)))


def _row_bytes(field: FieldSpec, tasks: int) -> int:
    size = tasks if field.per == "row_and_task" else math.prod(field.shape)
    return np.dtype(field.dtype).itemsize * size
