"""VAST's losses against a second implementation in NumPy, and their gradients."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests import references
from tests.trainer.agents.baseline_cases import run
from tests.trainer.agents.vast_cases import make_agent, make_batch
from trainer.agents.vast import VAST
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn.networks import Params

Double = tuple[VAST, Params, Params, HorizonBatch]


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def double(double_precision: None) -> Double:
    """Agent, parameters, targets and batch in float64, no parameter zero."""
    agent = make_agent()
    shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.4 * rng.normal(size=leaf.shape)), shapes
    )
    targets = {"critic": jax.tree.map(lambda x: x * 1.1, params["critic"])}
    batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), make_batch(agent))
    return agent, params, targets, batch


def as_numpy(tree: Params) -> Params:
    return jax.tree.map(np.asarray, tree)


@pytest.mark.parametrize("success", ["ends", "mixed"])
def test_value_loss_against_numpy(double: Double, success: str) -> None:
    _, params, _, batch = double
    agent = make_agent(success=success)
    masks = np.arange(16) % 3 > 0
    batch = batch._replace(masks=jnp.asarray(masks, jnp.float64))
    target = np.random.default_rng(0).normal(size=16)
    got, values = run(agent.value_loss, params, batch, jnp.asarray(target))
    p, b = as_numpy(params), as_numpy(batch)
    expected, below = 0.0, 0
    for n in range(16):
        value = references.mlp(p["value"], b.observations[n : n + 1])[0, 0]
        solved = success == "ends" and not masks[n]
        u = (b.rewards[n] if solved else target[n]) - value
        below += u < 0
        expected += (0.1 if u < 0 else 0.9) * u**2 / 16
        assert values[n] == pytest.approx(value, abs=1e-9)
    assert 0 < below < 16
    assert got == pytest.approx(expected, rel=1e-6)


def test_stitched_values_against_numpy(double: Double) -> None:
    agent, params, _, batch = double
    rng = np.random.default_rng(0)
    horizon = rng.uniform(1, 5, 16)
    subgoal = rng.normal(size=(16, 4))
    continuation = 5 * rng.normal(size=16)
    got = run(
        agent.stitched_values,
        *(params, batch),
        *(jnp.asarray(x) for x in (horizon, subgoal, continuation)),
    )
    p, b = as_numpy(params), as_numpy(batch)
    for n in range(16):
        gained = segment_reference(p, b, n, b.observations, subgoal, horizon[n])
        expected = gained + 0.9 ** horizon[n] * continuation[n]
        assert got[n] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("windows", ["drawn", "recorded"])
def test_targets_of_v(double: Double, windows: str) -> None:
    """V regresses on drawn windows, or on the values that the advantage has."""
    _, params, targets, batch = double
    agent = make_agent(value_windows=windows)
    key = jax.random.key(8)
    _, metrics = run(agent.total_loss, params, targets, batch, key)
    sample_key, next_key, *_ = jax.random.split(key, 4)
    if windows == "recorded":
        horizon, continuation = agent.continuation(
            params, targets, batch.states_k, next_key
        )
        _, segments = agent.segment_loss(params, batch)
        target = agent.window_values(batch, segments, continuation)
    else:
        horizon, subgoal = agent.sample_stitch(params, batch.observations, sample_key)
        _, continuation = agent.continuation(
            params, targets, jnp.stack([subgoal, batch.states_k]), next_key
        )
        target = agent.stitched_values(params, batch, horizon, subgoal, continuation[0])
    loss, values = agent.value_loss(params, batch, target)
    assert metrics.mean["value_loss"] == pytest.approx(float(loss), rel=1e-9)
    assert metrics.mean["horizon"] == pytest.approx(float(horizon.mean()), rel=1e-9)
    if windows == "recorded":
        advantage = (target - values).mean()
        assert metrics.mean["advantage"] == pytest.approx(float(advantage), rel=1e-9)


def test_critic_loss_against_numpy(double: Double) -> None:
    agent, params, _, batch = double
    masks = np.arange(16) % 3 > 0
    batch = batch._replace(masks=jnp.asarray(masks, jnp.float64))
    got, _ = run(agent.critic_loss, params, params, batch)
    p, b = as_numpy(params), as_numpy(batch)
    expected = 0.0
    for n in range(16):
        row = slice(n, n + 1)
        following = references.mlp(p["value"], b.next_observations[row])[0, 0]
        target = b.rewards[n] + 0.9 * masks[n] * following
        for j in range(2):
            critic = references.member(p["critic"], j)
            value = references.mlp(critic, b.observations[row], b.actions[row])[0, 0]
            expected += (value - target) ** 2 / 16
    assert got == pytest.approx(expected, rel=1e-6)


def segment_reference(p, b, n, start, end, steps):
    return references.mlp(
        p["segment"], start[n : n + 1], end[n : n + 1], np.array([[steps / 5]])
    )[0, 0]


def test_segment_loss_against_numpy(double: Double) -> None:
    agent, params, _, batch = double
    got, _ = run(agent.segment_loss, params, batch)
    p, b = as_numpy(params), as_numpy(batch)
    assert 0 < b.alive_i.sum() < 16
    expected = 0.0
    for n in range(16):
        k, i = b.horizons[n], b.intermediates[n]
        whole = segment_reference(p, b, n, b.observations, b.states_k, k)
        first = segment_reference(p, b, n, b.observations, b.states_i, i)
        second = segment_reference(p, b, n, b.states_i, b.states_k, k - i)
        expected += (whole - b.returns_k[n]) ** 2 / 16
        composed = first + 0.9**i * b.alive_i[n] * second
        expected += 0.5 * (whole - composed) ** 2 / 16
    assert got == pytest.approx(expected, rel=1e-6)


def test_a_window_of_one_step_composes_with_nothing(double: Double) -> None:
    agent, params, _, batch = double
    ones = jnp.ones(16)
    one = batch._replace(
        horizons=ones, intermediates=ones, alive_i=ones, states_i=batch.states_k
    )
    got, whole = agent.segment_loss(params, one)
    # Only the recorded return is left: G(s, s_k, 1) is compared with itself.
    expected = jnp.square(whole - one.returns_k).mean()
    assert expected > 0
    assert got == pytest.approx(float(expected), rel=1e-12)
    plain = dataclasses.replace(agent.config, composition=0.0)
    gradients = [
        jax.grad(lambda p, a=a: a.segment_loss(p, one)[0])(params)["segment"]
        for a in (agent, VAST(plain, agent.facts))
    ]
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients[0])) > 1e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        *gradients,
    )


def test_advantage_and_stitch_loss_against_numpy(double: Double) -> None:
    agent, params, _, batch = double
    agent = make_agent(temperature=2.0, max_weight=3.0)
    rng = np.random.default_rng(1)
    segments, values, continuation = rng.normal(size=(3, 16))
    window_values = agent.window_values(
        batch, jnp.asarray(segments), jnp.asarray(continuation)
    )
    advantage = window_values - values
    key = jax.random.key(5)
    got, weights = run(agent.stitch_loss, params, batch, advantage, key)
    p, b = as_numpy(params), as_numpy(batch)
    noise_key, time_key = jax.random.split(key)
    noise = np.asarray(jax.random.normal(noise_key, (16, 5), jnp.float64))
    time = np.asarray(jax.random.uniform(time_key, (16, 1), jnp.float64))
    expected, capped = 0.0, 0
    for n in range(16):
        row = slice(n, n + 1)
        adv = (
            segments[n]
            + 0.9 ** b.horizons[n] * b.alive_k[n] * continuation[n]
            - values[n]
        )
        assert advantage[n] == pytest.approx(adv, abs=1e-12)
        weight = min(np.exp(2.0 * adv), 3.0)
        capped += weight == 3.0
        assert weights[n] == pytest.approx(weight, rel=1e-9)
        data = np.concatenate([[b.horizons[n] / 5], b.states_k[n]])[None]
        point = (1 - time[row]) * noise[row] + time[row] * data
        velocity = references.mlp(p["stitch"], b.observations[row], point, time[row])
        expected += weight * np.square(velocity - (data - noise[row])).sum() / 16
    assert 0 < capped < 16
    assert got == pytest.approx(expected, rel=1e-6)


def test_exec_loss_against_numpy(double: Double) -> None:
    agent, params, _, batch = double
    key = jax.random.key(6)
    got = run(agent.exec_loss, params, batch, key)
    p, b = as_numpy(params), as_numpy(batch)
    noise_key, time_key = jax.random.split(key)
    noise = np.asarray(jax.random.normal(noise_key, (16, 2), jnp.float64))
    time = np.asarray(jax.random.uniform(time_key, (16, 1), jnp.float64))
    point = (1 - time) * noise + time * b.actions
    velocity = references.mlp(p["exec"], b.observations, b.goals, point, time)
    expected = np.square(velocity - (b.actions - noise)).sum(axis=1).mean()
    assert got == pytest.approx(expected, rel=1e-6)


def test_continuation_against_numpy(double: Double) -> None:
    agent, params, targets, batch = double
    key = jax.random.key(7)
    horizons, got = run(agent.continuation, params, targets, batch.observations, key)
    p, t = as_numpy(params), as_numpy(targets)
    states = np.asarray(batch.observations)
    stitch_key, exec_key = jax.random.split(key)
    plans = references.flow_samples(
        lambda x, time: references.mlp(p["stitch"], states, x, time),
        np.asarray(jax.random.normal(stitch_key, (16, 5))),
        3,
    )
    actions = references.flow_samples(
        lambda x, time: references.mlp(p["exec"], states, plans[:, 1:], x, time),
        np.asarray(jax.random.normal(exec_key, (16, 2))),
        3,
    )
    np.testing.assert_allclose(horizons, np.clip(5 * plans[:, 0], 1, 5), rtol=1e-6)
    assert ((horizons > 1) & (horizons < 5)).any()
    assert (np.abs(actions) > 1).any()
    actions = np.clip(actions, -1, 1)
    twins = [
        references.mlp(references.member(t["critic"], j), states, actions)[:, 0]
        for j in range(2)
    ]
    np.testing.assert_allclose(got, np.minimum(*twins), rtol=1e-6)


def test_gradients_are_numerically_right(double: Double) -> None:
    agent, params, _, batch = double
    frozen = params

    @jax.jit
    def three(trained):
        params = frozen | trained
        value, _ = agent.value_loss(params, batch, batch.returns_k)
        critic, _ = agent.critic_loss(params, frozen, batch)
        segment, _ = agent.segment_loss(params, batch)
        return value + critic + segment

    trained = {name: params[name] for name in ("value", "critic", "segment")}
    check_grads(three, (trained,), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


TRAINED_BY = {
    "value_loss": "value",
    "critic_loss": "critic",
    "segment_loss": "segment",
    "stitch_loss": "stitch",
    "exec_loss": "exec",
}


@pytest.mark.parametrize("windows", ["drawn", "recorded"])
def test_each_loss_trains_its_own_network_and_nothing_its_target_reads(
    double: Double, windows: str
) -> None:
    _, params, targets, batch = double
    agent = make_agent(value_windows=windows)

    @jax.jit
    @jax.jacrev
    def jacobian(params: Params) -> list[jax.Array]:
        _, metrics = agent.total_loss(params, targets, batch, jax.random.key(8))
        return [metrics.mean[name] for name in TRAINED_BY]

    for own, row in zip(TRAINED_BY.values(), jacobian(params), strict=True):
        for network in params:
            largest = max(
                float(jnp.abs(x).max()) for x in jax.tree.leaves(row[network])
            )
            # Exactly zero: not small, but stopped.
            assert (largest > 0) == (network == own), (own, network)


def test_options_change_what_they_say(double: Double) -> None:
    _, params, targets, batch = double
    advantage = jnp.array([-1.0, 0.0, 2.0])
    beta = make_agent(temperature=0.5)
    np.testing.assert_allclose(beta.weights(advantage), np.exp([-0.5, 0, 1]), rtol=1e-6)
    printed = make_agent(temperature=0.5, weight_form="beta_exp")
    np.testing.assert_allclose(
        printed.weights(advantage), 0.5 * np.exp([-1, 0, 2]), rtol=1e-6
    )
    cloning = make_agent(temperature=0.0)
    np.testing.assert_array_equal(cloning.weights(advantage), 1.0)
    # Without a gradient through the composed side, G(s, s_i, i) alone is not trained:
    # the loss is the same and the gradient is not.
    losses, gradients = zip(
        *(
            run(
                jax.value_and_grad(lambda p, a=agent: a.segment_loss(p, batch)[0]),
                params,
            )
            for agent in (make_agent(), make_agent(composed_gradient=False))
        ),
        strict=True,
    )
    assert losses[0] == losses[1]
    assert any(
        (one != other).any()
        for one, other in zip(
            *(jax.tree.leaves(gradient["segment"]) for gradient in gradients),
            strict=True,
        )
    )
    key = jax.random.key(0)
    low, middle = (
        run(
            make_agent(aggregation=aggregation).continuation,
            *(params, targets, batch.observations, key),
        )[1]
        for aggregation in ("min", "mean")
    )
    assert (low < middle).all()
    recorded = make_agent(advantage_return="data").window_values(
        batch, batch.returns_k + 1, 0 * batch.returns_k
    )
    np.testing.assert_array_equal(recorded, batch.returns_k)
