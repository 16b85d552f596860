"""Every agent with scaled states is the agent without, on states scaled beforehand."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.stores import make_facts, make_table, numbers_of
from trainer.agents.base import Agent, observation_scale
from trainer.agents.registry import AGENTS
from trainer.data.horizon_windows import STATE_FIELDS

TABLE = make_table([30, 40], discount=0.9, S=4, A=2)
FACTS = make_facts(TABLE)
# Fields of all agents' batches that hold states.
STATES = {*STATE_FIELDS, "states_n"}


def make_agent(name: str, scaling: str) -> Agent:
    kind = AGENTS[name]
    several = {"n_step": 3} if name in ("fql-n", "ifql-n", "qc") else {}
    config = kind.config(
        name=name, discount=0.9, width=8, depth=1, state_scaling=scaling, **several
    )
    return kind.agent(config, FACTS)


@pytest.mark.parametrize("name", AGENTS)
def test_networks_see_scaled_states(name: str) -> None:
    raw, scaled = make_agent(name, "none"), make_agent(name, "standard")
    shift, scale = (np.asarray(x) for x in observation_scale(FACTS, "standard"))
    assert np.abs(shift).max() > 0.1 or np.abs(scale - 1).max() > 0.1
    sampler = raw.sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, 8))
    batch = sampler.gather(TABLE.observations, TABLE.actions, index)
    beforehand = batch._replace(
        **{
            field: (getattr(batch, field) - shift) / scale
            for field in STATES.intersection(batch._fields)
        }
    )
    assert STATES.intersection(batch._fields) >= {"observations"}
    key = jax.random.key(1)
    state = jax.jit(raw.init)(jax.random.key(0))
    # Policies that start near 0 see no states, and actions at a bound show none.
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape), state.params)

    def outputs(agent: Agent, params, batch) -> tuple[jax.Array, ...]:
        loss, _ = agent.total_loss(params, state.targets, batch, key)
        values = agent.action_values(params, batch, key)
        return loss, values, agent.act(params, batch.observations[0], key)

    compute = jax.jit(outputs, static_argnums=0)
    results = (
        compute(scaled, params, batch),
        compute(raw, params, beforehand),
        compute(raw, params, batch),
    )
    for got, want, unscaled in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert np.abs(unscaled - want).max() > 1e-3


def test_baselines_do_not_scale_unless_asked_to() -> None:
    for kind in AGENTS.values():
        fields = {field.name: field for field in dataclasses.fields(kind.config)}
        assert fields["state_scaling"].default == "none"
