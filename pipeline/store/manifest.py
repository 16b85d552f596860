"""The store's manifests as typed values: what ``dataset.json`` and ``part.json`` say.

Knows nothing of arrays; `pipeline.store.manifest_json` reads and writes them.

Version 2 of the format has a checksum in every chunk of an array and a seal on its
manifest. A store of version 1 stays one whatever is added to it, as what it held before
has neither; `pipeline.assembly.upgrade` writes it anew.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from pipeline.store.action_scale import ActionScale
from pipeline.store.seals import digest

FORMAT_VERSION = 2
# From this version on, flipped bits are noticed by whoever reads.
CHECKED_VERSION = 2
DATASET_MANIFEST = "dataset.json"
PART_MANIFEST = "part.json"

Json = dict[str, Any]
Split = Literal["train", "val"]
Recipe = Literal["maze", "cube", "scene", "puzzle", "stored"]
# Of environments, in files that others may have written. Gymnasium imports what stands
# before a colon, and constructors may read files that arguments name.
ENVIRONMENT_ID = r"^[^:\x00-\x1f\x7f]{1,200}$"
EnvironmentId = Annotated[str, pydantic.StringConstraints(pattern=ENVIRONMENT_ID)]
_Word = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
EnvironmentArgument = bool | int | float | _Word | None


def _ordered(scores: tuple[float, float]) -> tuple[float, float]:
    """Refuses what no score can be made of: pydantic says where it stood."""
    low, high = scores
    if not low < high:
        raise ValueError(f"expected a smaller and a larger return, got {low}, {high}")
    return scores


# Returns that count as a normalised score of 0 and of 100.
ReferenceScores = Annotated[
    tuple[pydantic.FiniteFloat, pydantic.FiniteFloat], pydantic.AfterValidator(_ordered)
]

_STRICT: Any = {"extra": "forbid", "allow_inf_nan": False}
# What fingerprints are made of. Runs name the data they were trained on by them, so
# that what is added to manifests later is not added here.
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
    """One array of a part.

    Attributes:
        dtype: NumPy name of the element type, such as ``"float32"``.
        shape: Trailing shape: that of one row.
        per: ``"row"`` for arrays ``[rows, *shape]``; ``"row_and_task"`` for
            ``[rows, tasks]``, chunked so that one task is one column to read.
        unit: What a value means, for people.
    """

    __pydantic_config__ = _STRICT

    dtype: str
    shape: tuple[int, ...]
    per: Literal["row", "row_and_task"] = "row"
    unit: str = ""


# Of the episode table, which every part has. Digests came later.
EPISODE_FIELD = FieldSpec("int64", (), unit="rows")
EPISODE_DIGESTS = "episode_digests"
TABLE = {
    "episode_starts": EPISODE_FIELD,
    "episode_lengths": EPISODE_FIELD,
    EPISODE_DIGESTS: FieldSpec("uint64", ()),
}


def describe_fields(fields: Mapping[str, FieldSpec]) -> str:
    """Fields in one line, such as ``"qpos float32[21], actions float32[5]"``."""
    return ", ".join(
        f"{name} {field.dtype}{list(field.shape)}" for name, field in fields.items()
    )


@dataclass(frozen=True)
class Task:
    """One task of a domain: whose reward and mask columns a store holds.

    Attributes:
        task: Task number as OGBench counts, from 1.
        name: The environment's own name of it, such as ``"task1_horizontal"``.
        environment_id: Gymnasium id of the environment to evaluate in, without a module
            to import.
        environment_kwargs: What ``gymnasium.make`` needs besides the id: numbers and
            words.
        recipe: How rewards and masks follow from the physics state;
            ``"stored"`` where they came with the data.
        goal: The target in the units of the physics state, as plain lists:
            ``cube_xyzs`` (metres), ``button_states``, ``drawer`` and ``window``
            (metres), or ``xy`` and ``tolerance`` (metres) of a maze.
        success_timing: ``"pre"``: reward and mask of row ``t`` are of state
            ``s_t``, as OGBench labels its data.
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
    success_timing: Literal["pre", "post"] = "pre"


