"""Plans a store before anything is written.

Planning reads the headers of inputs and the ends of their episodes, and nothing else.
The elements that Beam sends to workers are tuples of part plans: plain values without
arrays, so that they stay small.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import json
import operator
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.assembly.blocks import cut_blocks
from pipeline.assembly.labels import check_discounts, label_tasks
from pipeline.sources import files
from pipeline.sources.base import Description, Source
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

# Memory of a worker with Python, NumPy, TensorStore and Beam, before any data.
_PROCESS_BYTES = 300 << 20


@dataclass(frozen=True)
class PlanOptions:
    """Options of cutting inputs into parts and of treating bad episodes.

    Attributes:
        part_rows: Rows to aim at for each part.
        on_bad_episode: What workers do with an episode that cannot be trained on.
        max_bad_share: Share of episodes that may be skipped before the run fails.
    """

    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_bad_share <= 1.0:
            raise UsageError(
                "--max-bad-share: expected a share in [0, 1], got "
                f"{self.max_bad_share}; correct it"
            )


DEFAULTS = PlanOptions()


@dataclass(frozen=True)
class PartPlan:
    """Everything that a worker needs to write one part.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        index: Number of the part.
        split: Split of the part.
        source: Source to read from.
        origin: Description of the source for the manifest.
        episodes: Range of episodes of the source.
        fields: Fields of the source.
        tasks: Tasks in the order of the columns of rewards and masks.
        discounts: Discounts for which to store return sums.
        on_bad_episode: ``"refuse"`` fails at the first bad episode, ``"skip"``
            leaves it out.
        keyed: Whether the name of the part's folder contains its key; not in stores of
            version 1.
        action_scale: Bounds that are stored as -1 and 1; None to store actions
            unscaled.
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
        """Cuts the part into the blocks that a worker reads one after another."""
        return cut_blocks(self.episodes, self.fields)

    def stored_fields(self) -> dict[str, FieldSpec]:
        """Returns the fields of all per-row arrays of the part."""
        return {**self.fields, **schema.task_fields(self.discounts)}

    @property
    def key(self) -> str:
        """Key in the name of the part's folder: 16 digits of plan and format."""
        if not self.keyed:
            return ""
        # A part that an older release began with the same plan has no checksums: the
        # format's version keeps its files in another folder.
        asked = f"{FORMAT_VERSION} {self.digest()}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    # Kept, because every measure of progress asks, and digests take time.
    @functools.cached_property
    def folder(self) -> str:
        """Folder of the part, relative to the store."""
        return part_folder(self.index, self.key)

    def digest(self) -> str:
        """Computes a digest of the plan, without folders and machines.

        A finished part with this digest is not written again, so a new entry must be
        left out where it has its default: parts of earlier releases stay valid.
        """
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
    """The plan of a whole store.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        dataset: Data-set name.
        environment_id: Environment that made the data.
        parts: Plans of the parts in order, at least one.
        max_bad_share: Share of episodes that may be skipped before the run fails.
        versions: Versions of the packages that the data depend on, by name.
        ignored: Names of arrays in the inputs that are not read.
        warnings: Sentences on what looks wrong with the inputs.
        notes: Sentences on what else a person may want to know.
        skipped: Reason of each file that is left out, by file name.
        command: Entry of the store's history.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None if unknown.
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
        """Groups adjacent parts of one source, which a worker reads in one pass.

        Args:
            count: Groups to aim at. There are at least as many groups as sources, and
                at most as many as parts.

        Returns:
            Groups that hold every part once, in order.
        """
        return [run for runs in self.runs_by_source(count) for run in runs]

    def runs_by_source(self, count: int) -> list[list[tuple[PartPlan, ...]]]:
        """Groups parts as `runs` does, and returns the groups of each source apart."""
        of_one = operator.attrgetter("split", "source")
        sources = [tuple(run) for _, run in itertools.groupby(self.parts, of_one)]
        # If each part may be a group, it is one. Otherwise every source gets the same
        # number of groups, since files of one data set have about equal sizes.
        most = count if count >= len(self.parts) else -(-count // len(sources))
        grouped = []
        for parts in sources:
            pieces = min(len(parts), most)
            bounds = [len(parts) * i // pieces for i in range(pieces + 1)]
            grouped.append([parts[a:b] for a, b in itertools.pairwise(bounds)])
        return grouped

    def without_lengths(self) -> "StorePlan":
        """Reduces the plan to what its commit needs, so that the Beam job stays small.

        Returns:
            A plan without lengths of episodes. Parts cannot be written by it, and the
            digests and keys of its parts are meaningless.
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
        return self.rows * sum(
            arrays.row_bytes(field, len(part.tasks)) for field in fields
        )

    @property
    def worker_bytes(self) -> int:
        """Estimates the memory of a worker: shards being written, blocks being read."""
        fields, tasks = self.parts[0].stored_fields().values(), len(self.parts[0].tasks)
        shards = sum(
            2 * arrays.shard_rows(field) * arrays.row_bytes(field, tasks)
            for field in fields
        )
        longest = max(block.rows for plan in self.parts for block in plan.blocks())
        row_bytes = sum(arrays.row_bytes(field, tasks) for field in fields)
        # Five blocks: one being inflated, one being worked on, and float64 copies of it
        # for labels and statistics.
        return _PROCESS_BYTES + shards + 5 * longest * row_bytes


