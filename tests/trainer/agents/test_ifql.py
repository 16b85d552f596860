"""IFQL's and IFQL-n's losses against NumPy, and how they act."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.ifql import IFQL
from trainer.agents.ifql_config import IFQLConfig

TRAINS = {"value_loss": "value", "critic_loss": "critic", "flow_loss": "flow"}


def make_agent(**changes) -> IFQL:
    settings = {**TINY, "candidates": 5, "flow_steps": 3, **changes}
    return IFQL(IFQLConfig(**settings), FACTS)


def make_n_step_agent(**changes) -> IFQL:
    return make_agent(name="ifql-n", n_step=3, **changes)


def reference(params, targets, batch, key) -> Losses:
    value = critic = 0.0
    actions = cases.clipped(batch.actions)
    for n in range(cases.SIZE):
        row = slice(n, n + 1)
        s, a = batch.observations[row], actions[row]
        v = cases.mlp(params["value"], s)[0, 0]
        u = min(q[0] for q in cases.twins(targets["critic"], s, a)) - v
        value += (0.1 if u < 0 else 0.9) * u**2 / cases.SIZE
        following = cases.mlp(params["value"], batch.states_n[row])[0, 0]
        target = batch.returns_n[n] + batch.bootstraps[n] * following
        if batch.valid[n]:
            new = [q[0] for q in cases.twins(params["critic"], s, a)]
            critic += sum((q - target) ** 2 for q in new) / cases.SIZE
    errors = cases.matching_errors(params["flow"], batch.observations, actions, key)
    return {"value_loss": value, "critic_loss": critic, "flow_loss": errors.mean()}


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_n_step_agent())
        assert 0 < case.batch.valid.sum() < cases.SIZE
        cases.check_update(case, reference, TRAINS, target="critic")


def test_act_takes_the_best_candidate_by_the_smaller_critic() -> None:
    agent = make_agent(candidates=16)
    cases.check_first_state(agent, target="critic")
    params = cases.make_case(agent).params
    numeric = jax.tree.map(np.asarray, params)
    act = jax.jit(agent.act)
    telling = 0
    for n in range(8):
        key, state = jax.random.key(n), TABLE.observations[n]
        action = act(params, jnp.asarray(state), key)
        assert action.shape == (1, 2)
        noise = np.asarray(jax.random.normal(key, (16, 2)))
        states = np.tile(state, (16, 1))
        drawn = cases.flow_actions(numeric["flow"], states, noise, steps=3)
        first, second = cases.twins(numeric["critic"], states, drawn)
        chosen = np.minimum(first, second).argmax()
        np.testing.assert_allclose(action[0], drawn[chosen], rtol=1e-4, atol=1e-5)
        telling += chosen != (first + second).argmax()
    # Their mean would not always choose the same.
    assert telling


def test_several_steps_change_the_batch_only() -> None:
    one, many = make_agent(), make_n_step_agent()
    assert one.sampler.steps == 1
    assert many.sampler.steps == 3
    assert many.sampler.rule == "published"
    assert make_n_step_agent(window_rule="exact").sampler.rule == "exact"
    assert (one.chunk, many.chunk) == (1, 1)
    with pytest.raises(ValueError, match=r"agent\.n_step.*1 for ifql, got 5"):
        IFQLConfig(n_step=5)
    with pytest.raises(ValueError, match=r"agent\.n_step.*more than 1 for ifql-n"):
        IFQLConfig(name="ifql-n")
    with pytest.raises(ValueError, match=r"agent\.candidates.*0"):
        IFQLConfig(candidates=0)