@dataclass(frozen=True)
class Statistics:
    """Mergeable summary of one array over rows.

    Attributes:
        count: Rows counted.
        mean: ``[D]``, per component of a row; fields of several axes, such as
            images, by their last axis, and then ``count`` is of pixels.
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
    """Where the rows of a part came from.

    Attributes:
        source: Kind of input, such as ``"ogbench_npz"`` or ``"collect"``.
        name: File name or environment id; never a path of one machine.
        digest: ``sha256:...`` of what was read, or the collection's recipe.
        first_episode: Index of the part's first episode within that input.
    """

    __pydantic_config__ = _STRICT

    source: str
    name: str
    digest: str
    first_episode: int


@dataclass(frozen=True)
class PartManifest:
    """What ``part.json`` says of one part: whole episodes, about a million rows.

    Attributes:
        index: Number of the part.
        split: ``"train"`` or ``"val"``.
        rows: Rows of the part; an episode of T transitions has T + 1.
        episodes: Episodes of the part.
        statistics: By field name; per task for rewards and masks.
        checksums: By field name, ``sha256:...`` of the array's raw bytes, C order.
        origin: Where the rows came from.
        plan: ``sha256:...`` of what was asked for: input, episodes, fields, tasks
            and discounts. A part of the same plan need not be written again.
        dropped: Episodes left out, by reason, as indices within the input.
        labels: Folder of the per-task arrays within the part, empty if they lie
            beside the others: relabelling writes new ones and leaves the old.
        key: What is asked for, as 16 hexadecimal digits in the name of the part's
            folder: whoever writes something else writes elsewhere. Empty in stores
            made before there was one.
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
        """Arrays of its episode table; not every part has digests of its episodes."""
        kept = EPISODE_DIGESTS in self.checksums
        return {n: field for n, field in TABLE.items() if kept or n != EPISODE_DIGESTS}

    @property
    def labels_folder(self) -> str:
        """Folder of its per-task arrays and of its manifest, relative to the store."""
        return f"{self.folder}/{self.labels}" if self.labels else self.folder


@dataclass(frozen=True)
class Step:
    """One command that a store was made or changed by.

    Attributes:
        command: What of it decides what the store holds, such as ``"shard --dataset
            cube-single-play --discounts 0.99"``: neither paths, which parts' origins
            tell the names of, nor how many processes wrote it.
        versions: Of what was installed there.
    """

    __pydantic_config__ = _STRICT

    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class DatasetManifest:
    """What ``dataset.json`` says: the store's contract with its readers.

    Attributes:
        dataset: Data-set name, such as ``"cube-single-play"``.
        environment_id: Environment that made the data, such as
            ``"cube-single-v0"``.
        fields: Every array of a part, by path within the part.
        tasks: Column ``i`` of rewards, masks and returns belongs to ``tasks[i]``.
        discounts: Discounts whose return sums are stored.
        parts: In order; the logical arrays are their concatenation.
        statistics: Merged over parts of the ``train`` split.
        versions: Of ogbench, mujoco, numpy and this project.
        skipped: Input files that were left out, by name, and why.
        action_scale: What -1 and 1 of the stored actions were in the data; None if
            they are stored as they were.
        format_version: Of the layout.
        history: What it was made and changed by, in order; not of version 1.
        reference_scores: Undiscounted returns that count as a normalised score of 0
            and of 100; None if they are not known. Not of version 1.
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

    @property
    def checked(self) -> bool:
        """Whether everybody notices flipped bits in its arrays and its manifest."""
        return self.format_version >= CHECKED_VERSION

    def after(self, command: str, versions: Mapping[str, str]) -> "tuple[Step, ...]":
        """Its history once another command has changed it."""
        if self.format_version == 1 or not command:
            return self.history
        return (*self.history, Step(command, dict(versions)))

    def fingerprint(self) -> str:
        """Digest of everything the store holds, 64 hexadecimal digits.

        Versions, places and what is not there are left out: equal arrays are equal
        data whoever wrote them, wherever, and in whichever version of the format.
        """
        value = dataclasses.asdict(self)
        value["parts"] = [_picked(part, _OF_A_PART) for part in value["parts"]]
        for part in value["parts"]:
            part["checksums"].pop(EPISODE_DIGESTS, None)  # They follow from the rows.
        value["format_version"] = 1
        held = _picked(value, _OF_A_STORE)
        if self.action_scale is not None:
            held["action_scale"] = value["action_scale"]
        return digest(held).removeprefix("sha256:")

    def array_folder(self, part: PartManifest, field: str) -> str:
        """Folder of one array of a part, relative to the store."""
        spec = self.fields.get(field)
        per_task = spec is not None and spec.per == "row_and_task"
        return f"{part.labels_folder if per_task else part.folder}/{field}"

    def parts_of(self, split: str) -> tuple[PartManifest, ...]:
        """Parts of one split, in order."""
        return tuple(part for part in self.parts if part.split == split)


def part_folder(index: int, key: str = "") -> str:
    """Folder of a part, relative to the store.

    Example:
        >>> part_folder(7, "3f9a0c1d2e4b5a69")
        'parts/00007-3f9a0c1d2e4b5a69'
    """
    return f"parts/{index:05d}-{key}" if key else f"parts/{index:05d}"


def discount_name(discount: float) -> str:
    """A discount as path component: the shortest text that reads back equal.

    Example:
        >>> discount_name(0.995)
        '0.995'
    """
    return repr(float(discount))


def returns_field(discount: float) -> str:
    """Field name of the return sums of one discount: ``returns/0.995``."""
    return f"returns/{discount_name(discount)}"


def _picked(value: Json, names: tuple[str, ...]) -> Json:
    return {name: value[name] for name in names}
