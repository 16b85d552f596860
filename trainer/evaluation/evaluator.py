"""One run in the environment of one task, kept for any number of its checkpoints."""

import importlib.metadata
import re
import time
from collections.abc import Sequence
from types import TracebackType

import jax
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.reference_scores import find_reference_scores
from pipeline.domains.spaces import check_spaces
from pipeline.output import say, working
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from trainer.errors import StorageError
from trainer.evaluation.environments import EnvironmentFacts, Episode
from trainer.evaluation.rollouts import AgentActor, RolloutPool, usable_cores
from trainer.nn.networks import Params
from trainer.runs.evaluations import (
    Evaluation,
    EvaluationSettings,
    Key,
    append_evaluation,
    find_own_arguments,
    name_environment,
)
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.run import Run
from trainer.runs.success_rates import Score

# Share of the bounds that those of a policy may differ by without a word.
_BOUNDS_SLACK = 0.05
_SINGLE_TASK = re.compile(r"(?<=-singletask-task)\d+(?=-)")


def task_environment(run: Run, task: int) -> TaskEnvironment:
    """The environment of a task, which need not be the one a run is trained for.

    A policy here knows its task by the rewards it was trained on and is shown no goal.
    In the environment of another task it still does what pays in its own, so its
    successes there say how often the one task is solved on the way to the other: a
    control, not a test of generalisation.

    Args:
        run: The run.
        task: Task number, as OGBench counts.

    Returns:
        The environment; of the same domain, with the other task's start and goal.

    Raises:
        DataFormatError: If that environment cannot be told from the run's own.
    """
    own = run.task
    kwargs = dict(own.environment_kwargs)
    if task == own.task:
        return TaskEnvironment(own.environment_id, kwargs)
    if "reward_task_id" in kwargs:
        return TaskEnvironment(own.environment_id, kwargs | {"reward_task_id": task})
    other, found = _SINGLE_TASK.subn(str(task), own.environment_id)
    if not found:
        raise DataFormatError(
            f"{own.environment_id}: expected an environment of a single-task domain, "
            f"to find task {task} beside it; this run can be evaluated in its own task "
            f"{own.task} only"
        )
    return TaskEnvironment(other, kwargs)


