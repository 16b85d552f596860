"""The evaluation of one run in one task, for any number of checkpoints."""

import dataclasses
import importlib.metadata
import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import jax
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
from pipeline.output import say, working
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.units import format_count
from trainer.agents.base import Agent
from trainer.agents.registry import make_agent
from trainer.cores import count_usable_cores
from trainer.errors import StorageError
from trainer.evaluation.comparison import compare_run
from trainer.evaluation.environments import Episode
from trainer.evaluation.rollouts import AgentActor, RolloutPool
from trainer.nn.networks import Params
from trainer.runs.evaluations import (
    Evaluation,
    EvaluationSettings,
    Key,
    append_evaluation,
    choose_environment,
    name_environment,
)
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder, check_writable
from trainer.runs.run import Run
from trainer.runs.success_rates import Score

_SINGLE_TASK = re.compile(r"(?<=-singletask-task)\d+(?=-)")


def find_task_environment(run: Run, task: int) -> TaskEnvironment:
    """Finds the environment of a task, which may be another than the run's own.

    A policy knows its task only by the rewards that it was trained on; it is shown no
    goal. In the environment of another task it still pursues its own, so success there
    says how often it solves the other task on its way: a control, not a test of
    generalisation.

    Args:
        run: The run.
        task: Task number, as OGBench counts.

    Returns:
        The environment of the same domain, with the other task's start and goal.

    Raises:
        DataFormatError: If the environment of the other task cannot be derived from the
            run's own.
        UsageError: If the number is below 1.
    """
    own = run.task
    kwargs = dict(own.environment_kwargs)
    if task == own.task:
        return TaskEnvironment(own.environment_id, kwargs)
    # OGBench takes 0 for the default task, which has a number of its own.
    if task < 1:
        raise UsageError(f"--tasks: expected numbers from 1, got {task}; leave it out")
    if "reward_task_id" in kwargs:
        return TaskEnvironment(own.environment_id, kwargs | {"reward_task_id": task})
    # OGBench registers a single-task environment for each task, under such a name.
    other, replaced = _SINGLE_TASK.subn(str(task), own.environment_id)
    if not replaced:
        raise DataFormatError(
            f"{own.environment_id}: expected an OGBench environment of a single task, "
            f"to derive that of task {task} from its name; evaluate this run in its "
            f"own task {own.task} only"
        )
    return TaskEnvironment(other, kwargs)


class Evaluator:
    """Evaluates a run's checkpoints in one task, and records the results.

    The evaluator is a context manager: entering it makes the environments, once for all
    checkpoints and training seeds.

    Args:
        folder: Folder of the run, RUN.
        run: The run.
        actor: Actor of the run's agent.
        task: Task number.
        settings: Settings of the evaluation.
        environment: Environment to act in; None for that of the run.
        candidates: Actions that the actor draws at a step; None if they are as many as
            in the run's configuration.
        console: Console for warnings.

    Raises:
        DataFormatError: On entering, if the environment does not fit the data.
        EvaluationError: On entering, if the environment cannot be made.
        StorageError: On entering, if results cannot be recorded in the folder.
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
        candidates: int | None = None,
        console: Console,
    ) -> None:
        self._folder = folder
        self._run = run
        self._actor = actor
        self._task = task
        self._settings = settings
        self._candidates = candidates
        self._console = console
        own = find_task_environment(run, task)
        self._spec, self._arguments = choose_environment(environment, own)
        self._pool = RolloutPool(
            self._spec,
            environments=settings.environments,
            workers=min(settings.workers or count_usable_cores(), settings.episodes),
            action_scale=run.action_scale,
        )

    def __enter__(self) -> "Evaluator":
        check_writable(self._folder.path)
        with working(self._console, f"starting {self._spec.environment_id}"):
            self._pool.__enter__()
        try:
            compare_run(self._run, self._spec, self._pool.facts, self._console)
        except BaseException:
            self._pool.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()

    def key(self, step: int, seed: int) -> Key:
        """Computes ``Evaluation.key`` of a checkpoint and training seed here."""
        return self._settings.key(
            step=step,
            seed=seed,
            task=self._task,
            environment=name_environment(self._spec.environment_id, self._arguments),
            candidates=self._candidates,
        )

    @property
    def reference_scores(self) -> tuple[float, float] | None:
        """Returns that count as a normalised score of 0 and of 100, if known."""
        # As given by the user, else as stored with the data, else as published.
        return (
            self._settings.reference_scores
            or self._run.reference_scores
            or find_reference_scores(self._run.dataset)
        )

    def evaluate(
        self, step: int, params: Params, seeds: Sequence[int], progress: Progress
    ) -> list[Evaluation]:
        """Evaluates one checkpoint; the result of each seed is recorded at once.

        Args:
            step: Step of the checkpoint.
            params: Parameters of all training seeds of the run, in order.
            seeds: Training seeds to evaluate.
            progress: Progress bars, which show the episodes played.

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
            # Seeds act one after another, so that the result of a seed does not depend
            # on which others are evaluated beside it.
            own_params = jax.tree.map(lambda leaf, index=index: leaf[index], params)
            played = self._pool.roll_out(
                self._actor.make_policy(own_params, self._settings.seed),
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
                ogbench=_find_version("ogbench"),
                mujoco=_find_version("mujoco"),
                duration_s=round(time.monotonic() - started, 3),
                reference_scores=self.reference_scores,
                environment_arguments=self._arguments,
                candidates=self._candidates,
            )
            append_evaluation(self._folder, evaluation)
            self._track(evaluation, progress.console)
            evaluations.append(evaluation)
            described = _describe_outcome(evaluation)
            say(progress.console, f"{title.format(seed)}: {described}")
        progress.remove_task(bar)
        return evaluations

    def _track(self, evaluation: Evaluation, console: Console) -> None:
        """Sends a recorded evaluation to the trackers of the run's training."""
        tracking = self._run.config.tracking
        # Trackers are imported here, because few commands need them.
        if tracking.tensorboard:
            from trainer.tracking.tensorboard import write_evaluations

            write_evaluations(self._folder, self._run)
        if tracking.wandb != "off":
            from trainer.tracking.weights_and_biases import send_evaluation

            try:
                send_evaluation(self._folder, self._run, evaluation)
            except (MissingPackageError, StorageError) as error:
                # Only a warning: the evaluation took minutes to play and is recorded.
                say(
                    console,
                    f"warning: an evaluation is in {EVALUATIONS_FILE} alone: {error}",
                    style="yellow",
                )

    def _label(self) -> str:
        """Returns a note of what differs from the run: the task, the candidates."""
        own = self._run.task.task
        label = ""
        if self._candidates is not None:
            label += f", {format_count(self._candidates, 'candidate')}"
        if self._task != own:
            label += f", task {self._task} (trained for {own})"
        return label


