"""Changes the environment in which a store's policies are evaluated.

Only the manifest changes, in one atomic step. Rows and rewards stay as they are, and so
do the fingerprints by which runs recognise their data. This module makes no
environment.
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
    """Writes the environment of evaluation into a store's manifest.

    Args:
        store: The store; the commit is conditional on the manifest that it has read.
        environment: Environment for all tasks of the store; None keeps the stored one.
            The module is not stored, because nothing that a store names is imported.
        reference_scores: Returns that count as a normalised score of 0 and of 100;
            None keeps the stored ones.
        success_timing: State whose reward a row holds, see `Task`; None keeps the
            stored one.
        command: Entry of the store's history.

    Returns:
        The new manifest; None if nothing changes.

    Raises:
        DataFormatError: If the tasks are OGBench's, if the store is too old for
            reference scores, or if another process has changed the store meanwhile.
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
    # A new manifest is derived step by step, and committed only if anything differs.
    changed = old
    if environment is not None:
        tasks = (
            dataclasses.replace(
                task,
                environment_id=environment.environment_id,
                environment_kwargs=dict(environment.kwargs),
            )
            for task in old.tasks
        )
        changed = dataclasses.replace(
            old, environment_id=environment.environment_id, tasks=tuple(tasks)
        )
    if success_timing is not None:
        tasks = (
            dataclasses.replace(task, success_timing=success_timing)
            for task in changed.tasks
        )
        changed = dataclasses.replace(changed, tasks=tuple(tasks))
    if reference_scores is not None:
        changed = dataclasses.replace(changed, reference_scores=reference_scores)
    if changed == old:
        return None
    history = old.after(command, installed_versions())
    changed = dataclasses.replace(changed, history=history)
    data = manifest_json.to_json(changed).encode()
    files.commit(store.root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return changed
