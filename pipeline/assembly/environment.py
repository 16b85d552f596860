"""The environment that a store's policies are evaluated in, set afterwards.

Rewards and rows stay as they are: only the manifest changes, in one atomic step, and no
run's data become others by it. Knows nothing of Beam, and makes no environment.
"""

import dataclasses
from typing import Literal

from pipeline.assembly.plan import installed_versions
from pipeline.domains.datasets import TaskEnvironment
from pipeline.store import files, manifest, manifest_json
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import DatasetManifest
from pipeline.store.reader import Store


def set_environment(
    store: Store,
    environment: TaskEnvironment | None,
    *,
    reference_scores: tuple[float, float] | None = None,
    success_timing: Literal["pre", "post"] | None = None,
    command: str = "",
) -> DatasetManifest | None:
    """Writes into a store where its policies are evaluated.

    Args:
        store: The store as it was looked at; it is changed only if it is that still.
        environment: For all of its tasks; None to keep what is there. Its module is
            not kept: nothing is imported for what stands in a store.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None to keep what is there.
        success_timing: Which state a row is rewarded for; None to keep what is there.
        command: For the history.

    Returns:
        The new manifest; None if the store says all of it already.

    Raises:
        DataFormatError: If its tasks are OGBench's, if it is too old for reference
            scores, or if somebody else has changed it meanwhile.
    """
    old = store.manifest
    if any(task.recipe != "stored" for task in old.tasks):
        raise DataFormatError(
            f"{store.root}: expected a store whose rewards came with the data, got the "
            "tasks of OGBench's environments, which have their own; give --environment "
            "to `train` or `evaluate`"
        )
    if reference_scores is not None and not old.checked:
        raise DataFormatError(
            f"{store.root}: expected a store of format 2 to keep reference scores in, "
            f"got version {old.format_version}; `upgrade` it first, or give "
            "--reference-scores to `evaluate`"
        )
    value = old
    if environment is not None:
        tasks = (
            dataclasses.replace(
                task,
                environment_id=environment.environment_id,
                environment_kwargs=dict(environment.kwargs),
            )
            for task in old.tasks
        )
        value = dataclasses.replace(
            old, environment_id=environment.environment_id, tasks=tuple(tasks)
        )
    if success_timing is not None:
        tasks = (
            dataclasses.replace(task, success_timing=success_timing)
            for task in value.tasks
        )
        value = dataclasses.replace(value, tasks=tuple(tasks))
    if reference_scores is not None:
        value = dataclasses.replace(value, reference_scores=reference_scores)
    if value == old:
        return None
    value = dataclasses.replace(value, history=old.after(command, installed_versions()))
    data = manifest_json.to_json(value).encode()
    files.commit(store.root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return value
