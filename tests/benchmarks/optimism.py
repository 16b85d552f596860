"""Values against returns: ``python -m tests.benchmarks.optimism RUN``.

The policy of a run's last checkpoint plays its task, and the values of the actions that
it takes are compared with the discounted returns that it then collects. Rows group
steps by their reward, which in the manipulation tasks tells how much is left to do.

Of an episode that is not solved, the last reward is repeated for ever. It might have
been solved later, so what is collected is then a lower bound. Agents that choose
several actions at once are not measured.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.benchmarks.acting import restore
from trainer.agents.base import Agent
from trainer.data.nstep_windows import NStepBatch
from trainer.evaluation.environments import make_task_environment
from trainer.evaluation.evaluator import find_task_environment
from trainer.evaluation.rollouts import make_acting_key
from trainer.nn.networks import Params

# (observation f32[S], key) -> (action f32[A], value f32[])
Choice = Callable[..., tuple[jax.Array, jax.Array]]


def play(
    choose: Choice, environment: Any, seed: int, discount: float
) -> tuple[list[float], list[float], list[float], bool]:
    """Plays an episode: rewards, values and returns by step, and whether solved."""
    observation, info = environment.reset(seed=seed)
    rewards: list[float] = []
    values: list[float] = []
    ended = False
    while not ended:
        key = make_acting_key(np.uint32(seed), np.uint32(0), np.uint32(len(rewards)))
        action, value = choose(observation.astype(np.float32), key)
        observation, reward, terminated, truncated, info = environment.step(
            np.asarray(action)
        )
        rewards.append(float(reward))
        values.append(float(value))
        ended = terminated or truncated or bool(info["success"])
    solved = bool(info["success"])
    following = 0.0 if solved else rewards[-1] / (1 - discount)
    returns = []
    for reward in reversed(rewards):
        following = reward + discount * following
        returns.append(following)
    return rewards, values, returns[::-1], solved


def make_choice(agent: Agent[Any], params: Params) -> Choice:
    """Compiles the choice of an action, with the value that the critics give it."""

    @jax.jit
    def choose(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        (action,) = agent.act(params, state, key)
        zeros = jnp.zeros(1)
        # As if the action were recorded; nothing else is read of a batch.
        batch = NStepBatch(
            observations=state[None],
            actions=action[None],
            chunks=action[None, None],
            states_n=state[None],
            returns_n=zeros,
            bootstraps=zeros,
            steps=zeros,
            valid=zeros,
            valid_actions=zeros[:, None],
        )
        return action, agent.action_values(params, batch, key)[0]

    return choose


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays the episodes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("--episodes", type=int, default=20)
    given = parser.parse_args(arguments)
    run, agent, params = restore(given.run)
    if agent.chunk != 1 or run.action_scale is not None:
        raise SystemExit(f"{given.run}: expected one action at a time, in [-1, 1]")
    environment = make_task_environment(find_task_environment(run, run.task.task))
    choose = make_choice(agent, params)
    discount, solved = run.config.agent.discount, 0
    groups: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for episode in track(range(given.episodes), description="episodes"):
        rewards, values, returns, success = play(choose, environment, episode, discount)
        solved += success
        for reward, value, collected in zip(rewards, values, returns, strict=True):
            groups[reward].append((value, collected))
    table = Table("reward", "steps", "value", "collected", title=given.run)
    for reward, pairs in sorted(groups.items()):
        value, collected = np.mean(pairs, axis=0)
        table.add_row(
            f"{reward:g}", f"{len(pairs):,}", f"{value:.1f}", f"{collected:.1f}"
        )
    console = Console()
    console.print(table)
    console.print(f"{solved} of {given.episodes} episodes solved")


if __name__ == "__main__":
    main()
