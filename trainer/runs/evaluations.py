"""What an evaluation leaves in a run's folder: one JSON line each.

Owns the lines of ``RUN/evaluations.jsonl``. Repeating an evaluation adds a line;
readers take the last of its kind.
"""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from pipeline.store import files
from pipeline.store.decoding import read_first_error
from pipeline.store.errors import DataFormatError
from trainer.runs.folder import EVALUATIONS_FILE, FolderLike, open_folder, read_lines

# Writers of one file at once are few, and each write takes a fraction of a second.
_ATTEMPTS = 20


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
        successes: 1 where the last step of the episode was one of success, else 0.
        returns: Undiscounted sum of rewards of each episode.
        lengths: Steps of each episode.
        success_timing: ``"pre"`` if the environment judged success of a step by the
            state before it, ``"post"`` by the state after it.
        store_success_timing: The same, as the rewards trained on were labelled.
        environments: Size of the batch that the policy acted in.
        ogbench: Version.
        mujoco: Version.
        duration_s: Wall time.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    step: int
    seed: int
    evaluation_seed: int
    task: int
    environment_id: str
    episodes: int
    successes: tuple[int, ...]
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_timing: Literal["pre", "post"]
    store_success_timing: Literal["pre", "post"]
    environments: int
    ogbench: str
    mujoco: str
    duration_s: float

    @property
    def success_rate(self) -> float:
        """Share of successful episodes, in [0, 1]."""
        return sum(self.successes) / self.episodes

    @property
    def key(self) -> tuple[int, ...]:
        """What it is an evaluation of; a later one of equal key replaces it."""
        return evaluation_key(
            step=self.step,
            seed=self.seed,
            evaluation_seed=self.evaluation_seed,
            task=self.task,
            episodes=self.episodes,
        )


def evaluation_key(
    *, step: int, seed: int, evaluation_seed: int, task: int, episodes: int
) -> tuple[int, ...]:
    """What an evaluation is of, before it is there; sorts by step, then seed."""
    return (step, seed, evaluation_seed, task, episodes)


def append_evaluation(folder: FolderLike, evaluation: Evaluation) -> None:
    """Adds one line to ``evaluations.jsonl`` of a run's folder.

    A last line without its end, a killed writer's, is cut off first. Objects of a
    bucket cannot be appended to: the file is replaced, unless it has changed
    meanwhile, and then the line is added to what it has become.

    Args:
        folder: RUN.
        evaluation: To add.
    """
    line = json.dumps(dataclasses.asdict(evaluation)) + "\n"
    root = os.fspath(folder)
    for _ in range(_ATTEMPTS):
        there = files.read(root, EVALUATIONS_FILE)
        complete, end, _ = (there.data or b"").rpartition(b"\n")
        data = complete + end + line.encode()
        with contextlib.suppress(DataFormatError):  # Somebody else was quicker.
            files.commit(root, EVALUATIONS_FILE, data, replacing=there)
            return
    raise DataFormatError(
        f"{root}/{EVALUATIONS_FILE}: others keep changing it; run fewer "
        "evaluations of this run at once"
    )


def read_evaluations(folder: FolderLike) -> list[Evaluation]:
    """Reads the evaluations of a run, by step, then seed.

    Args:
        folder: RUN.

    Returns:
        The last line of each key; nothing if the run was never evaluated.

    Raises:
        DataFormatError: If a line is no evaluation.
    """
    path = open_folder(folder) / EVALUATIONS_FILE
    adapter = pydantic.TypeAdapter(Evaluation)
    latest: dict[tuple[int, ...], Evaluation] = {}
    for number, line in enumerate(read_lines(path), start=1):
        evaluation = _decode(adapter, line, where=f"{path}, line {number}")
        latest[evaluation.key] = evaluation
    return sorted(latest.values(), key=lambda evaluation: evaluation.key)


def _decode(
    adapter: pydantic.TypeAdapter[Evaluation], value: Any, *, where: str
) -> Evaluation:
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        raise DataFormatError(
            f"{where}: {first.place}: {first.message}; it was not written by this "
            "version, remove the line and evaluate again"
        ) from error
