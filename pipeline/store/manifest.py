"""The manifests of a store, ``dataset.json`` and ``part.json``, as dataclasses.

This module knows nothing of arrays, and `pipeline.store.manifest_json` encodes and
decodes the dataclasses.

Version 2 of the format has a checksum in every chunk of an array and a seal on its
manifests. A store of version 1 stays at version 1 when data are added to it, because
its older chunks have no checksums; `pipeline.assembly.upgrade` rewrites it as
version 2.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from pipeline.store.action_scale import ActionScale
from pipeline.store.seals import digest

FORMAT_VERSION = 2
# Since this version chunks have checksums and manifests have seals, so that every
# reader notices flipped bits.
CHECKED_VERSION = 2
DATASET_MANIFEST = "dataset.json"
PART_MANIFEST = "part.json"

Json = dict[str, Any]
Split = Literal["train", "val"]
Recipe = Literal["maze", "cube", "scene", "puzzle", "stored"]
SuccessTiming = Literal["pre", "post"]
# A store may come from a stranger, so an environment in its manifest must not be able
# to run code. Gymnasium imports the module named before a colon in an id, hence no
# colons; constructors may open files named by arguments, hence only numbers and words
# without slashes or dots.
ENVIRONMENT_ID = r"^[^:\x00-\x1f\x7f]{1,200}$"
EnvironmentId = Annotated[str, pydantic.StringConstraints(pattern=ENVIRONMENT_ID)]
_Word = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
EnvironmentArgument = bool | int | float | _Word | None


def _check_order(scores: tuple[float, float]) -> tuple[float, float]:
    """Refuses reference scores that are not in order; pydantic adds their place."""
    low, high = scores
    if not low < high:
        raise ValueError(f"expected a smaller and a larger return, got {low}, {high}")
    return scores


# Undiscounted returns that count as a normalised score of 0 and of 100.
ReferenceScores = Annotated[
    tuple[pydantic.FiniteFloat, pydantic.FiniteFloat],
    pydantic.AfterValidator(_check_order),
]

_STRICT: Any = {"extra": "forbid", "allow_inf_nan": False}
# Fields that enter a store's fingerprint. Training runs record the fingerprint of their
# data, so a field that a later version adds to the manifest must not be added here: the
# runs would no longer recognise their own store.
_OF_A_STORE = (
    *("dataset", "environment_id", "fields", "tasks", "discounts", "parts"),
    *("statistics", "format_version"),
)
_OF_A_PART = (
    *("index", "split", "rows", "episodes", "statistics", "checksums", "origin"),
    *("plan", "dropped"),
)


@dataclass(frozen=True)
class FieldSpec:
    """Describes one array of a part.

    Attributes:
        dtype: NumPy name of the element type, such as ``"float32"``.
        shape: Shape of one row.
        per: ``"row"`` for arrays ``[rows, *shape]``; ``"row_and_task"`` for
            ``[rows, tasks]``, chunked so that reading one task reads one column.
        unit: Unit and meaning of a number, in words.
    """

    __pydantic_config__ = _STRICT

    dtype: str
    shape: tuple[int, ...]
    per: Literal["row", "row_and_task"] = "row"
    unit: str = ""


# Arrays of the episode table, which every part has. Parts of version 1 lack the
# digests.
EPISODE_FIELD = FieldSpec("int64", (), unit="rows")
EPISODE_DIGESTS = "episode_digests"
TABLE = {
    "episode_starts": EPISODE_FIELD,
    "episode_lengths": EPISODE_FIELD,
    EPISODE_DIGESTS: FieldSpec("uint64", ()),
}


def describe_fields(fields: Mapping[str, FieldSpec]) -> str:
    """Formats fields in one line: ``"qpos float32[21], actions float32[5]"``."""
    return ", ".join(
        f"{name} {field.dtype}{list(field.shape)}" for name, field in fields.items()
    )


@dataclass(frozen=True)
class Task:
    """Describes one task, to which a column of rewards and masks belongs.

    Attributes:
        task: Number of the task, from 1 as OGBench counts.
        name: The environment's name of the task, such as ``"task1_horizontal"``.
        environment_id: Gymnasium id of the environment for evaluation, without a module
            to import.
        environment_kwargs: Arguments of ``gymnasium.make`` besides the id: numbers and
            words.
        recipe: Rule that computes rewards and masks from the physics state;
            ``"stored"`` if they came with the data.
        goal: Target in the units of the physics state, as plain lists: ``cube_xyzs``
            (metres), ``button_states``, ``drawer`` and ``window`` (metres), or ``xy``
            and ``tolerance`` (metres) of a maze.
        success_timing: State that the reward and mask of row ``t`` describe: ``"pre"``
            for ``s_t``, as OGBench labels its data, ``"post"`` for ``s_{t+1}``.
    """

    __pydantic_config__ = _STRICT

    task: int
    name: str
    environment_id: EnvironmentId
    recipe: Recipe
    goal: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment_kwargs: dict[str, EnvironmentArgument] = dataclasses.field(
        default_factory=dict
    )
    success_timing: SuccessTiming = "pre"


@dataclass(frozen=True)
class Statistics:
    """Statistics of one array over its rows; ``pipeline.store.moments`` merges them.

    Attributes:
        count: Number of rows; of pixels, for a field of several axes.
        mean: ``[D]``, per component of a row; per entry of the last axis for a field of
            several axes, such as images.
        std: ``[D]``, population standard deviation.
        minimum: ``[D]``.
        maximum: ``[D]``.
    """

    __pydantic_config__ = _STRICT

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]


@dataclass(frozen=True)
class Origin:
    """Names the input that the rows of a part came from.

    Attributes:
        source: Kind of input, such as ``"ogbench_npz"`` or ``"collect"``.
        name: File name or environment id; never a path, so that the same input gives
            the same bytes on every machine.
        digest: ``sha256:...`` of the input file, or of a collection's recipe.
        first_episode: Index of the part's first episode within the input.
    """

    __pydantic_config__ = _STRICT

    source: str
    name: str
    digest: str
    first_episode: int


@dataclass(frozen=True)
class PartManifest:
    """The content of ``part.json``, the manifest of one part.

    A part holds whole episodes, about a million rows.

    Attributes:
        index: Number of the part.
        split: ``"train"`` or ``"val"``.
        rows: Rows of the part; an episode of T transitions has T + 1.
        episodes: Episodes of the part.
        statistics: Statistics by field name; per task for rewards and masks.
        checksums: ``sha256:...`` of each array's raw bytes in C order, by field name.
        origin: Input that the rows came from.
        plan: ``sha256:...`` of the plan: input, episodes, fields, tasks and discounts.
            A part with the same plan is not written again.
        dropped: Indices within the input of the episodes left out, by reason.
        labels: Folder of the per-task arrays, relative to the part; empty if they lie
            beside the other arrays. Relabelling writes a new folder and keeps the old.
        key: 16 hexadecimal digits of the plan's digest, part of the name of the part's
            folder, so that commands with different plans write into different folders.
            Empty in stores made before parts had keys.
    """

    __pydantic_config__ = _STRICT

    index: int
    split: Literal["train", "val"]
    rows: int
    episodes: int
    statistics: dict[str, Statistics]
    checksums: dict[str, str]
    origin: Origin
    plan: str = ""
    dropped: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    labels: str = ""
    key: str = ""

    @property
    def folder(self) -> str:
        """Folder of the part, relative to the store."""
        return part_folder(self.index, self.key)

    @property
    def table(self) -> dict[str, FieldSpec]:
        """Arrays of the episode table; a part of version 1 has no episode digests."""
        has_digests = EPISODE_DIGESTS in self.checksums
        return {
            name: field
            for name, field in TABLE.items()
            if has_digests or name != EPISODE_DIGESTS
        }

    @property
    def labels_folder(self) -> str:
        """Folder of the per-task arrays and of ``part.json``, relative to the store."""
        return f"{self.folder}/{self.labels}" if self.labels else self.folder


@dataclass(frozen=True)
class Step:
    """A command that made or changed a store.

    Attributes:
        command: Command line reduced to the arguments that decide the store's content,
            such as ``"shard --dataset cube-single-play --discounts 0.99"``. Paths are
            left out (origins of parts name the files), and so is the number of
            workers: the same input must give the same bytes.
        versions: Versions of the packages that were installed, by name.
    """

    __pydantic_config__ = _STRICT

    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class DatasetManifest:
    """The content of ``dataset.json``, the store's contract with its readers.

    Attributes:
        dataset: Data-set name, such as ``"cube-single-play"``.
        environment_id: Environment that made the data, such as
            ``"cube-single-v0"``.
        fields: Every array of a part, by its path relative to the part.
        tasks: Tasks in the order of columns: column ``i`` of rewards, masks and returns
            belongs to ``tasks[i]``.
        discounts: Discounts for which return sums are stored.
        parts: Parts in order; the logical arrays are their concatenation.
        statistics: Statistics by field name, merged over parts of the ``train`` split.
        versions: Versions of ogbench, mujoco, numpy and this project.
        skipped: Reason of each input file that was left out, by file name.
        action_scale: Bounds that the stored actions -1 and 1 had in the data; None if
            actions are stored unscaled.
        format_version: Version of the store's layout.
        history: Commands that made and changed the store, in order; empty in version 1.
        reference_scores: Undiscounted returns that count as a normalised score of 0
            and of 100; None if unknown, and always in version 1.
        empty_parts: Parts that were planned and whose episodes were all left out; they
            have no rows and no files. None in version 1.
    """

    __pydantic_config__ = _STRICT

    dataset: str
    environment_id: EnvironmentId
    fields: dict[str, FieldSpec]
    tasks: tuple[Task, ...]
    discounts: tuple[float, ...]
    parts: tuple[PartManifest, ...]
    statistics: dict[str, Statistics]
    versions: dict[str, str]
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    action_scale: ActionScale | None = None
    format_version: int = FORMAT_VERSION
    history: tuple[Step, ...] = ()
    reference_scores: ReferenceScores | None = None
    empty_parts: tuple[PartManifest, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether arrays have checksums and the manifest has a seal."""
        return self.format_version >= CHECKED_VERSION

    @property
    def planned_parts(self) -> tuple[PartManifest, ...]:
        """All parts as they were planned, the empty ones included, in order."""
        return tuple(
            sorted((*self.parts, *self.empty_parts), key=lambda part: part.index)
        )

    def after(self, command: str, versions: Mapping[str, str]) -> "tuple[Step, ...]":
        """Returns the history extended by a command that changes the store.

        Args:
            command: See ``Step``; an empty command leaves the history as it is.
            versions: Versions of installed packages, by name.
        """
        # Readers of version 1 refuse a manifest with a history.
        if self.format_version == 1 or not command:
            return self.history
        return (*self.history, Step(command, dict(versions)))

    def fingerprint(self) -> str:
        """Computes a digest of the store's data, 64 hexadecimal digits.

        Package versions, paths and skipped files do not enter it: stores with equal
        arrays have equal fingerprints, whichever machine and version of the format
        wrote them.
        """
        entries = dataclasses.asdict(self)
        entries["parts"] = [_pick_keys(part, _OF_A_PART) for part in entries["parts"]]
        for part in entries["parts"]:
            # Version 1 has no episode digests. They follow from the rows, whose
            # checksums are in the fingerprint.
            part["checksums"].pop(EPISODE_DIGESTS, None)
        # Upgrading a store must not change its fingerprint, or its runs would be lost.
        entries["format_version"] = 1
        hashed = _pick_keys(entries, _OF_A_STORE)
        # Added only where there is one: fingerprints of stores made before actions
        # were scaled stay as they were.
        if self.action_scale is not None:
            hashed["action_scale"] = entries["action_scale"]
        return digest(hashed).removeprefix("sha256:")

    def array_folder(self, part: PartManifest, field: str) -> str:
        """Returns the folder of one array of a part, relative to the store."""
        spec = self.fields.get(field)
        per_task = spec is not None and spec.per == "row_and_task"
        return f"{part.labels_folder if per_task else part.folder}/{field}"

    def parts_of(self, split: str) -> tuple[PartManifest, ...]:
        """Returns the parts of one split, in order."""
        return tuple(part for part in self.parts if part.split == split)


def part_folder(index: int, key: str = "") -> str:
    """Returns the folder of a part, relative to the store.

    Example:
        >>> part_folder(7, "3f9a0c1d2e4b5a69")
        'parts/00007-3f9a0c1d2e4b5a69'
    """
    return f"parts/{index:05d}-{key}" if key else f"parts/{index:05d}"


def discount_name(discount: float) -> str:
    """Formats a discount as a path component: the shortest text that parses to it.

    Example:
        >>> discount_name(0.995)
        '0.995'
    """
    return repr(float(discount))


def returns_field(discount: float) -> str:
    """Returns the field name of a discount's return sums, such as ``returns/0.995``."""
    return f"returns/{discount_name(discount)}"


def _pick_keys(entries: Json, names: tuple[str, ...]) -> Json:
    return {name: entries[name] for name in names}
