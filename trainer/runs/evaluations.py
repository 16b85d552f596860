"""What an evaluation leaves in a run's folder: one JSON line each.

Owns the lines of ``RUN/evaluations.jsonl``. Repeating an evaluation adds a line;
readers take the last of its kind.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.decoding import read_first_error
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import EnvironmentArgument, ReferenceScores
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.returns import Returns

# Writers of one file at once are few, and each write takes a fraction of a second.
_ATTEMPTS = 20

# What of a line follows from the rest of it, for other programs to read.
_DERIVED = (
    *("success_rate", "return_mean", "return_interval"),
    *("normalised_score", "normalised_interval"),
)

# Far above what is ever recorded, and low enough that means and sums do not overflow.
Number = Annotated[int, pydantic.Field(ge=0, lt=1 << 40)]
Flag = Annotated[int, pydantic.Field(ge=0, le=1)]
Key = tuple[int | str, ...]


@dataclass(frozen=True)
class EvaluationSettings:
    """How a checkpoint is evaluated.

    Attributes:
        episodes: Of each training seed; exactly these are counted.
        seed: Fixes how every episode starts and what acting draws: the same for all
            checkpoints and training seeds, so they face equal episodes.
        environments: Acted in at once; the size of the policy's batch.
        workers: Processes; None for one per usable core. Results do not depend on it.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None for those that are published for the data set, if any are.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    episodes: int = 50
    seed: int = 0
    environments: int = 8
    workers: int | None = None
    reference_scores: ReferenceScores | None = None

    def __post_init__(self) -> None:
        for name in ("episodes", "environments"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"evaluation.{name}: expected at least 1, got {getattr(self, name)}"
                )

    def key(self, *, step: int, seed: int, task: int, environment: str) -> Key:
        """``Evaluation.key`` of a checkpoint, before its evaluation is there."""
        return _key(step, seed, self.seed, task, environment, self.episodes)


