"""Value Flows' losses against NumPy, its readings of values, and how it acts."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import references
from tests.stores import make_facts, make_table, numbers_of
from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.value_flows import ValueFlows
from trainer.agents.value_flows_config import ValueFlowsConfig

TRAINS = {
    "end_loss": "critic",
    "path_loss": "critic",
    "flow_loss": "flow",
    "distill_loss": "one_step",
    "improve_loss": "one_step",
}
N, STEPS = 4, 3
# Rewards are -1 and 0, and the discount 0.9.
BOUNDS = (-10.0, 0.0)


def make_agent(**changes) -> ValueFlows:
    settings = {
        **TINY,
        "candidates": N,
        "flow_steps": STEPS,
        "end_weight": 3.0,
        "path_weight": 0.7,
        "alpha": 2.0,
        **changes,
    }
    return ValueFlows(ValueFlowsConfig(**settings), FACTS)


def returns(field, noise, state, action, end: float) -> float:
    """Euler's steps of one return, clipped at each."""
    z = noise
    for step in range(STEPS):
        time = np.array([[step / STEPS * end]])
        z = z + end / STEPS * cases.mlp(field, np.array([[z]]), time, state, action)
        z = float(np.clip(z, *BOUNDS).item())
    return z


def slope(field, noise, state, action) -> float:
    """Derivative of the end by the start, by differences of each step's velocity."""
    z, derivative = noise, 1.0
    for step in range(STEPS):
        time = np.array([[step / STEPS]])

        def velocity(at: float, time: np.ndarray = time) -> float:
            return cases.mlp(field, np.array([[at]]), time, state, action).item()

        change = (velocity(z + 1e-5) - velocity(z - 1e-5)) / 2e-5
        derivative += derivative * change / STEPS
        z = float(np.clip(z + velocity(z) / STEPS, *BOUNDS))
    return abs(derivative)


def read(params, state, action, noises: list[float], aggregate) -> float:
    values = []
    for noise in noises:
        z, zero = np.array([[noise]]), np.zeros((1, 1))
        ends = [
            float(np.clip(noise + v[0], *BOUNDS))
            for v in cases.twins(params["critic"], z, zero, state, action)
        ]
        values.append(aggregate(ends))
    return float(np.mean(values))


def flow_action(params, state, noise: np.ndarray) -> np.ndarray:
    """One action of the behaviour flow, clipped after every step."""
    x = noise
    for step in range(STEPS):
        x = x + cases.mlp(params["flow"], state, x, np.array([[step / STEPS]])) / STEPS
        x = np.clip(x, -1, 1)
    return x


def reference(params, targets, batch, key, *, aggregate=np.mean) -> Losses:
    size = cases.SIZE
    keys = jax.random.split(key, 7)
    taught_noise = cases.normal(keys[0], size, 2)
    noise_a = cases.normal(keys[1], size * N, 2)
    noise_q = cases.normal(keys[2], 1, size * N, 1)
    noise_w = cases.normal(keys[3], size, 1)
    noise_key, time_key = jax.random.split(keys[4])
    noise_z = cases.normal(noise_key, size, 1)
    times = np.asarray(jax.random.uniform(time_key, (size, 1), jnp.float64))
    _, improve_key = jax.random.split(keys[6])
    noise_i = cases.normal(improve_key, 1, size, 1)
    fields = [references.member(targets["critic"], j) for j in range(2)]
    online = [references.member(params["critic"], j) for j in range(2)]
    actions = cases.clipped(batch.actions)
    end_loss = path_loss = distill = improve = 0.0
    for n in range(size):
        s, a = batch.observations[[n]], actions[[n]]
        following = batch.states_n[[n]]
        drawn = [
            flow_action(params, following, noise_a[[i]])
            for i in range(N * n, N * (n + 1))
        ]
        scores = [
            read(params, following, drawn[i], noise_q[:, N * n + i, 0], aggregate)
            for i in range(N)
        ]
        chosen = drawn[int(np.argmax(scores))]
        spread = aggregate([slope(f, noise_w[n, 0], s, a) for f in fields])
        weight = 1 / (1 + np.exp(0.3 / spread)) + 0.5
        assert 0.5 < weight < 1
        e, t = noise_z[n, 0], times[n, 0]
        ends = [returns(f, e, following, chosen, 1.0) for f in fields]
        y = batch.returns_n[n] + batch.bootstraps[n] * aggregate(ends)
        there = aggregate([returns(f, e, following, chosen, t) for f in fields])
        x = batch.returns_n[n] + batch.bootstraps[n] * there
        at = np.array([[there]]), np.array([[t]]), following, chosen
        velocity = aggregate([cases.mlp(f, *at).item() for f in fields])
        for field in online:
            z = np.array([[(1 - t) * e + t * y]])
            at_end = cases.mlp(field, z, np.array([[t]]), s, a).item()
            end_loss += weight * (at_end - (y - e)) ** 2 / size
            on_path = cases.mlp(field, np.array([[x]]), np.array([[t]]), s, a).item()
            path_loss += weight * (on_path - velocity) ** 2 / size
        taught = flow_action(params, s, taught_noise[[n]])
        own = np.clip(cases.mlp(params["one_step"], s, taught_noise[[n]]), -1, 1)
        distill += np.square(own - taught).sum() / (2 * size)
        improve -= read(params, s, own, noise_i[:, n, 0], aggregate) / size
    errors = cases.matching_errors(params["flow"], batch.observations, actions, keys[5])
    return {
        "end_loss": 3.0 * end_loss,
        "path_loss": 0.7 * path_loss,
        "flow_loss": errors.mean(),
        "distill_loss": 2.0 * distill,
        "improve_loss": improve,
    }


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent())
        assert case.agent.bounds == pytest.approx(BOUNDS)
        assert 0 < (case.batch.bootstraps == 0).sum() < cases.SIZE
        cases.check_update(case, reference, TRAINS, target="critic")


