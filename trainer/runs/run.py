"""The description of a run: ``run.json``, which says all that makes it that run."""

import dataclasses
import importlib.metadata
import json
import math
from dataclasses import dataclass
from typing import Any

import pydantic

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.reference_scores import find_reference_scores
from pipeline.domains.spaces import Spaces, describe_store
from pipeline.store.action_scale import ActionScale
from pipeline.store.decoding import load_object, read_first_error
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import ReferenceScores, Task, describe_fields
from pipeline.store.reader import Store
from pipeline.store.schema import ACTION_TOLERANCE
from pipeline.store.seals import check_seal, seal, without_seal
from trainer.agents.base import Agent, DataFacts
from trainer.agents.registry import AGENTS, make_agent
from trainer.config import Config
from trainer.data.table import find_acting_range
from trainer.runs.folder import RUN_FILE, RunFolder

# Options that agents have been given since the first version, with the value that runs
# from before were trained with.
_BEFORE_OPTIONS: dict[str, dict[str, Any]] = {
    "vast": {"success": "mixed", "terminal_starts": False}
}

# Packages whose versions can change what a run computes.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "grain", "numpy", "vast-rl")


@dataclass(frozen=True)
class Run:
    """The description of a run, enough to act and to evaluate without its data.

    Attributes:
        config: Configuration as resolved for the task, with all overrides.
        dataset: Data set of the store.
        task: Task that is trained for.
        facts: Facts of the data set and task.
        fingerprint: Fingerprint of what is read of the store.
        store: Path that the data were read from, as the user gave it.
        versions: Versions of the packages that computed the run.
        action_scale: Environment's actions that -1 and 1 of the policy stand for; None
            if they are -1 and 1.
        spaces: Spaces of the data, to compare with those of an environment; None in
            runs of earlier versions.
        reference_scores: Undiscounted returns that count as a normalised score of 0
            and of 100; None if they are not known.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    config: Config
    dataset: str
    task: Task
    facts: DataFacts
    fingerprint: str
    store: str
    versions: dict[str, str]
    action_scale: ActionScale | None = None
    spaces: Spaces | None = None
    reference_scores: ReferenceScores | None = None

    def agent(self) -> Agent[Any]:
        """Builds the agent of the run."""
        return make_agent(self.config.agent, self.facts)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, which ``from_json`` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, *, where: str) -> "Run":
        """Decodes a run, also one that an earlier version wrote.

        Args:
            value: Plain values from ``to_json``.
            where: File name, for the error message.

        Returns:
            The run.

        Raises:
            DataFormatError: If the values are not those of a run.
        """
        try:
            return pydantic.TypeAdapter(cls).validate_python(_update_options(value))
        except pydantic.ValidationError as error:
            first = read_first_error(error)
            raise DataFormatError(
                f"{where}: {first.place}: {first.message}; the file was not written by "
                "this version or is of another package's agent, open it with the "
                "version that wrote it, or install the package"
            ) from error


def _update_options(value: Any) -> Any:
    """Adds options that the agent has been given since, and takes those it has lost."""
    try:
        agent = value["config"]["agent"]
        added = _BEFORE_OPTIONS.get(agent["name"], {})
        dropped = AGENTS[agent["name"]].config.dropped_options
        # A dropped option of another value stays, and decoding refuses it by name: that
        # run cannot be computed any more.
        kept = {
            name: option
            for name, option in agent.items()
            if name not in dropped or option != dropped[name]
        }
        config = {**value["config"], "agent": {**added, **kept}}
    except (KeyError, TypeError, AttributeError):  # Decoding says what is wrong.
        return value
    return {**value, "config": config}


def describe_run(
    config: Config,
    store: Store,
    task: int,
    *,
    fingerprint: str,
    environment: TaskEnvironment | None = None,
) -> Run:
    """Describes a run from its configuration and data.

    Args:
        config: Configuration as resolved for the task.
        store: Store to train on.
        task: Task number.
        fingerprint: Fingerprint of the rows that batches are drawn from.
        environment: Environment to evaluate in; None for the one that the store names.

    Returns:
        The run.

    Raises:
        DataFormatError: If the store is of another data set than the configuration, or
            holds data that no agent can learn from, such as images or discrete actions.
    """
    manifest = store.manifest
    if manifest.dataset != config.dataset:
        raise DataFormatError(
            f"{store.root}: expected a store of {config.dataset}, which the "
            f"configuration is for, got one of {manifest.dataset}; choose the "
            "configuration of that data set, or another store"
        )
    _check_fields(store)
    column, description = store.task(task)
    if environment is not None:
        # The environment's module is not kept: a run may come from a stranger, so
        # reading it must never make Python import anything.
        description = dataclasses.replace(
            description,
            environment_id=environment.environment_id,
            environment_kwargs=dict(environment.kwargs),
        )
    observations = manifest.statistics["observations"]
    rewards = find_acting_range(store, "rewards", column)
    returns = find_acting_range(
        store, store.returns_field(config.agent.discount), column
    )
    return Run(
        config=config,
        dataset=manifest.dataset,
        task=description,
        facts=DataFacts(
            observation_dim=math.prod(manifest.fields["observations"].shape),
            action_dim=math.prod(manifest.fields["actions"].shape),
            observation_mean=observations.mean,
            observation_std=observations.std,
            reward_min=rewards[0],
            reward_max=rewards[1],
            return_max=returns[1],
        ),
        fingerprint=fingerprint,
        store=store.root,
        versions={
            package: importlib.metadata.version(package) for package in _PACKAGES
        },
        action_scale=manifest.action_scale,
        spaces=describe_store(manifest),
        reference_scores=manifest.reference_scores
        or find_reference_scores(manifest.dataset),
    )


def _check_fields(store: Store) -> None:
    """Refuses a store whose rows no agent can learn from."""
    fields = store.manifest.fields
    flat = all(len(fields[name].shape) == 1 for name in ("observations", "actions"))
    if not flat or not fields["actions"].dtype.startswith("float"):
        raise DataFormatError(
            f"{store.root}: expected observations [rows, S] and continuous actions "
            "[rows, A] to train on, got "
            f"{describe_fields({n: fields[n] for n in ('observations', 'actions')})}; "
            "images and discrete actions are not supported, shard other data"
        )


def find_action_outside(store: Store) -> float | None:
    """Finds the action component that lies furthest outside [-1, 1].

    Args:
        store: A committed store.

    Returns:
        The component; None if all lie within.
    """
    # Policies act in [-1, 1] and could never take such actions. Writing a store refuses
    # them now, but earlier versions did not.
    known = store.manifest.statistics["actions"]
    furthest = max((*known.minimum, *known.maximum), key=abs)
    return furthest if abs(furthest) > 1 + ACTION_TOLERANCE else None


def write_run(folder: RunFolder, run: Run) -> None:
    """Writes ``run.json`` into a run's folder, with a seal over its contents."""
    data = json.dumps(seal(run.to_json()), indent=1) + "\n"
    folder.write(RUN_FILE, data.encode())


def read_run(folder: RunFolder) -> Run:
    """Reads ``run.json`` of a run's folder.

    Args:
        folder: Folder of the run, RUN.

    Returns:
        The run.

    Raises:
        DataFormatError: If the folder holds no run, or the file is damaged.
    """
    path = folder.path / RUN_FILE
    data = folder.read(RUN_FILE).data
    if data is None:
        raise DataFormatError(
            f"{path}: expected the folder of a run, found no {RUN_FILE} there; give "
            "the --out of a `python -m trainer train`"
        )
    where = str(path)
    remedy = "the file is damaged, copy it from a checkpoint's run/metadata"
    value = load_object(data, where=where, remedy=remedy)
    run = Run.from_json(without_seal(value), where=where)
    # Decoded first, because its message names the field that is wrong.
    check_seal(value, where=where, remedy=remedy, required=False)
    return run