class Evaluator:
    """Plays a run's checkpoints in one task and records what came of it.

    A context manager: the environments are made on entering, once for all checkpoints
    and training seeds.

    Args:
        folder: RUN.
        run: What it is.
        actor: Of the run's agent.
        task: Task number.
        settings: How checkpoints are evaluated.
        environment: To act in, where that is not what the run says.
        console: For warnings.

    Raises:
        DataFormatError: On entering, if the environment does not fit the data.
        EvaluationError: On entering, if it cannot be made.
        UsageError: If a number is out of range.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: Run,
        actor: AgentActor,
        *,
        task: int,
        settings: EvaluationSettings,
        environment: TaskEnvironment | None = None,
        console: Console,
    ) -> None:
        self._folder = folder
        self._run = run
        self._actor = actor
        self._task = task
        self._settings = settings
        self._console = console
        own = task_environment(run, task)
        self._spec = environment or own
        self._arguments = find_own_arguments(environment, own.kwargs)
        self._pool = RolloutPool(
            self._spec,
            environments=settings.environments,
            workers=min(settings.workers or usable_cores(), settings.episodes),
            action_scale=run.action_scale,
        )

    def __enter__(self) -> "Evaluator":
        with working(self._console, f"starting {self._spec.environment_id}"):
            self._pool.__enter__()
        try:
            _check_fits(self._run, self._spec, self._pool.facts, self._console)
        except BaseException:
            self._pool.close()
            raise
        _warn_of_timing(self._run, self._spec, self._pool.facts, self._console)
        _warn_of_bounds(self._run, self._spec, self._pool.facts, self._console)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()

    def key(self, step: int, seed: int) -> Key:
        """The ``Evaluation.key`` of a checkpoint and training seed here."""
        return self._settings.key(
            step=step,
            seed=seed,
            task=self._task,
            environment=name_environment(self._spec.environment_id, self._arguments),
        )

    @property
    def reference_scores(self) -> tuple[float, float] | None:
        """Returns that count as 0 and as 100: as given, as stored, or as published."""
        return (
            self._settings.reference_scores
            or self._run.reference_scores
            or find_reference_scores(self._run.dataset)
        )

    def evaluate(
        self, step: int, params: Params, seeds: Sequence[int], progress: Progress
    ) -> list[Evaluation]:
        """Plays one checkpoint; each result is recorded and shown when it is there.

        Args:
            step: Of the checkpoint.
            params: Of all training seeds of the run, in order.
            seeds: Training seeds to play.
            progress: Whose bars show the episodes played.

        Returns:
            One evaluation for each seed.

        Raises:
            EvaluationError: If the environment or its process fails.
            UsageError: If a number is out of range.
        """
        title = f"step {step:,}, seed {{}}{self._label()}"
        bar = progress.add_task("", total=len(seeds) * self._settings.episodes)
        evaluations = []
        for seed in seeds:
            progress.update(bar, description=title.format(seed))
            started = time.monotonic()
            index = seed - self._run.config.trainer.seed
            one = jax.tree.map(lambda leaf, index=index: leaf[index], params)
            played = self._pool.rollout(
                self._actor.policy(one, self._settings.seed),
                episodes=self._settings.episodes,
                seed=self._settings.seed,
                on_episode=lambda _: progress.advance(bar),
            )
            evaluation = Evaluation(
                step=step,
                seed=seed,
                evaluation_seed=self._settings.seed,
                task=self._task,
                environment_id=self._spec.environment_id,
                episodes=self._settings.episodes,
                successes=_successes(played),
                returns=tuple(episode.total_reward for episode in played),
                lengths=tuple(episode.length for episode in played),
                success_timing=self._pool.facts.success_timing,
                store_success_timing=self._run.task.success_timing,
                environments=self._pool.environments,
                ogbench=_version("ogbench"),
                mujoco=_version("mujoco"),
                duration_s=round(time.monotonic() - started, 3),
                reference_scores=self.reference_scores,
                environment_arguments=self._arguments,
            )
            append_evaluation(self._folder, evaluation)
            self._track(evaluation, progress.console)
            evaluations.append(evaluation)
            say(progress.console, f"{title.format(seed)}: {_outcome(evaluation)}")
        progress.remove_task(bar)
        return evaluations

    def _track(self, evaluation: Evaluation, console: Console) -> None:
        """Shows a recorded evaluation where the figures of training are shown."""
        tracking = self._run.config.tracking
        if tracking.tensorboard:
            from trainer.tracking.tensorboard import write_evaluations

            write_evaluations(self._folder, self._run)
        if tracking.wandb != "off":
            from trainer.tracking.weights_and_biases import send_evaluation

            try:
                send_evaluation(self._folder, self._run, evaluation)
            except (MissingPackageError, StorageError) as error:
                # It took minutes to play, and its own file has it.
                say(
                    console,
                    f"warning: an evaluation is in {EVALUATIONS_FILE} alone: {error}",
                    style="yellow",
                )

    def _label(self) -> str:
        """Says so where the task is not the one trained for."""
        own = self._run.task.task
        return "" if self._task == own else f", task {self._task} (trained for {own})"


def make_evaluators(
    folder: RunFolder,
    run: Run,
    tasks: Sequence[int],
    *,
    settings: EvaluationSettings,
    environment: TaskEnvironment | None = None,
    console: Console,
) -> list[Evaluator]:
    """An evaluator for each task, by default the one trained for; none is entered.

    Args:
        folder: RUN.
        run: What it is.
        tasks: Task numbers; one that comes twice counts once.
        settings: How checkpoints are evaluated.
        environment: To act in, where that is not what the run says.
        console: For warnings.

    Returns:
        Evaluators in the order of the tasks, of one compiled policy.

    Raises:
        UsageError: If both tasks and an environment are given.
    """
    if environment is not None and set(tasks) - {run.task.task}:
        raise UsageError(
            f"--tasks: expected none with an environment of your own, which has task "
            f"{run.task.task} alone, got {', '.join(map(str, tasks))}"
        )
    actor = AgentActor(run.agent())
    return [
        Evaluator(
            folder,
            run,
            actor,
            task=task,
            settings=settings,
            environment=environment,
            console=console,
        )
        for task in dict.fromkeys(tasks or (run.task.task,))
    ]


def episode_bars(console: Console) -> Progress:
    """Bars of episodes."""
    return Progress(
        TextColumn("evaluating {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Without a terminal the lines of the results are the progress.
        disable=not console.is_terminal,
    )


def _check_fits(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Refuses an environment of other spaces than the data's."""
    sizes = {"observation": run.facts.observation_dim, "action": run.facts.action_dim}
    for name, trained in sizes.items():
        there = getattr(facts.spaces, name).size
        if trained != there:
            raise DataFormatError(
                f"{spec.environment_id}: expected {name}s of {trained} numbers, as in "
                f"the data of {run.dataset}, got {there}; the store was made for "
                "another environment, or by another version of ogbench"
            )
    if run.spaces is not None:
        warnings = check_spaces(
            run.spaces, facts.spaces, environment=spec.environment_id
        )
        if "observation" in warnings:  # Of actions policies have a word of their own.
            say(console, f"warning: {warnings['observation']}", style="yellow")


