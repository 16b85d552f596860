"""VAST's parts, samples and options in the precision it trains in."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
import pytest
from scipy import stats

from tests import references
from tests.stores import make_facts, make_table
from tests.trainer.agents.baseline_cases import run
from tests.trainer.agents.vast_cases import TABLE, make_agent, make_batch
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.data.horizon_windows import EndingHorizonSampler, HorizonSampler
from trainer.step.update import make_update


def test_parameter_counts_are_the_papers() -> None:
    # Appendix C, table 5 gives about 6.9 M; these are exact for the smallest and the
    # widest of the domains that share the width.
    for S, expected in ((37, 6_588_977), (83, 6_871_647)):
        table = make_table([30], S=S, A=5)
        agent = VAST(VASTConfig(), make_facts(table))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        count = references.count_parameters(state.params) + references.count_parameters(
            state.targets
        )
        assert count == expected


def test_state_scaling_is_undone_for_predictions() -> None:
    # The same parameters see scaled states; a sub-goal comes back in raw units.
    scaled = make_agent(state_scaling="standard")
    raw = make_agent()
    params = run(raw.init, jax.random.key(0)).params
    mean = jnp.asarray(scaled.facts.observation_mean)
    std = jnp.asarray(scaled.facts.observation_std)
    state = jnp.asarray(TABLE.observations[3])
    key = jax.random.key(2)
    k, subgoal = run(scaled.predict_subgoal, params, state, key)
    k_raw, subgoal_raw = run(raw.predict_subgoal, params, (state - mean) / std, key)
    np.testing.assert_allclose(k, k_raw, rtol=1e-5)
    np.testing.assert_allclose(subgoal, subgoal_raw * std + mean, rtol=1e-4)
    np.testing.assert_allclose(
        run(scaled.value, params, state),
        run(raw.value, params, (state - mean) / std),
        rtol=1e-5,
    )


def test_update_trains_everything_and_moves_targets_towards_the_new_critics() -> None:
    agent = make_agent()
    state = run(agent.init, jax.random.key(0))
    jax.tree.map(
        np.testing.assert_array_equal, state.targets["critic"], state.params["critic"]
    )
    batch = make_batch(agent)
    after, metrics = run(make_update(agent), state, batch, jax.random.key(1))
    assert after.step == 1
    for name in state.params:
        moved = jax.tree.map(
            lambda a, b: float(jnp.abs(a - b).max()),
            state.params[name],
            after.params[name],
        )
        assert max(jax.tree.leaves(moved)) > 1e-4, name
    expected = jax.tree.map(
        lambda old, new: 0.995 * old + 0.005 * new,
        state.targets["critic"],
        after.params["critic"],
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        after.targets["critic"],
        expected,
    )
    assert metrics.total["windows_by_horizon"].sum() == 16
    assert metrics.total["drawn_by_horizon"].sum() == 16
    assert set(np.flatnonzero(metrics.total["windows_by_horizon"])) <= {1, 2, 3, 4, 5}


def test_values_of_solved_rows_are_logged() -> None:
    agent = make_agent()
    state = jax.jit(agent.init)(jax.random.key(0))
    solved = np.arange(16) % 4 == 1
    batch = make_batch(agent)._replace(masks=np.where(solved, 0, 1).astype(np.float32))
    _, metrics = jax.jit(agent.total_loss)(
        state.params, state.targets, batch, jax.random.key(1)
    )
    values = np.asarray(agent.value(state.params, batch.observations))[solved]
    assert np.abs(values).min() > 0
    assert metrics.mean["solved"] == 0.25
    assert metrics.total["solved_rows"] == 4
    np.testing.assert_allclose(metrics.total["solved_value"], values.sum(), rtol=1e-5)


def test_act_takes_the_best_candidate_by_q() -> None:
    agent = make_agent(candidates=6)
    params = run(agent.init, jax.random.key(0)).params
    state = jnp.asarray(TABLE.observations[5])
    key = jax.random.key(9)
    action = run(agent.act, params, state, key)
    assert action.shape == (1, 2)
    assert (jnp.abs(action) <= 1).all()
    _, goal = run(agent.predict_subgoal, params, state, key)
    _, exec_key = jax.random.split(key)
    candidates = run(
        agent.sample_exec,
        params,
        jnp.tile(state, (6, 1)),
        jnp.tile(goal, (6, 1)),
        exec_key,
    )
    values = run(agent.critic, params, jnp.tile(state, (6, 1)), candidates)
    assert len(np.unique(values)) >= 4
    np.testing.assert_allclose(action[0], candidates[values.argmax()], rtol=1e-5)


def fit(loss, params, steps: int, rate: float = 3e-3):
    """A few hundred steps of Adam on one network's loss."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def step(carry, key):
        params, state = carry
        gradient = jax.grad(loss)(params, key)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(jax.random.key(0), steps)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[0][0])
    return run((params, optimizer.init(params)))