def make_evaluators(
    folder: RunFolder,
    run: Run,
    tasks: Sequence[int],
    *,
    settings: EvaluationSettings,
    environment: TaskEnvironment | None = None,
    candidates: int | None = None,
    console: Console,
) -> list[Evaluator]:
    """Makes an evaluator for each task; none of them is entered.

    Args:
        folder: Folder of the run, RUN.
        run: The run.
        tasks: Task numbers, of which duplicates count once; none for the task that was
            trained for.
        settings: Settings of the evaluation.
        environment: Environment to act in; None for that of the run.
        candidates: Actions that are drawn at a step, of which the best is executed;
            None for as many as the run's configuration says.
        console: Console for warnings.

    Returns:
        Evaluators in the order of the tasks, which share one compiled policy.

    Raises:
        UsageError: If both tasks and an environment are given, or candidates of an
            agent that draws none.
    """
    # All are made before any is entered, so that a task that cannot be evaluated is
    # refused before another is played.
    if environment is not None and set(tasks) - {run.task.task}:
        raise UsageError(
            f"--tasks: expected none with --environment, which has task "
            f"{run.task.task} alone, got {', '.join(map(str, tasks))}; leave one out"
        )
    own_candidates = getattr(run.config.agent, "candidates", None)
    # As many as the run's own are no other conditions, and are recorded as such.
    candidates = None if candidates == own_candidates else candidates
    actor = AgentActor(_make_agent(run, candidates))
    return [
        Evaluator(
            folder,
            run,
            actor,
            task=task,
            settings=settings,
            environment=environment,
            candidates=candidates,
            console=console,
        )
        for task in dict.fromkeys(tasks or (run.task.task,))
    ]


def _make_agent(run: Run, candidates: int | None) -> Agent[Any]:
    """Builds the agent of a run, with another number of candidates if one is given."""
    if candidates is None:
        return run.agent()
    config: Any = run.config.agent  # A dataclass, whatever the agent.
    if not hasattr(config, "candidates"):
        raise UsageError(
            f"--candidates: expected none for {config.name}, which draws one action at "
            f"a step, got {candidates}; leave the option out"
        )
    return make_agent(dataclasses.replace(config, candidates=candidates), run.facts)


def make_episode_bars(console: Console) -> Progress:
    """Makes the progress bars of episodes."""
    return Progress(
        TextColumn("evaluating {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Without a terminal, a line for each result shows the progress.
        disable=not console.is_terminal,
    )


def _successes(played: Sequence[Episode]) -> tuple[int, ...] | None:
    """Collects outcomes of 0 and 1; None unless every episode reported one."""
    outcomes = tuple(
        int(episode.success) for episode in played if episode.success is not None
    )
    return outcomes if len(outcomes) == len(played) else None


def _find_version(package: str) -> str:
    """Finds the version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _describe_outcome(evaluation: Evaluation) -> str:
    episodes = format_count(evaluation.episodes, "episode")
    if evaluation.successes is not None:
        return f"{Score.of(evaluation.successes)} of {episodes}; {evaluation.score}"
    return (
        f"{evaluation.score}, {evaluation.mean_length:.0f} steps on average of "
        f"{episodes}; success not reported"
    )
