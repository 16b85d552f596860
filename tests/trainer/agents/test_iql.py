"""IQL's losses against NumPy, its gradients, and how it acts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stores import numbers_of
from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.iql import IQL
from trainer.agents.iql_config import IQLConfig
from trainer.nn import networks

TRAINS = {"value_loss": "value", "critic_loss": "critic", "actor_loss": "actor"}


def make_agent(**changes) -> IQL:
    return IQL(IQLConfig(**{**TINY, "alpha": 3.0, "max_weight": 1.5, **changes}), FACTS)


def reference(params, targets, batch, key) -> Losses:
    value = critic = actor = 0.0
    capped = 0
    for n in range(cases.SIZE):
        row = slice(n, n + 1)
        s, a = batch.observations[row], cases.clipped(batch.actions[row])
        v = cases.mlp(params["value"], s)[0, 0]
        old = min(q[0] for q in cases.twins(targets["critic"], s, a))
        u = old - v
        value += (0.1 if u < 0 else 0.9) * u**2 / cases.SIZE
        following = cases.mlp(params["value"], batch.states_n[row])[0, 0]
        target = batch.returns_n[n] + batch.bootstraps[n] * following
        new = [q[0] for q in cases.twins(params["critic"], s, a)]
        critic += sum((q - target) ** 2 for q in new) / cases.SIZE
        advantage = min(new) - v
        weight = min(np.exp(3.0 * advantage), 1.5)
        capped += weight == 1.5
        mean = cases.mlp(params["actor"], s)[0]
        likelihood = sum(
            -0.5 * (a[0, j] - mean[j]) ** 2 - 0.5 * np.log(2 * np.pi) for j in range(2)
        )
        actor -= weight * likelihood / cases.SIZE
    assert 0 < capped < cases.SIZE
    return {"value_loss": value, "critic_loss": critic, "actor_loss": actor}


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent())
        cases.check_update(case, reference, TRAINS, target="critic")


def test_goal_rows_are_worth_nothing() -> None:
    # At a solved row the reward is 0 and nothing follows, whatever V says there.
    sampler = make_agent().sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, 2_000))
    solved = TABLE.masks[index.rows] == 0
    assert 0 < solved.sum() < 2_000
    assert (index.returns_n[solved] == 0).all()
    assert (index.bootstraps[solved] == 0).all()
    assert (index.returns_n[~solved] == -1).all()
    np.testing.assert_allclose(index.bootstraps[~solved], 0.9, rtol=1e-6)


def test_acting_is_the_clipped_mean_for_every_key() -> None:
    agent = make_agent()
    cases.check_first_state(agent, target="critic")
    params = cases.make_case(agent, scale=0.1).params
    state = TABLE.observations[3]
    mean = cases.mlp(jax.tree.map(np.asarray, params["actor"]), state[None])
    assert np.abs(mean).max() < 1
    for key in (jax.random.key(0), jax.random.key(1)):
        action = agent.act(params, jnp.asarray(state), key)
        np.testing.assert_allclose(action, mean, rtol=1e-5)
    params["actor"]["output"]["bias"] = jnp.array([5.0, -5.0])
    clipped = agent.act(params, jnp.asarray(state), jax.random.key(0))
    np.testing.assert_array_equal(clipped, [[1, -1]])


def test_the_policy_starts_near_zero() -> None:
    # Its output is drawn with a hundredth of the others' variance.
    net = make_agent()._actor
    params = cases.run(lambda key: networks.init(net, key, 4), jax.random.key(0))
    kernel = params["output"]["kernel"]
    # Xavier uniform: sqrt(6 / (8 + 2)) = 0.77, times 0.1.
    assert 0.05 < jnp.abs(kernel).max() <= 0.0775


def test_bad_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"agent\.expectile.*\(0, 1\).*1\.0"):
        IQLConfig(expectile=1.0)
    with pytest.raises(ValueError, match=r"agent\.alpha.*at least 0.*-1"):
        IQLConfig(alpha=-1.0)
    with pytest.raises(ValueError, match=r"agent\.width.*at least 1.*0"):
        IQLConfig(width=0)
    with pytest.raises(ValueError, match=r"agent\.learning_rate.*above 0"):
        IQLConfig(learning_rate=0.0)