def test_exec_reproduces_the_action_of_each_goal() -> None:
    # One recorded action per goal: the flow must collapse onto it.
    agent = make_agent(width=64, flow_steps=10)
    goals = jnp.eye(4)
    actions = jnp.array([[0.8, -0.8], [-0.5, 0.5], [0.0, 0.9], [0.3, 0.1]])
    batch = make_batch(agent, 64)._replace(
        observations=jnp.zeros((64, 4)),
        goals=jnp.tile(goals, (16, 1)),
        actions=jnp.tile(actions, (16, 1)),
    )
    params = fit(
        lambda p, key: agent.exec_loss(p, batch, key),
        run(agent.init, jax.random.key(1)).params,
        steps=1500,
    )
    drawn = run(
        agent.sample_exec,
        params,
        jnp.zeros((400, 4)),
        jnp.tile(goals, (100, 1)),
        jax.random.key(2),
    )
    error = jnp.abs(drawn - jnp.tile(actions, (100, 1)))
    assert jnp.median(error) < 0.05
    assert jnp.quantile(error, 0.95) < 0.2


def test_stitch_without_temperature_reproduces_the_horizons_of_the_data() -> None:
    agent = make_agent(width=64, flow_steps=20, temperature=0.0, max_horizon=25)
    size = 512
    rng = np.random.default_rng(0)
    # A continuous stand-in for k, so that a Kolmogorov-Smirnov test applies.
    horizons = jnp.asarray(rng.uniform(2, 25, size), jnp.float32)
    batch = make_batch(agent, size)._replace(
        observations=jnp.zeros((size, 4)),
        states_k=jnp.zeros((size, 4)),
        horizons=horizons,
    )
    advantage = jnp.asarray(rng.normal(size=size) * 10, jnp.float32)

    params = fit(
        lambda p, key: agent.stitch_loss(p, batch, advantage, key)[0],
        run(agent.init, jax.random.key(1)).params,
        steps=2500,
    )
    drawn, _ = run(agent.sample_stitch, params, jnp.zeros((150, 4)), jax.random.key(4))
    assert stats.ks_2samp(np.asarray(drawn), np.asarray(horizons)).pvalue > 0.01
    # The test can fail: half the horizons is another distribution.
    assert stats.ks_2samp(np.asarray(drawn) / 2, np.asarray(horizons)).pvalue < 1e-6


def test_success_says_where_windows_end() -> None:
    ends, mixed = make_agent(), make_agent(success="mixed")
    assert type(ends.sampler) is EndingHorizonSampler
    assert type(mixed.sampler) is HorizonSampler
    assert vars(ends.sampler) == vars(mixed.sampler) | {"terminal_starts": True}
    assert not make_agent(terminal_starts=False).sampler.terminal_starts
    with pytest.raises(pydantic.ValidationError, match=r"'ends' or 'mixed'"):
        pydantic.TypeAdapter(VASTConfig).validate_python({"success": "stops"})


def test_bad_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"agent\.expectile.*\(0, 1\).*1\.5"):
        VASTConfig(expectile=1.5)
    with pytest.raises(ValueError, match=r"agent\.temperature.*-1"):
        VASTConfig(temperature=-1.0)
    with pytest.raises(ValueError, match=r"agent\.candidates.*0"):
        VASTConfig(candidates=0)


def test_settings_that_exclude_each_other_are_refused() -> None:
    # Each of the two alone is allowed.
    VASTConfig(success="mixed"), VASTConfig(value_windows="recorded")
    with pytest.raises(ValueError, match=r"agent\.value_windows.*'mixed'.*'recorded'"):
        VASTConfig(success="mixed", value_windows="recorded")
    VASTConfig(weight_form="beta_exp"), VASTConfig(temperature=0)
    with pytest.raises(ValueError, match=r"agent\.temperature.*'beta_exp'.*got 0"):
        VASTConfig(weight_form="beta_exp", temperature=0)
