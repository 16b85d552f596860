"""The moving average of parameters: what it is, and where it lies on a mesh."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stores import make_facts, make_table
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.data.feed import BatchSource, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import TrainState, init_state
from trainer.step.update import average_rate

TABLE = make_table([60, 70], S=4, A=2)
FACTS = make_facts(TABLE)
CONFIG = VASTConfig(width=8, depth=2, flow_steps=2, learning_rate=1e-2, ema_decay=0.5)
STEPS, BATCH = 12, 16


def train(mesh: MeshConfig, **changes: Any) -> list[TrainState]:
    """States before the first update and after each one, of one seed."""
    agent = VAST(dataclasses.replace(CONFIG, **changes), FACTS)
    count = mesh.seed * mesh.data * mesh.fsdp * mesh.tensor
    devices = make_mesh(mesh, seeds=1, batch_size=BATCH, devices=jax.devices()[:count])
    source = BatchSource(
        TABLE, agent.sampler, seeds=(0,), batch_size=BATCH, steps=STEPS, gather=True
    )
    call = make_train_call(agent, devices, seeds=1)
    state = init_state(agent, devices, (0,))
    states = [jax.tree.map(jnp.copy, state)]
    for batches in make_feed(source, FeedConfig(), updates_per_call=1):
        state, _ = call(state, None, batches)
        states.append(jax.tree.map(jnp.copy, state))
    return states


@pytest.fixture(scope="module")
def states() -> list[TrainState]:
    return train(MeshConfig(data=1))


def test_it_is_the_average_of_what_was_trained(states: list[TrainState]) -> None:
    # After n updates (1 + n) / (10 + n) of the average is kept: 0.1 of the first
    # parameters, and 0.5 from the ninth update on.
    kept = [
        0.1,
        2 / 11,
        3 / 12,
        4 / 13,
        5 / 14,
        6 / 15,
        7 / 16,
        8 / 17,
        0.5,
        0.5,
        0.5,
        0.5,
    ]
    expected = [np.float64(leaf) for leaf in jax.tree.leaves(states[0].agent.params)]
    for share, state in zip(kept, states[1:], strict=True):
        leaves = jax.tree.leaves(state.agent.params)
        expected = [
            share * average + (1 - share) * np.float64(leaf)
            for average, leaf in zip(expected, leaves, strict=True)
        ]
        ours = jax.tree.leaves(state.agent.average)
        for average, reference in zip(ours, expected, strict=True):
            np.testing.assert_allclose(average, reference, rtol=1e-5, atol=1e-6)
    last = jax.tree.leaves(states[-1].agent.params)
    assert max(np.abs(a - b).max() for a, b in zip(ours, last, strict=True)) > 1e-3


def test_training_does_not_notice(states: list[TrainState]) -> None:
    without = train(MeshConfig(data=1), ema_decay=0.0)[-1].agent
    assert without.average is None
    assert without.acting is without.params
    # Two programs: the compiler may round differently.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        states[-1].agent.params,
        without.params,
    )


def test_it_lies_as_the_parameters_do_on_any_mesh(states: list[TrainState]) -> None:
    agent = train(MeshConfig(data=2, fsdp=2, tensor=2))[-1].agent
    split = agent.average["value"]["hidden_1"]["kernel"].sharding
    assert not split.is_fully_replicated
    jax.tree.map(
        lambda average, param: np.testing.assert_equal(
            average.sharding, param.sharding
        ),
        agent.average,
        agent.params,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
        agent.average,
        states[-1].agent.average,
    )


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.9), (8, 0.5), (890, 0.01), (100_000, 0.001)]
)
def test_its_rate_falls_to_what_is_asked_for(step: int, rate: float) -> None:
    # Step 890: 1 - 891 / 900.
    np.testing.assert_allclose(average_rate(0.999, jnp.int32(step)), rate, rtol=1e-4)
