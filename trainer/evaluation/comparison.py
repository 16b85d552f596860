"""Comparisons of stores and runs with the environment to evaluate in.

Stores are compared before training: a store of another environment would otherwise be
noticed by the first evaluation, days after training started.
"""

from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment, known_datasets
from pipeline.domains.spaces import check_spaces, check_store, describe_reach
from pipeline.output import say
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from trainer.errors import EvaluationError
from trainer.evaluation.environments import EnvironmentFacts
from trainer.evaluation.rollouts import RolloutPool
from trainer.runs.run import Run

_TIMING = {
    "pre": "by the state before a step ('pre')",
    "post": "by the state after a step ('post')",
}


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
    for warning in check_store(
        store.manifest, spaces, environment=environment.environment_id
    ):
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


def compare_run(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Refuses an environment that cannot be of a run's data.

    Args:
        run: Run to evaluate.
        spec: Environment to evaluate in.
        facts: Facts of that environment.
        console: Console for warnings: of success that is judged at another moment, and
            of actions that the policy or the environment alone reaches.

    Raises:
        DataFormatError: If the spaces differ.
    """
    _check_spaces(run, spec, facts, console)
    _warn_of_timing(run, spec, facts, console)
    reach = describe_reach(
        run.action_scale, facts.spaces.action, environment=spec.environment_id
    )
    if reach:
        say(console, f"warning: {reach}", style="yellow")


def _check_spaces(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Refuses an environment whose spaces differ from those of the data."""
    # Sizes are compared apart, since runs of earlier versions have no `spaces`.
    sizes = {"observation": run.facts.observation_dim, "action": run.facts.action_dim}
    for name, trained_size in sizes.items():
        size = getattr(facts.spaces, name).size
        if trained_size != size:
            raise DataFormatError(
                f"{spec.environment_id}: expected {name}s of {trained_size} numbers, "
                f"as in the data of {run.dataset}, got {size}; name the environment "
                "that the data are of with --environment, or install the version of "
                "ogbench that made them"
            )
    if run.spaces is not None:
        warnings = check_spaces(
            run.spaces, facts.spaces, environment=spec.environment_id
        )
        # `describe_reach` tells of actions, by the policy's own bounds.
        if "observation" in warnings:
            say(console, f"warning: {warnings['observation']}", style="yellow")


def _warn_of_timing(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Warns if success is judged at another moment than in the data."""
    # A matter of OGBench's version: 1.2 judges the state before a step by default,
    # earlier versions judged the one after it.
    if facts.success_timing != run.task.success_timing:
        say(
            console,
            f"warning: {spec.environment_id} judges success "
            f"{_TIMING[facts.success_timing]}, and the rewards trained on are labelled "
            f"{_TIMING[run.task.success_timing]}: lengths and returns differ by one "
            "step, and a success in the very last step may not count",
            style="yellow",
        )
