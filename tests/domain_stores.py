"""Stores of made-up rows that can be acted on: a domain's shapes and its own tasks."""

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
    """Writes a store of one domain, its tasks as read from its environment.

    Args:
        folder: That the store's is made in, by the data set's name.
        dataset: Name, such as ``"scene-play"``.
        discounts: Of the returns it holds.
        episode_limit: Steps after which an episode of its tasks is cut.

    Returns:
        The store's folder.
    """
    domain, facts = parse_dataset(dataset), published.find(dataset)
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
    """Says in a store's manifest where its tasks are evaluated, in short episodes."""
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