@dataclass(frozen=True)
class Inputs:
    """Inputs of a store with their descriptions.

    Attributes:
        described: Split, source and description of each input, in order.
        skipped: Reason of each file that is left out, by file name.
    """

    described: tuple[tuple[Split, Source, Description], ...]
    skipped: dict[str, str]


def describe_inputs(
    inputs: Sequence[tuple[Split, Source]], *, on_bad_file: OnBadFile = "refuse"
) -> Inputs:
    """Describes every input, several at once.

    Args:
        inputs: Splits and sources, in order.
        on_bad_file: Whether to refuse or skip a file that is cut short or incomplete.

    Returns:
        The inputs with their descriptions, and the files that are left out.

    Raises:
        DataFormatError: If an input is damaged and ``on_bad_file`` is ``"refuse"``, or
            if no input of the split ``train`` is left.
    """
    described: list[tuple[Split, Source, Description]] = []
    skipped, names = {}, Counter[str]()

    def describe(source: Source) -> Description | DataFormatError:
        try:
            return source.describe()
        except DataFormatError as error:
            if on_bad_file == "refuse":
                raise
            return error

    results = files.map_concurrently(describe, [source for _, source in inputs])
    for (split, source), result in zip(inputs, results, strict=True):
        if isinstance(result, Description):
            described.append((split, source, result))
            continue
        path = str(getattr(source, "path", source))
        name = os.path.basename(path)
        # Files of several folders may share a name, and a manifest names no folders.
        names[name] += 1
        key = name if names[name] == 1 else f"{name} ({names[name]})"
        skipped[key] = str(result).replace(path, name)
    if not any(split == "train" for split, _, _ in described):
        raise DataFormatError(
            f"expected at least one good file to train on, got none of {len(inputs)} "
            f"({'; '.join(skipped.values()) or 'all are of the validation split'}); "
            "add one to the input"
        )
    return Inputs(tuple(described), skipped)


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
    """Plans a store, and refuses early what no worker could write.

    Args:
        root: Local path or ``gs://bucket/path`` of the store to write.
        inputs: Inputs, from `describe_inputs`.
        dataset: Data-set name, for the manifest.
        environment_id: Environment that made the data.
        tasks: Tasks to label the data for.
        discounts: Discounts, in (0, 1], for which to store return sums.
        options: How to cut the inputs into parts, and how to treat bad episodes.
        action_scale: Scale of the actions; None to store them unscaled.
        versions: Versions of packages for the manifest; None takes the installed ones.
        first_part: Number of the first part; an append continues the store's numbers.
        keyed: See `PartPlan`.
        command: Entry of the store's history.

    Returns:
        The plan.

    Raises:
        UsageError: If an argument is out of range.
        DataFormatError: If an input lacks the physics state that the tasks need, if
            inputs differ in their fields, or if both splits have the same content.
    """
    check_discounts(discounts)
    parts: list[PartPlan] = []
    # Parts are numbered in the order of inputs: all of one split, then the other.
    repeated = _find_repeated(inputs)
    for split, source, description in inputs.described:
        _check_fields(description, tasks, parts)
        _check_scale(description, action_scale)
        for episodes in cut(description.episodes, options.part_rows):
            origin = Origin(
                source=description.source,
                name=description.name,
                digest=description.digest,
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
                    fields=description.fields,
                    tasks=tuple(tasks),
                    discounts=tuple(sorted(set(discounts))),
                    on_bad_episode=options.on_bad_episode,
                    keyed=keyed,
                    action_scale=action_scale,
                )
            )
    descriptions = [description for _, _, description in inputs.described]
    return StorePlan(
        root=root,
        dataset=dataset,
        environment_id=environment_id,
        parts=tuple(parts),
        max_bad_share=options.max_bad_share,
        versions=dict(installed_versions() if versions is None else versions),
        ignored=tuple(sorted({name for read in descriptions for name in read.ignored})),
        warnings=(
            *repeated,
            *_find_untrainable(descriptions[0].fields),
            *(w for read in descriptions for w in read.warnings),
        ),
        # Files of one data set mostly have the same notes: each is shown once.
        notes=tuple(dict.fromkeys(n for read in descriptions for n in read.notes)),
        skipped=inputs.skipped,
        command=command,
    )


