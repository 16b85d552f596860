"""Evaluates the checkpoints of a run in the environment of its task.

Composition only: which checkpoints, which seeds, what is shown and what is recorded.
"""

import contextlib
import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pipeline.store.errors import DataFormatError
from trainer.checkpoints import Checkpoints
from trainer.evaluation.environments import EnvironmentFacts, EnvironmentSpec
from trainer.evaluation.records import Evaluation, append_evaluation
from trainer.evaluation.rollouts import (
    DEFAULT_ENVIRONMENTS,
    AgentActor,
    RolloutPool,
    usable_cores,
)
from trainer.evaluation.summary import Score
from trainer.run import Run, read_run

Steps = Sequence[int] | Literal["latest", "all"]


def evaluate_run(
    folder: Path,
    *,
    episodes: int,
    steps: Steps = "latest",
    evaluation_seed: int = 0,
    environments: int = DEFAULT_ENVIRONMENTS,
    workers: int | None = None,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates checkpoints of a run, all of its training seeds.

    Each result is added to ``RUN/evaluations.jsonl`` as soon as it is there.

    Args:
        folder: RUN.
        episodes: Of each checkpoint and training seed; exactly these are counted.
        steps: Checkpoints: ``"latest"``, ``"all"``, or their steps.
        evaluation_seed: Fixes how every episode starts and what acting draws: the same
            for all checkpoints and training seeds, so they face equal episodes.
        environments: Acted in at once; the size of the policy's batch.
        workers: Processes; by default one for each usable core. Results do not depend
            on it.
        console: Where progress, results and warnings are shown; None shows nothing.

    Returns:
        One evaluation for each checkpoint and training seed, in that order.

    Raises:
        DataFormatError: If the folder is no run's, has no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        ValueError: If a number is out of range.
    """
    console = Console(quiet=True) if console is None else console
    run = read_run(folder)
    spec = EnvironmentSpec(run.task.environment_id, run.task.environment_kwargs)
    with contextlib.ExitStack() as stack:
        checkpoints = Checkpoints(folder)
        stack.callback(checkpoints.close)
        chosen = _choose_steps(checkpoints, steps)
        with console.status(f"starting {spec.environment_id}"):
            pool = stack.enter_context(
                RolloutPool(
                    spec,
                    environments=environments,
                    workers=min(workers or usable_cores(), max(episodes, 1)),
                )
            )
        _check_fits(run, pool.facts)
        _warn_of_timing(run, pool.facts, console)
        trainer = run.config.trainer
        seeds = range(trainer.seed, trainer.seed + trainer.seeds)
        progress = stack.enter_context(_progress(console))
        bar = progress.add_task("", total=len(chosen) * len(seeds) * episodes)
        agent = run.agent()
        actor = AgentActor(agent)
        evaluations = []
        for step in chosen:
            params = checkpoints.restore_params(step, agent, seeds=len(seeds))
            for index, seed in enumerate(seeds):
                progress.update(bar, description=f"step {step:,}, seed {seed}")
                started = time.monotonic()
                one = jax.tree.map(lambda leaf, index=index: leaf[index], params)
                played = pool.rollout(
                    actor.policy(one, evaluation_seed),
                    episodes=episodes,
                    seed=evaluation_seed,
                    on_episode=lambda _: progress.advance(bar),
                )
                evaluation = Evaluation(
                    step=step,
                    seed=seed,
                    evaluation_seed=evaluation_seed,
                    task=run.task.task,
                    environment_id=spec.environment_id,
                    episodes=episodes,
                    successes=tuple(int(episode.success) for episode in played),
                    returns=tuple(episode.total_reward for episode in played),
                    lengths=tuple(episode.length for episode in played),
                    success_timing=pool.facts.success_timing,
                    store_success_timing=run.task.success_timing,
                    environments=environments,
                    ogbench=importlib.metadata.version("ogbench"),
                    mujoco=importlib.metadata.version("mujoco"),
                    duration_s=round(time.monotonic() - started, 3),
                )
                append_evaluation(folder, evaluation)
                evaluations.append(evaluation)
                score = Score.of(evaluation.successes)
                progress.console.print(
                    f"step {step:,}, seed {seed}: {score} of {episodes} episodes"
                )
    return evaluations


def _choose_steps(checkpoints: Checkpoints, steps: Steps) -> list[int]:
    """The checkpoints asked for, ascending, all of them there."""
    available = checkpoints.steps()
    if not available:
        raise DataFormatError(
            f"{checkpoints.folder}: expected a finished checkpoint, found none; wait "
            "for the first one, or set a smaller trainer.checkpoint_every"
        )
    if steps == "latest":
        return available[-1:]
    if steps == "all":
        return available
    chosen = sorted({int(step) for step in steps})
    missing = [step for step in chosen if step not in available]
    if missing or not chosen:
        raise DataFormatError(
            f"{checkpoints.folder}: expected steps of {available}, got "
            f"{missing or 'none'}; choose among those"
        )
    return chosen


def _check_fits(run: Run, facts: EnvironmentFacts) -> None:
    """Refuses an environment of another shape than the data's."""
    for name in ("observation_dim", "action_dim"):
        trained, there = getattr(run.facts, name), getattr(facts, name)
        if trained != there:
            raise DataFormatError(
                f"{run.task.environment_id}: expected {name} {trained}, as in the data "
                f"of {run.dataset}, got {there}; the store was made for another "
                "environment, or by another version of ogbench"
            )


def _warn_of_timing(run: Run, facts: EnvironmentFacts, console: Console) -> None:
    """Says in one line if success is judged at another moment than in the data."""
    if facts.success_timing != run.task.success_timing:
        console.print(
            f"warning: {run.task.environment_id} judges success "
            f"{_TIMING[facts.success_timing]}, and the rewards trained on are labelled "
            f"{_TIMING[run.task.success_timing]}: lengths and returns differ by one "
            "step, a success in the very last one may not count",
            style="yellow",
            soft_wrap=True,
        )


_TIMING = {
    "pre": "by the state before a step ('pre')",
    "post": "by the state after a step ('post')",
}


def _progress(console: Console) -> Progress:
    """A bar of episodes."""
    return Progress(
        TextColumn("evaluating {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