def test_options_against_numpy() -> None:
    options = {
        "return_aggregation": "min",
        "aggregation": "min",
    }
    with jax.enable_x64(True):
        case = cases.make_case(make_agent(**options))
        expected = partial(reference, aggregate=min)
        cases.check_losses(case, expected)


def test_act_takes_the_best_candidate_by_one_reading_each() -> None:
    agent = make_agent()
    cases.check_first_state(agent, target="critic")
    params = cases.make_case(agent).params
    state, key = TABLE.observations[5], jax.random.key(3)
    action = cases.run(agent.act, params, jnp.asarray(state), key)
    assert action.shape == (1, 2)
    actions_key, values_key = jax.random.split(key)
    noise = np.asarray(jax.random.normal(actions_key, (N, 2)))
    readings = np.asarray(jax.random.normal(values_key, (1, N, 1)))
    numeric = jax.tree.map(np.asarray, params)
    drawn = [flow_action(numeric, state[None], noise[[i]]) for i in range(N)]
    scores = [
        read(numeric, state[None], drawn[i], [readings[0, i, 0]], np.mean)
        for i in range(N)
    ]
    assert len(set(scores)) > 1
    expected = drawn[int(np.argmax(scores))]
    np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)


def test_bounds_come_from_the_rewards_of_the_data() -> None:
    unsolved = dataclasses.replace(FACTS, reward_min=-5.0, reward_max=-1.0)
    agent = ValueFlows(ValueFlowsConfig(discount=0.99), unsolved)
    assert agent.bounds == pytest.approx((-500.0, -100.0))


def test_without_distillation_there_is_no_one_step_policy() -> None:
    agent = make_agent(distill=False)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    assert set(shapes.params) == {"critic", "flow"}
    _, metrics = jax.eval_shape(
        agent.total_loss,
        shapes.params,
        shapes.targets,
        cases.make_batch(agent),
        jax.random.key(0),
    )
    losses = {name for name in metrics.mean if name.endswith("_loss")}
    assert losses == {"end_loss", "path_loss", "flow_loss"}


def test_bad_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"agent\.confidence.*above 0.*0\.0"):
        ValueFlowsConfig(confidence=0.0)
    with pytest.raises(ValueError, match=r"agent\.candidates.*at least 1.*0"):
        ValueFlowsConfig(candidates=0)


def test_the_one_step_policy_has_finite_gradients() -> None:
    """They pass through a minimum, which a compiler may compute more than once."""
    table = make_table([30, 40], discount=0.99, S=4, A=5)
    config = ValueFlowsConfig(width=8, depth=1, flow_steps=2, aggregation="min")
    agent = ValueFlows(config, make_facts(table))
    state = agent.init(jax.random.key(0))
    index = agent.sampler.draw(table, numbers_of(table, agent.sampler, 8))
    batch = agent.sampler.gather(table.observations, table.actions, index)
    gradients = jax.jit(jax.grad(agent.total_loss, has_aux=True))
    for key in range(10):
        gradient, _ = gradients(state.params, state.targets, batch, jax.random.key(key))
        for leaf in jax.tree.leaves(gradient["one_step"]):
            assert np.isfinite(leaf).all()
            assert leaf.any()