def installed_versions() -> dict[str, str]:
    """Returns the installed versions of the packages that a store's data depend on."""
    versions = {}
    for name in ("vast-rl", "numpy", "ogbench", "mujoco"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def make_both_splits_error(name: str, other: str) -> DataFormatError:
    """Builds the error for an input that is in both splits."""
    return DataFormatError(
        f"{name}: expected other content in the val split than in the train split, got "
        f"that of {other} in both; give --val another input, or leave it out"
    )


def _find_repeated(inputs: Inputs) -> list[str]:
    """Refuses inputs that are in both splits; warns of those that are twice in one."""
    warnings = []
    first_seen: dict[tuple[str, str], tuple[Split, str]] = {}
    for split, _, description in inputs.described:
        # Both splits of a collection have the digest of its one recipe, so the name,
        # which contains the split, has to tell them apart.
        content = (
            description.digest,
            description.name if description.source == "collect" else "",
        )
        if content not in first_seen:
            first_seen[content] = split, description.name
            continue
        earlier, name = first_seen[content]
        if earlier != split:
            raise make_both_splits_error(description.name, name)
        warnings.append(
            f"{description.name} holds the same as {name}: its episodes count twice"
        )
    return warnings


def _find_untrainable(fields: Mapping[str, FieldSpec]) -> list[str]:
    """Warns of observations that a store holds and the trainer refuses."""
    observed = fields[schema.OBSERVATIONS]
    if len(observed.shape) == 1:
        return []
    return [
        f"observations are {observed.dtype}{list(observed.shape)} a row: a store holds "
        "them, but the trainer takes rows of numbers alone, [S]"
    ]


def _check_scale(description: Description, scale: ActionScale | None) -> None:
    """Refuses bounds whose number of components differs from the actions'."""
    (width,) = description.fields[schema.ACTIONS].shape
    if scale is not None and len(scale.low) != width:
        raise DataFormatError(
            f"{description.name}: expected actions of {len(scale.low)} components, as "
            f"the bounds have, got {width}; write these data into a store of their own"
        )


def _check_fields(
    description: Description, tasks: Sequence[Task], parts: Sequence[PartPlan]
) -> None:
    """Refuses an input that cannot be labelled, or whose fields differ from others'."""
    # Labelling arrays without rows runs all checks of dtypes and shapes.
    no_rows = {
        name: np.empty((0, *field.shape), field.dtype)
        for name, field in description.fields.items()
    }
    try:
        label_tasks(tasks, no_rows)
    except DataFormatError as error:
        raise DataFormatError(f"{description.name}: {error}") from error
    if parts and parts[0].fields != description.fields:
        raise DataFormatError(
            f"{description.name}: expected the fields of {parts[0].origin.name}, "
            f"{describe_fields(parts[0].fields)}, got "
            f"{describe_fields(description.fields)}; write these data into a store of "
            "their own"
        )
