"""The comparison of a store with the environment to evaluate in, before training.

A store of another environment would otherwise be noticed by the first evaluation, days
after training started.
"""

from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment, known_datasets
from pipeline.domains.spaces import check_spaces, describe_store
from pipeline.output import say
from pipeline.store.errors import UsageError
from pipeline.store.reader import Store
from trainer.errors import EvaluationError
from trainer.evaluation.rollouts import RolloutPool


def compare_spaces(
    store: Store, environment: TaskEnvironment, console: Console
) -> None:
    """Refuses a store whose data cannot be of an environment.

    Args:
        store: Store to train on.
        environment: Environment to evaluate in.
        console: Console for warnings about what the user should judge.

    Raises:
        DataFormatError: If the spaces differ, see ``check_spaces``.
        EvaluationError: If the environment fails.
        UsageError: If there is no such environment.
    """
    # In a worker process: a simulator may take a GPU's memory or crash, and this
    # process is about to train.
    with RolloutPool(environment, environments=1, workers=1) as pool:
        spaces = pool.facts.spaces
    warnings = check_spaces(
        describe_store(store.manifest), spaces, environment=environment.environment_id
    )
    for warning in warnings.values():
        say(console, f"warning: {warning}", style="yellow")


def compare_own_spaces(store: Store, task: int, console: Console) -> None:
    """Refuses a store whose data cannot be of the environment that the store names.

    Args:
        store: Store to train on.
        task: Task number.
        console: Console for warnings.

    Raises:
        DataFormatError: If the spaces differ, or the store has no such task.
    """
    _, description = store.task(task)
    # OGBench's own data sets are known to agree with its environments.
    if store.manifest.dataset in known_datasets() or description.recipe != "stored":
        return
    environment = TaskEnvironment(
        description.environment_id, description.environment_kwargs
    )
    # An environment that cannot be made is no reason to refuse: training needs none,
    # and its package may be missing on this machine.
    try:
        compare_spaces(store, environment, console)
    except (EvaluationError, UsageError) as error:
        say(
            console,
            f"spaces of {environment.environment_id} not compared with the data: "
            f"{error}",
        )
