"""Sizes of the baselines, that all may train in the loop, and their network."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import references
from tests.stores import make_facts, make_table
from tests.trainer.agents import baseline_cases as cases
from trainer.agents.base import Agent
from trainer.agents.floq_config import FloqConfig
from trainer.agents.fql_config import FQLConfig
from trainer.agents.ifql_config import IFQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.agents.registry import AGENTS, make_agent
from trainer.agents.value_flows_config import ValueFlowsConfig
from trainer.data.sampling import draw_uniform_numbers
from trainer.evaluation.rollouts import AgentActor
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import init_state

CUBE_DOUBLE = dataclasses.replace(cases.FACTS, observation_dim=37, action_dim=5)


SMALL: dict[str, Any] = {"discount": 0.9, "width": 4, "depth": 2}


SMALL_CONFIGS = {
    "iql": IQLConfig(**SMALL),
    "fql": FQLConfig(**SMALL),
    "fql-n": FQLConfig(name="fql-n", n_step=3, **SMALL),
    "ifql": IFQLConfig(**SMALL),
    "ifql-n": IFQLConfig(name="ifql-n", n_step=3, **SMALL),
    "qc": QCConfig(n_step=3, **SMALL),
    "value-flows": ValueFlowsConfig(**SMALL),
    "floq": FloqConfig(**SMALL),
}


def count(config: Any) -> int:
    """Scalars of all networks and targets on cube-double-play."""
    agent = make_agent(config, CUBE_DOUBLE)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    return references.count_parameters(state.params) + references.count_parameters(
        state.targets
    )


def layers(inputs: int, outputs: int, *, depth: int, norm: bool) -> int:
    """Scalars of one network of width 512."""
    hidden = (inputs + 1) * 512 + (depth - 1) * 513 * 512
    return hidden + (2 * 512 * depth if norm else 0) + 513 * outputs


def test_parameter_counts() -> None:
    S, A = 37, 5
    critic = layers(S + A, 1, depth=4, norm=True)
    behaviour = layers(S + A + 1, A, depth=4, norm=False)
    one_step = layers(S + A, A, depth=4, norm=False)
    # Published tables give these in thousands: FQL 4,884, QC 4,133, Value Flows 4,896,
    # floq 4,508 with a field of two layers and 6,618 with one of four.
    assert count(FQLConfig()) == 4 * critic + behaviour + one_step == 4_883_982
    chunk = 5 * A
    assert count(QCConfig()) == 4_132_893
    assert count(QCConfig()) == 4 * layers(S + chunk, 1, depth=4, norm=True) + layers(
        S + chunk + 1, chunk, depth=4, norm=False
    )
    field = layers(1 + 1 + S + A, 1, depth=4, norm=True)
    with_norm = layers(S + A + 1, A, depth=4, norm=True)
    acting = layers(S + A, A, depth=4, norm=True)
    assert count(ValueFlowsConfig()) == 4 * field + with_norm + acting == 4_896_270
    assert count(ValueFlowsConfig(distill=False)) == 4_896_270 - acting
    for depth, expected in ((2, 4_508_176), (4, 6_617_616)):
        flow_critic = layers(S + A + 50 + 1, 1, depth=depth, norm=True)
        assert count(FloqConfig(critic_depth=depth)) == expected
        assert expected == 4 * flow_critic + 2 * critic + behaviour + one_step
    value = layers(S, 1, depth=4, norm=True)
    assert count(IFQLConfig()) == value + 4 * critic + behaviour
    actor = layers(S, A, depth=4, norm=False)
    assert count(IQLConfig()) == value + 4 * critic + actor
    # Several steps change no network.
    assert count(FQLConfig(name="fql-n", n_step=5)) == count(FQLConfig())


def test_every_agent_is_named_and_small_settings_fit() -> None:
    assert set(SMALL_CONFIGS) | {"vast"} == set(AGENTS)
    for name, config in SMALL_CONFIGS.items():
        assert isinstance(config, AGENTS[name].config)
        agent = make_agent(config, cases.FACTS)
        assert hash(agent) == hash(make_agent(config, cases.FACTS))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        action = jax.eval_shape(
            agent.act, state.params, jnp.zeros(4), jax.random.key(0)
        )
        assert action.shape == (agent.chunk, 2)
        assert agent.chunk == (3 if name == "qc" else 1)
        # All states are traced with the shapes and types they keep over updates.
        batch = cases.make_batch(agent)
        _, metrics = jax.eval_shape(
            agent.total_loss, state.params, state.targets, batch, jax.random.key(0)
        )
        for figure in jax.tree.leaves(metrics):
            assert (figure.shape, figure.dtype) == ((), jnp.float32)


def train(agent: Agent, *, updates: int = 2, seeds: tuple[int, ...] = (0, 1)) -> Any:
    """A call of the training loop, for all seeds side by side."""
    mesh = make_mesh(
        MeshConfig(),
        seeds=len(seeds),
        batch_size=8,
        devices=jax.devices()[:1],
    )
    table = cases.TABLE
    numbers = draw_uniform_numbers(
        table, agent.sampler, seeds=seeds, steps=range(updates), batch_size=8
    )
    batches = agent.sampler.draw(table, numbers)
    call = make_train_call(agent, mesh, seeds=len(seeds))
    state = init_state(agent, mesh, seeds)
    return call(state, (table.observations, table.actions), batches)


@pytest.mark.parametrize(
    "name",
    [
        # One is enough for the fast suite: the one that acts by chunks.
        pytest.param(name, marks=[] if name == "qc" else pytest.mark.slow)
        for name in SMALL_CONFIGS
    ],
)
def test_the_loop_carries_every_agent(name: str) -> None:
    agent = make_agent(SMALL_CONFIGS[name], cases.FACTS)
    state, metrics = train(agent)
    np.testing.assert_array_equal(state.agent.step, [2, 2])
    for figure, values in metrics.mean.items():
        assert np.isfinite(values).all(), figure
    # Seeds are runs of their own.
    assert metrics.mean["loss"][0] != metrics.mean["loss"][1]
    one = jax.tree.map(lambda leaf: leaf[0], state.agent.params)
    policy = AgentActor(agent).make_policy(one, seed=0)
    actions = policy(cases.TABLE.observations[:3], np.arange(3), np.zeros(3, np.int64))
    assert actions.shape == (3, agent.chunk, 2)
    assert (np.abs(actions) <= 1).all()


def test_constants_of_the_data_reach_the_agents() -> None:
    table = make_table([30, 40], discount=0.9, S=4, A=2)
    facts = make_facts(table)
    assert (facts.reward_min, facts.reward_max) == (-1.0, 0.0)
    flows = make_agent(SMALL_CONFIGS["value-flows"], facts)
    floq = make_agent(SMALL_CONFIGS["floq"], facts)
    assert flows.bounds == pytest.approx((-10.0, 0.0))
    assert floq.noise_bounds == pytest.approx((-1.0, 0.0))
