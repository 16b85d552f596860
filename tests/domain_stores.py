"""Stores of made-up rows with the shapes and tasks of a real domain, to evaluate in."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pipeline.domains import goals
from pipeline.domains.datasets import parse_dataset
from pipeline.store import files, manifest, manifest_json
from pipeline.store.manifest import Task
from pipeline.store.reader import Store
from tests.stores import write_store
from trainer.costs import published

# Longer than the largest horizon of any configuration.
_EPISODES = ((80, 80), (80,))


def write_domain_store(
    folder: Path, dataset: str, *, discounts: Sequence[float], episode_limit: int
) -> Path:
    """Writes a store of one domain, with the tasks of its environment.

    Args:
        folder: Parent of the store's folder, which is named after the data set.
        dataset: Name, such as ``"scene-play"``.
        discounts: Discounts of the returns in the store.
        episode_limit: Steps after which an episode of the tasks is truncated.

    Returns:
        The store's folder.
    """
    domain, facts = parse_dataset(dataset), published.find_dataset(dataset)
    root = write_store(
        folder / dataset,
        _EPISODES,
        dataset=dataset,
        discounts=discounts,
        S=facts.observation_dim,
        A=facts.action_dim,
    )
    _label(root, domain.environment_id, goals.read_tasks(domain), episode_limit)
    return root


def _label(
    root: Path, environment_id: str, tasks: tuple[Task, ...], episode_limit: int
) -> None:
    """Sets a store's environment and its tasks, with short episodes."""
    read = files.read(str(root), manifest.DATASET_MANIFEST)
    assert read is not None
    before = Store(str(root)).manifest
    after = dataclasses.replace(
        before,
        environment_id=environment_id,
        tasks=tuple(
            dataclasses.replace(
                task,
                environment_kwargs={
                    **task.environment_kwargs,
                    "max_episode_steps": episode_limit,
                },
            )
            for task in tasks
        ),
    )
    text = manifest_json.to_json(after).encode()
    files.commit(str(root), manifest.DATASET_MANIFEST, text, replacing=read)
