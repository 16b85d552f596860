"""Where acting loses success: ``python -m tests.benchmarks.acting RUN --fql RUN``.

VAST draws a sub-goal, then actions towards it, and executes the best by Q. Every row of
the table changes where the actions come from or which critics choose, for the same
trained networks and the same start states. The first run is one of VAST; a run of FQL
on the same data lends its critics and the flow that clones recorded actions.

If other critics choose as well among VAST's actions, Q is not what limits success. If
the cloned flow offers better actions to the same Q, the sub-goals are.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from trainer.agents.base import Agent, scale_states
from trainer.agents.fql import FQL
from trainer.agents.parts.flow_policies import FlowPolicy
from trainer.agents.vast import VAST
from trainer.agents.vast_networks import VASTNetworks
from trainer.evaluation.comparison import compare_run
from trainer.evaluation.evaluator import find_task_environment
from trainer.evaluation.rollouts import AgentActor, RolloutPool
from trainer.nn import losses, networks
from trainer.nn.networks import Params
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, read_run
from trainer.runs.success_rates import Score

Source = Literal["sub-goal", "sub-goals", "best sub-goal", "cloned"]
Critic = Literal["vast", "fql"]
AgentT = TypeVar("AgentT", VAST, FQL)
# Rows of the table: source of the actions, their number (None for the run's), critics.
ROWS: tuple[tuple[Source, int | None, Critic], ...] = (
    ("sub-goal", None, "vast"),
    ("sub-goals", None, "vast"),
    ("best sub-goal", None, "vast"),
    ("sub-goal", None, "fql"),
    ("sub-goals", None, "fql"),
    ("sub-goal", 16, "vast"),
    ("sub-goal", 16, "fql"),
    ("cloned", 1, "fql"),
    ("cloned", 16, "vast"),
    ("cloned", 16, "fql"),
)
SOURCES = {
    "sub-goal": "{} towards one sub-goal",
    "sub-goals": "{}, each towards a sub-goal of its own",
    "best sub-goal": "{} towards the best of 16 sub-goals",
    "cloned": "{} of the flow that clones recorded actions",
}
SUBGOALS = 16  # Sub-goals of which the best is pursued.


@dataclass(frozen=True)
class Rule:
    """A rule of acting, which is all that an evaluation needs of an agent.

    Attributes:
        vast: Agent whose sub-goals and critics act.
        fql: Agent that lends its critics and its cloned flow.
        source: Where the actions come from.
        count: Number of actions that are drawn at a step.
        critic: Critics by which the best action is chosen.
    """

    vast: VAST
    fql: FQL
    source: Source
    count: int
    critic: Critic

    chunk: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, str]:
        """Names of the actions and of the critics, for people."""
        return SOURCES[self.source].format(self.count), f"Q of {self.critic.upper()}"

    def act(
        self, params: dict[Critic, Params], observation: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Draws actions and takes the best: ``f32[S]`` to ``f32[1, A]``."""
        goal_key, action_key = jax.random.split(key)
        observations = jnp.repeat(observation[None], self.count, axis=0)
        if self.source == "cloned":
            net = self.fql.network(self.fql.facts.action_dim, layer_norm=False)
            _, actions = FlowPolicy(net, self.fql.config.flow_steps).candidates(
                params["fql"],
                self.fql.scale_states(observation)[None],
                action_key,
                count=self.count,
            )
        else:
            states = self._scale(observations)
            goals = self._draw_goals(params["vast"], states[:1], goal_key)
            actions = self.vast.sample_exec(params["vast"], states, goals, action_key)
        scores = self._score(params, observations, actions)
        return actions[scores.argmax()][None]

    def _draw_goals(
        self, params: Params, state: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Draws a scaled sub-goal for each action: ``f32[1, S]`` to ``f32[N, S]``."""
        drawn = {"sub-goal": 1, "sub-goals": self.count, "best sub-goal": SUBGOALS}
        states = jnp.repeat(state, drawn[self.source], axis=0)
        horizons, goals = self.vast.sample_stitch(params, states, key)
        if self.source == "best sub-goal":
            c = self.vast.config
            nets = VASTNetworks(c, self.vast.facts)
            values = nets.segment(params, states, goals, horizons)
            values += c.discount**horizons * nets.value(params, goals)
            goals = goals[values.argmax()][None]
        return jnp.broadcast_to(goals, (self.count, goals.shape[-1]))

    def _score(
        self, params: dict[Critic, Params], observations: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Computes the chosen critics' values of actions: ``f32[N]``."""
        if self.critic == "vast":
            return self.vast.critic(params["vast"], observations, actions)
        values = networks.apply_ensemble(
            self.fql.network(1, layer_norm=True),
            params["fql"]["critic"],
            self.fql.scale_states(observations),
            actions,
        )
        return losses.aggregate(values, self.fql.config.aggregation)

    def _scale(self, observations: jax.Array) -> jax.Array:
        c = self.vast.config
        return scale_states(observations, self.vast.facts, c.state_scaling)


def restore_kind(path: str, kind: type[AgentT]) -> tuple[Run, AgentT, Params]:
    """Reads a run of one kind of agent, as ``restore`` does."""
    run, agent, params = restore(path)
    if not isinstance(agent, kind):
        raise SystemExit(f"{path}: expected a run of {kind.__name__}, got {agent}")
    return run, agent, params


def restore(path: str) -> tuple[Run, Agent[Any], Params]:
    """Reads a run, and the last parameters of its first seed."""
    folder = RunFolder.open(path)
    run = read_run(folder)
    agent = run.agent()
    with CheckpointReader(folder) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise SystemExit(f"{path}: expected a checkpoint, found none")
        params = checkpoints.restore_params(step, agent, seeds=run.config.trainer.seeds)
    return run, agent, jax.tree.map(lambda leaf: leaf[0], params)


def play(
    pool: RolloutPool,
    rule: Rule,
    params: dict[Critic, Params],
    episodes: int,
    seed: int,
    progress: Progress,
) -> Score:
    """Plays the episodes of one rule and counts the solved ones."""
    bar = progress.add_task(", ".join(rule.names), total=episodes)
    # A rule has the two members that an actor reads of an agent.
    actor = AgentActor(cast(Agent[Any], rule))
    played = pool.roll_out(
        actor.make_policy(params, seed),
        episodes=episodes,
        seed=seed,
        on_episode=lambda _: progress.advance(bar),
    )
    return Score.of([bool(episode.success) for episode in played])


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays every row and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a run of VAST")
    parser.add_argument("--fql", required=True, help="folder of a run of FQL")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the start states")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    run, vast, vast_params = restore_kind(given.run, VAST)
    fql_run, fql, fql_params = restore_kind(given.fql, FQL)
    params = {"vast": vast_params, "fql": fql_params}
    spec = find_task_environment(run, run.task.task)
    table = Table("actions", "chosen by", "solved", "95 % interval", title=given.run)
    with (
        Progress() as progress,
        RolloutPool(spec, workers=given.workers, action_scale=run.action_scale) as pool,
    ):
        for each in (run, fql_run):
            compare_run(each, spec, pool.facts, progress.console)
        for source, count, critic in ROWS:
            count = count or vast.config.candidates
            rule = Rule(vast, fql, source, count, critic)
            score = play(pool, rule, params, given.episodes, given.seed, progress)
            low, high = score.interval
            row = (*rule.names, f"{score.successes} of {score.episodes}")
            table.add_row(*row, f"{low:.0%} to {high:.0%}")
            progress.console.print(*row, sep="; ")
    Console().print(table)


if __name__ == "__main__":
    main()
