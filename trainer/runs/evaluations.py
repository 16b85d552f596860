"""Evaluations of a run, one JSON line each in ``RUN/evaluations.jsonl``.

Repeating an evaluation adds a line; readers take the last line of each key.
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

# Attempts to add a line to a file that others change meanwhile: writers are few, and a
# write takes a fraction of a second.
_ATTEMPTS = 20

# Fields that are computed from the others, written for other programs to read.
_DERIVED = (
    *("success_rate", "return_mean", "return_interval"),
    *("normalised_score", "normalised_interval"),
)

# The bound is far above any real count, and low enough that means do not overflow: a
# file may come from a stranger.
Number = Annotated[int, pydantic.Field(ge=0, lt=1 << 40)]
Count = Annotated[int, pydantic.Field(ge=1, lt=1 << 40)]
Flag = Annotated[int, pydantic.Field(ge=0, le=1)]
Key = tuple[int | str, ...]


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    Attributes:
        episodes: Episodes of each training seed.
        seed: Seed of how every episode starts and of what acting draws. All checkpoints
            and training seeds share it, and so play the same episodes.
        environments: Environments that are acted in at once, which is the size of the
            policy's batch.
        workers: Number of processes; None for one per usable core. Results do not
            depend on it.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None for the published ones of the data set, if there are any.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    episodes: int = 50
    seed: int = 0
    environments: int = 8
    workers: int | None = None
    reference_scores: ReferenceScores | None = None

    def __post_init__(self) -> None:
        for name in ("episodes", "environments", "workers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(
                    f"evaluation.{name}: expected at least 1, got {count}; raise it"
                )
        # A sweep would find it out after its trainings, when it evaluates them.
        if not 0 <= self.seed < 2**32:
            raise UsageError(
                f"evaluation.seed: expected 0 to 2**32 - 1, got {self.seed}; choose "
                "another"
            )

    def key(
        self,
        *,
        step: int,
        seed: int,
        task: int,
        environment: str,
        candidates: int | None = None,
    ) -> Key:
        """Computes ``Evaluation.key`` of a checkpoint that is yet to be evaluated."""
        return _key(step, seed, self.seed, task, environment, candidates, self.episodes)


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one checkpoint of one training seed.

    Attributes:
        step: Step of the checkpoint.
        seed: Training seed.
        evaluation_seed: Seed of how every episode starts and of what acting draws.
        task: Task number.
        environment_id: Gymnasium id of the environment.
        episodes: Number of episodes.
        successes: 1 for each episode whose last step reported success, else 0; None if
            the environment does not report success.
        returns: Undiscounted sum of the rewards of each episode.
        lengths: Steps of each episode.
        success_timing: ``"pre"`` if the environment judges success of a step by the
            state before it, ``"post"`` if by the state after it.
        store_success_timing: The same of the rewards that were trained on.
        environments: Size of the batch that the policy acted in.
        ogbench: Version of ogbench; empty if it is not installed.
        mujoco: Version of mujoco; empty if it is not installed.
        duration_s: Wall time in seconds.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None if they are not known.
        environment_arguments: Arguments that the environment was made with besides its
            id, if they differ from the run's.
        candidates: Actions drawn at a step, of which the best was executed; None if
            they were as many as in the run's configuration.
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
    candidates: Count | None = None

    @property
    def score(self) -> Returns:
        """Mean return, its interval and normalised score."""
        return Returns.of(self.returns, self.reference_scores)

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes, in [0, 1]; None if success is not reported."""
        return None if self.successes is None else sum(self.successes) / self.episodes

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return of an episode."""
        return sum(self.returns) / self.episodes

    @property
    def mean_length(self) -> float:
        """Mean number of steps of an episode."""
        return sum(self.lengths) / self.episodes

    @property
    def environment(self) -> str:
        """Name of the environment, with its arguments."""
        return name_environment(self.environment_id, self.environment_arguments)

    @property
    def conditions(self) -> tuple[str, int]:
        """Environment and candidates (0: the run's own); only equal ones may pool."""
        return self.environment, self.candidates or 0

    @property
    def key(self) -> Key:
        """Key of the evaluation, which a later one of equal key replaces.

        Keys sort by step, then training seed.
        """
        return _key(
            self.step,
            self.seed,
            self.evaluation_seed,
            self.task,
            self.environment,
            self.candidates,
            self.episodes,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain values: the fields, and the results computed from them."""
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
    """Names an environment with its arguments.

    Args:
        environment_id: Gymnasium id.
        arguments: Arguments that the environment is made with besides.

    Returns:
        The id, followed by the arguments as JSON if there are any.

    Example:
        >>> name_environment("Line-v0", {"size": 3})
        'Line-v0 {"size": 3}'
    """
    if not arguments:
        return environment_id
    return f"{environment_id} {json.dumps(dict(arguments), sort_keys=True)}"


def choose_environment(
    asked: TaskEnvironment | None, own: TaskEnvironment
) -> tuple[TaskEnvironment, dict[str, EnvironmentArgument]]:
    """Chooses the environment to evaluate a run in.

    Args:
        asked: Environment that the user gave; None for the run's own. The run's own
            that is given without arguments, such as for its module, has the run's.
        own: Environment of the run.

    Returns:
        The environment, and those of its arguments that are part of an evaluation's
        key; none if they are the run's.
    """
    if asked is None:
        return own, {}
    arguments = dict(asked.kwargs)
    if asked.environment_id != own.environment_id:
        return asked, arguments
    # Evaluations of earlier versions in the run's own environment are keyed by the
    # environment's id alone.
    if not arguments or arguments == dict(own.kwargs):
        return dataclasses.replace(asked, kwargs=own.kwargs), {}
    return asked, arguments


def _key(
    step: int,
    seed: int,
    evaluation_seed: int,
    task: int,
    environment: str,
    candidates: int | None,
    episodes: int,
) -> Key:
    # Keys are sorted, which None would prevent.
    return (step, seed, evaluation_seed, task, environment, candidates or 0, episodes)


def append_evaluation(folder: RunFolder, evaluation: Evaluation) -> None:
    """Adds one line to ``evaluations.jsonl`` of a run's folder.

    Args:
        folder: Folder of the run, RUN.
        evaluation: Evaluation to add.

    Raises:
        DataFormatError: If other processes keep changing the file.
    """
    line = json.dumps(evaluation.to_json()) + "\n"
    # Objects in a bucket cannot be appended to. The file is replaced unless it has
    # changed since it was read; then it is read again. So several evaluators of one run
    # lose no line.
    for _ in range(_ATTEMPTS):
        content = folder.read(EVALUATIONS_FILE)
        # A last line without its line feed is dropped: its writer was killed.
        complete, end, _ = (content.data or b"").rpartition(b"\n")
        data = complete + end + line.encode()
        with contextlib.suppress(DataFormatError):  # Another process was quicker.
            folder.commit(EVALUATIONS_FILE, data, replacing=content)
            return
    raise DataFormatError(
        f"{folder}/{EVALUATIONS_FILE}: expected to add a line, but other processes "
        f"changed the file {_ATTEMPTS} times meanwhile; run fewer evaluations of this "
        "run at once"
    )


def read_evaluations(folder: RunFolder) -> list[Evaluation]:
    """Reads the evaluations of a run.

    Args:
        folder: Folder of the run, RUN.

    Returns:
        The last evaluation of each key, sorted by step, then seed; none if the run was
        never evaluated.

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
            # Derived fields are computed again and not trusted.
            value = {
                name: field for name, field in value.items() if name not in _DERIVED
            }
        evaluation = adapter.validate_python(value)
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        raise DataFormatError(
            f"{where}: {first.place}: {first.message}; another version wrote it, or "
            "it is damaged: remove the line and evaluate again"
        ) from error
    played = evaluation.episodes
    lists: list[tuple[float, ...]] = [evaluation.returns, evaluation.lengths]
    if evaluation.successes is not None:
        lists.append(evaluation.successes)
    sizes = [len(outcomes) for outcomes in lists]
    if played < 1 or set(sizes) != {played}:
        raise DataFormatError(
            f"{where}: expected returns, lengths and successes of {played} episodes, "
            f"got {', '.join(map(str, sizes))}; the file is damaged, remove the line "
            "and evaluate again"
        )
    return evaluation
