"""QC's losses against NumPy, whose critics choose and which value, and its chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stores import numbers_of
from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.qc import QC
from trainer.agents.qc_config import QCConfig

TRAINS = {"critic_loss": "critic", "flow_loss": "flow"}
H, N = 3, 4


def make_agent(**changes) -> QC:
    settings = {**TINY, "n_step": H, "candidates": N, "flow_steps": 3, **changes}
    return QC(QCConfig(**settings), FACTS)


def best_chunk(params, state: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The best of N chunks of one state ``[1, S]``, by the mean of the twins."""
    states = np.repeat(state, N, axis=0)
    chunks = cases.flow_actions(params["flow"], states, noise, steps=3)
    first, second = cases.twins(params["critic"], states, chunks)
    return chunks[[(first + second).argmax()]]


def reference(params, targets, batch, key) -> Losses:
    target_key, flow_key = jax.random.split(key)
    size = cases.SIZE
    noise = cases.normal(target_key, size * N, 2 * H)
    chunks = cases.clipped(batch.chunks).reshape(size, -1)
    critic = 0.0
    for n in range(size):
        row = slice(n, n + 1)
        following = best_chunk(params, batch.states_n[row], noise[N * n : N * (n + 1)])
        value = np.mean(cases.twins(targets["critic"], batch.states_n[row], following))
        target = batch.returns_n[n] + batch.bootstraps[n] * value
        if batch.valid[n]:
            for q in cases.twins(
                params["critic"], batch.observations[row], chunks[row]
            ):
                critic += (q[0] - target) ** 2 / (2 * size)
    errors = cases.matching_errors(params["flow"], batch.observations, chunks, flow_key)
    flow = 0.0
    for n in range(size):
        for i in range(H):
            for j in range(2):
                if batch.valid_actions[n, i]:
                    flow += errors[n, 2 * i + j] / (size * H * 2)
    return {"critic_loss": critic, "flow_loss": flow}


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent())
        assert 0 < case.batch.valid.sum() < cases.SIZE
        cases.check_update(case, reference, TRAINS, target="critic")


def test_online_critics_choose_and_targets_value() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent())
        agent, key = case.agent, jax.random.key(5)
        rng = np.random.default_rng(9)
        # Targets of another mind.
        targets = jax.tree.map(
            lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape)), case.targets
        )
        got = cases.run(agent.critic_target, case.params, targets, case.batch, key)
        numeric = jax.tree.map(np.asarray, (case.params, targets, case.batch))
        params, targets, batch = numeric
        noise = cases.normal(key, cases.SIZE * N, 2 * H)
        differing = 0
        for n in range(cases.SIZE):
            state, own = batch.states_n[n : n + 1], noise[N * n : N * (n + 1)]
            chunk = best_chunk(params, state, own)
            differing += (chunk != best_chunk({**params, **targets}, state, own)).any()
            value = np.mean(cases.twins(targets["critic"], state, chunk))
            expected = batch.returns_n[n] + batch.bootstraps[n] * value
            assert got[n] == pytest.approx(expected, rel=1e-6)
        assert differing >= 3


def test_acting_returns_the_best_chunk_in_order() -> None:
    agent = make_agent()
    cases.check_first_state(agent, target="critic")
    params = cases.make_case(agent).params
    state, key = TABLE.observations[5], jax.random.key(3)
    got = cases.run(agent.act, params, jnp.asarray(state), key)
    assert got.shape == (agent.chunk, 2) == (H, 2)
    noise = np.asarray(jax.random.normal(key, (N, 2 * H)))
    expected = best_chunk(jax.tree.map(np.asarray, params), state[None], noise)
    np.testing.assert_allclose(got.reshape(1, -1), expected, rtol=1e-4, atol=1e-5)


def test_one_discount_serves_the_chunk_and_what_follows() -> None:
    agent = make_agent()
    assert agent.sampler.discount == agent.config.discount
    index = agent.sampler.draw(TABLE, numbers_of(TABLE, agent.sampler, 4_000))
    rows = index.rows
    for n in np.flatnonzero(index.valid)[:200]:
        window = slice(rows[n], rows[n] + H)
        expected = sum(0.9**i * r for i, r in enumerate(TABLE.rewards[window]))
        assert index.returns_n[n] == pytest.approx(expected, rel=1e-6)
        alive = TABLE.masks[window].min()
        assert index.bootstraps[n] == pytest.approx(0.9**H * alive, rel=1e-6)


def test_windows_that_cross_an_episode_train_no_critic() -> None:
    sampler = make_agent().sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, 4_000))
    ends = TABLE.episode_starts + TABLE.episode_lengths - 1
    inside = np.array([ends[ends >= row].min() - row >= H for row in index.rows])
    assert 0 < inside.sum() < 4_000
    np.testing.assert_array_equal(index.valid, inside)
    # An action beyond the end trains no flow; those before it do.
    short = index.valid_actions[~inside]
    assert (short[:, 0] == 1).all()
    assert (short.sum(axis=1) < H).all()


def test_bad_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"agent\.n_step.*at least 1.*0"):
        QCConfig(n_step=0)
    with pytest.raises(ValueError, match=r"agent\.discount.*\(0, 1\)"):
        QCConfig(discount=1.0)