def _successes(played: Sequence[Episode]) -> tuple[int, ...] | None:
    """Outcomes of 0 and 1; None unless every episode has one."""
    told = tuple(int(each.success) for each in played if each.success is not None)
    return told if len(told) == len(played) else None


def _version(package: str) -> str:
    """Its version, empty where it is not installed: not every environment needs it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _outcome(evaluation: Evaluation) -> str:
    if evaluation.successes is not None:
        return (
            f"{Score.of(evaluation.successes)} of {evaluation.episodes} episodes; "
            f"{evaluation.score}"
        )
    return (
        f"{evaluation.score}, {evaluation.mean_length:.0f} steps on average of "
        f"{evaluation.episodes} episodes; success not reported"
    )


def _warn_of_bounds(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Says in one line if policies reach other actions than the environment takes."""
    ones = np.ones(facts.spaces.action.size)
    scale = run.action_scale
    low, high = (-ones, ones) if scale is None else (scale.low, scale.high)
    low, high = np.asarray(low), np.asarray(high)
    taken = facts.spaces.action
    there = np.asarray(taken.low), np.asarray(taken.high)
    slack = _BOUNDS_SLACK * (high - low)
    # Bounds read off data stay a little within the environment's own.
    clipped = (low < there[0] - slack) | (high > there[1] + slack)
    short = np.isfinite(there[1] - there[0]) & (
        high - low < (1 - _BOUNDS_SLACK) * (there[1] - there[0])
    )
    if (clipped | short).any():
        at = int((clipped | short).argmax())
        say(
            console,
            f"warning: {spec.environment_id} takes actions[{at}] from "
            f"{there[0][at]:g} to {there[1][at]:g}, and policies of this run act from "
            f"{low[at]:g} to {high[at]:g}: "
            + ("what is outside is clipped" if clipped[at] else "they reach no others")
            + "; if the data were recorded so all is well, else shard them again with "
            f"--action-bounds {there[0][at]:g} {there[1][at]:g}",
            style="yellow",
        )


def _warn_of_timing(
    run: Run, spec: TaskEnvironment, facts: EnvironmentFacts, console: Console
) -> None:
    """Says in one line if success is judged at another moment than in the data."""
    if facts.success_timing != run.task.success_timing:
        say(
            console,
            f"warning: {spec.environment_id} judges success "
            f"{_TIMING[facts.success_timing]}, and the rewards trained on are labelled "
            f"{_TIMING[run.task.success_timing]}: lengths and returns differ by one "
            "step, a success in the very last one may not count",
            style="yellow",
        )


_TIMING = {
    "pre": "by the state before a step ('pre')",
    "post": "by the state after a step ('post')",
}