@dataclass(frozen=True)
class Evaluation:
    """One checkpoint of one training seed, evaluated.

    Attributes:
        step: Updates of the checkpoint.
        seed: Of training.
        evaluation_seed: Fixes how every episode starts and what acting draws.
        task: Task number.
        environment_id: Gymnasium id.
        episodes: How many were played.
        successes: 1 where the last step of the episode was one of success, else 0;
            None if the environment does not report success.
        returns: Undiscounted sum of rewards of each episode.
        lengths: Steps of each episode.
        success_timing: ``"pre"`` if the environment judged success of a step by the
            state before it, ``"post"`` by the state after it.
        store_success_timing: The same, as the rewards trained on were labelled.
        environments: Size of the batch that the policy acted in.
        ogbench: Version.
        mujoco: Version.
        duration_s: Wall time.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None if they are not known.
        environment_arguments: What the environment was made with besides its id,
            where that is not what the run says.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    step: Number
    seed: int
    evaluation_seed: int
    task: int
    environment_id: str
    episodes: Number
    successes: tuple[Flag, ...] | None
    returns: tuple[float, ...]
    lengths: tuple[Number, ...]
    success_timing: Literal["pre", "post"]
    store_success_timing: Literal["pre", "post"]
    environments: Number
    ogbench: str
    mujoco: str
    duration_s: float
    reference_scores: ReferenceScores | None = None
    environment_arguments: dict[str, EnvironmentArgument] = dataclasses.field(
        default_factory=dict
    )

    @property
    def score(self) -> Returns:
        """Mean return, its interval and normalised score."""
        return Returns.of(self.returns, self.reference_scores)

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes, in [0, 1]; None if it was not reported."""
        return None if self.successes is None else sum(self.successes) / self.episodes

    @property
    def mean_return(self) -> float:
        """Undiscounted return of an episode, on average."""
        return sum(self.returns) / self.episodes

    @property
    def mean_length(self) -> float:
        """Steps of an episode, on average."""
        return sum(self.lengths) / self.episodes

    @property
    def environment(self) -> str:
        """The environment as one text, arguments of its own included."""
        return name_environment(self.environment_id, self.environment_arguments)

    @property
    def key(self) -> Key:
        """What it is an evaluation of: a later one of equal key replaces it.

        Sorts by step, then training seed.
        """
        return _key(
            self.step,
            self.seed,
            self.evaluation_seed,
            self.task,
            self.environment,
            self.episodes,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values: the fields, and the figures that follow from them."""
        score = self.score
        return {
            **dataclasses.asdict(self),
            "success_rate": self.success_rate,
            "return_mean": score.mean,
            "return_interval": score.interval,
            "normalised_score": score.normalised,
            "normalised_interval": score.normalised_interval,
        }


def name_environment(
    environment_id: str, arguments: Mapping[str, EnvironmentArgument]
) -> str:
    """An environment as one text.

    Args:
        environment_id: Gymnasium id.
        arguments: What it is made with besides.

    Example:
        >>> name_environment("Line-v0", {"size": 3})
        'Line-v0 {"size": 3}'
    """
    if not arguments:
        return environment_id
    return f"{environment_id} {json.dumps(dict(arguments), sort_keys=True)}"


def find_own_arguments(
    asked: TaskEnvironment | None, of_run: Mapping[str, EnvironmentArgument]
) -> dict[str, EnvironmentArgument]:
    """What an environment is made with besides its id, where the run says otherwise.

    Evaluations in the run's own environment are known by its id alone.

    Args:
        asked: Environment that was asked for; None for the run's.
        of_run: Arguments of the run's.
    """
    if asked is None or dict(asked.kwargs) == dict(of_run):
        return {}
    return dict(asked.kwargs)


def _key(
    step: int,
    seed: int,
    evaluation_seed: int,
    task: int,
    environment: str,
    episodes: int,
) -> Key:
    return (step, seed, evaluation_seed, task, environment, episodes)


def append_evaluation(folder: RunFolder, evaluation: Evaluation) -> None:
    """Adds one line to ``evaluations.jsonl`` of a run's folder.

    A last line without its end, a killed writer's, is cut off first. Objects of a
    bucket cannot be appended to: the file is replaced, unless it has changed
    meanwhile, and then the line is added to what it has become.

    Args:
        folder: RUN.
        evaluation: To add.
    """
    line = json.dumps(evaluation.to_json()) + "\n"
    for _ in range(_ATTEMPTS):
        there = folder.read(EVALUATIONS_FILE)
        complete, end, _ = (there.data or b"").rpartition(b"\n")
        data = complete + end + line.encode()
        with contextlib.suppress(DataFormatError):  # Somebody else was quicker.
            folder.commit(EVALUATIONS_FILE, data, replacing=there)
            return
    raise DataFormatError(
        f"{folder}/{EVALUATIONS_FILE}: others keep changing it; run fewer "
        "evaluations of this run at once"
    )


def read_evaluations(folder: RunFolder) -> list[Evaluation]:
    """Reads the evaluations of a run, by step, then seed.

    Args:
        folder: RUN.

    Returns:
        The last line of each key; nothing if the run was never evaluated.

    Raises:
        DataFormatError: If a line is no evaluation.
    """
    adapter = pydantic.TypeAdapter(Evaluation)
    latest: dict[Key, Evaluation] = {}
    for number, line in enumerate(folder.read_lines(EVALUATIONS_FILE), start=1):
        evaluation = _decode(
            adapter, line, where=f"{folder}/{EVALUATIONS_FILE}, line {number}"
        )
        latest[evaluation.key] = evaluation
    return sorted(latest.values(), key=lambda evaluation: evaluation.key)


def _decode(
    adapter: pydantic.TypeAdapter[Evaluation], value: Any, *, where: str
) -> Evaluation:
    try:
        if isinstance(value, dict):
            value = {name: each for name, each in value.items() if name not in _DERIVED}
        evaluation = adapter.validate_python(value)
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        raise DataFormatError(
            f"{where}: {first.place}: {first.message}; it was not written by this "
            "version, remove the line and evaluate again"
        ) from error
    played = evaluation.episodes
    lists: list[tuple[float, ...]] = [evaluation.returns, evaluation.lengths]
    if evaluation.successes is not None:
        lists.append(evaluation.successes)
    if played < 1 or {len(each) for each in lists} != {played}:
        raise DataFormatError(
            f"{where}: expected returns, lengths and successes of {played} episodes, "
            f"got {', '.join(str(len(each)) for each in lists)}; the file is damaged, "
            "remove the line and evaluate again"
        )
    return evaluation
