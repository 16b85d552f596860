"""Whether the environment to evaluate in agrees with a store, before training.

Composition only: environments are made in a process of their own.
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
    """Refuses data that are not of an environment.

    Args:
        store: To train on.
        environment: To evaluate in.
        console: For what looks wrong and a person should judge.

    Raises:
        DataFormatError: If they cannot be of it, see ``check_spaces``.
        EvaluationError: If the environment fails.
        UsageError: If there is no such environment.
    """
    # A simulator has no place in the process that has the devices.
    with RolloutPool(environment, environments=1, workers=1) as pool:
        there = pool.facts.spaces
    warnings = check_spaces(
        describe_store(store.manifest), there, environment=environment.environment_id
    )
    for warning in warnings.values():
        say(console, f"warning: {warning}", style="yellow")


def compare_own_spaces(store: Store, task: int, console: Console) -> None:
    """Refuses data that are not of the environment that their store names.

    What OGBench publishes is known to be. An environment that cannot be made is passed
    over with a word: training needs none.

    Args:
        store: To train on.
        task: Task number.
        console: For that word, and for what looks wrong.

    Raises:
        DataFormatError: If they cannot be of it, or the store has no such task.
    """
    _, description = store.task(task)
    if store.manifest.dataset in known_datasets() or description.recipe != "stored":
        return
    environment = TaskEnvironment(
        description.environment_id, description.environment_kwargs
    )
    try:
        compare_spaces(store, environment, console)
    except (EvaluationError, UsageError) as error:
        say(
            console,
            f"spaces of {environment.environment_id} not compared with the data: "
            f"{error}",
        )
