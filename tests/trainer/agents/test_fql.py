"""FQL's and FQL-n's losses against NumPy, and how they act."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.fql import FQL
from trainer.agents.fql_config import FQLConfig
from trainer.nn import flow

TRAINS = {
    "critic_loss": "critic",
    "flow_loss": "flow",
    "distill_loss": "one_step",
    "improve_loss": "one_step",
}


def make_agent(**changes) -> FQL:
    return FQL(FQLConfig(**{**TINY, "alpha": 3.0, "flow_steps": 3, **changes}), FACTS)


def make_n_step_agent(**changes) -> FQL:
    return make_agent(name="fql-n", n_step=3, **changes)


def reference(
    params,
    targets,
    batch,
    key,
    *,
    aggregate=np.mean,
) -> Losses:
    target_key, policy_key = jax.random.split(key)
    size = cases.SIZE
    next_noise = cases.normal(target_key, size, 2)
    actions = cases.clipped(batch.actions)
    critic = 0.0
    for n in range(size):
        row = slice(n, n + 1)
        judged = []
        for j in range(2):
            z = next_noise[row]
            a = np.clip(cases.mlp(params["one_step"], batch.states_n[row], z), -1, 1)
            judged.append(cases.twins(targets["critic"], batch.states_n[row], a)[j][0])
        target = batch.returns_n[n] + batch.bootstraps[n] * aggregate(judged)
        if batch.valid[n]:
            for q in cases.twins(
                params["critic"], batch.observations[row], actions[row]
            ):
                critic += (q[0] - target) ** 2 / (2 * size)
    match_key, noise_key = jax.random.split(policy_key)
    noise = cases.normal(noise_key, size, 2)
    s = batch.observations
    taught = cases.flow_actions(params["flow"], s, noise, steps=3)
    proposed = cases.mlp(params["one_step"], s, noise)
    assert (np.abs(proposed) > 1).any()
    assert (np.abs(proposed) < 1).any()
    judged = cases.twins(params["critic"], s, np.clip(proposed, -1, 1))
    values = np.mean(judged, axis=0)
    squares = np.square(proposed - taught)
    return {
        "critic_loss": critic,
        "flow_loss": cases.matching_errors(
            params["flow"], s, actions, match_key
        ).mean(),
        "distill_loss": 3.0 * squares.mean(),
        "improve_loss": -values.mean(),
    }


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_n_step_agent())
        assert 0 < case.batch.valid.sum() < cases.SIZE
        cases.check_update(case, reference, TRAINS, target="critic")


def test_the_smaller_critic_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent(aggregation="min"))
        cases.check_losses(case, partial(reference, aggregate=min))


def test_acting_is_one_clipped_draw() -> None:
    agent = make_agent()
    cases.check_first_state(agent, target="critic")
    params = cases.make_case(agent).params
    numeric = jax.tree.map(np.asarray, params["one_step"])
    state = TABLE.observations[3]
    drawn = []
    for key in map(jax.random.key, range(8)):
        drawn.append(agent.act(params, jnp.asarray(state), key))
        noise = np.asarray(jax.random.normal(key, (1, 2)))
        expected = np.clip(cases.mlp(numeric, state[None], noise), -1, 1)
        np.testing.assert_allclose(drawn[-1], expected, rtol=1e-4, atol=1e-5)
    # Evaluation is stochastic, as published.
    assert len({float(action[0, 0]) for action in drawn}) > 1


def test_a_flow_of_one_point_returns_it_exactly() -> None:
    # With the velocity of a single target action, Euler's ten steps are exact.
    point = jnp.array([[0.3, -0.7]])
    start = jnp.array([[1.5, 0.2]])
    got = flow.integrate(lambda x, t: (point - x) / (1 - t), start, steps=10)
    np.testing.assert_allclose(got, point, atol=1e-6)
    straight = flow.integrate(lambda x, t: point - start, start, steps=10)
    np.testing.assert_allclose(straight, point, atol=1e-6)


def test_several_steps_have_a_name_of_their_own() -> None:
    agent = make_n_step_agent()
    assert agent.sampler.steps == 3
    assert agent.sampler.rule == "published"
    assert agent.chunk == 1
    with pytest.raises(ValueError, match=r"agent\.n_step.*1 for fql, got 5"):
        FQLConfig(n_step=5)
    with pytest.raises(ValueError, match=r"agent\.n_step.*more than 1 for fql-n"):
        FQLConfig(name="fql-n")
    with pytest.raises(ValueError, match=r"agent\.flow_steps.*0"):
        FQLConfig(flow_steps=0)
