"""floq's losses against NumPy, its encodings and noise, and how it acts."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests import references
from tests.trainer.agents import baseline_cases as cases
from tests.trainer.agents.baseline_cases import FACTS, TABLE, TINY, Losses
from trainer.agents.floq import Floq
from trainer.agents.floq_config import FloqConfig

TRAINS = {
    "field_loss": "field",
    "critic_loss": "critic",
    "flow_loss": "flow",
    "distill_loss": "one_step",
    "improve_loss": "one_step",
}
R, J, BINS = 3, 2, 6
# A task that is never solved in the data.
UNSOLVED = dataclasses.replace(FACTS, reward_min=-3.0, reward_max=-1.0)


def make_agent(facts=FACTS, **changes) -> Floq:
    settings = {
        **TINY,
        "alpha": 3.0,
        "flow_steps": 3,
        "critic_depth": 1,
        "critic_steps": J,
        "noises": R,
        "bins": BINS,
        "bin_deviation": 2.0,
        **changes,
    }
    return Floq(FloqConfig(**settings), facts)


def encode(z: float, facts) -> np.ndarray:
    """Shares of a normal distribution in the bins, by its distribution function."""
    low, high = 10 * (facts.reward_min - 0.01), 10 * (max(facts.reward_max, 0) + 0.01)
    edges = np.linspace(low, high, BINS)
    below = stats.norm.cdf(edges, loc=z, scale=2.0 * (high - low) / (BINS - 1))
    return np.diff(below)[None] / (below[-1] - below[0])


def reference(
    params,
    targets,
    batch,
    key,
    *,
    facts=FACTS,
    interval=(-1.0, 0.0),
    aggregate=np.mean,
) -> Losses:
    size = cases.SIZE
    value_key, noise_key, time_key, policy_key = jax.random.split(key, 4)
    next_policy_key, next_noise_key = jax.random.split(value_key)
    low, high = interval

    def uniform(key: jax.Array) -> np.ndarray:
        drawn = jax.random.uniform(key, (size * R, 1), jnp.float64)
        return np.asarray(drawn)[:, 0]

    own_noise = low + (high - low) * uniform(noise_key)
    next_noise = low + (high - low) * uniform(next_noise_key)
    times = uniform(time_key)
    policy_noise = cases.normal(next_policy_key, size * R, 2)

    def velocity(field, s, a, z: float, t: float) -> float:
        return cases.mlp(field, s, a, encode(z, facts), np.cos([[t]])).item()

    def integrate(field, s, a, z: float) -> float:
        for step in range(J):
            z += velocity(field, s, a, z, step / J) / J
        return z

    online = [references.member(params["field"], j) for j in range(2)]
    fixed = [references.member(targets["field"], j) for j in range(2)]
    actions = cases.clipped(batch.actions)
    field_loss = critic_loss = 0.0
    for n in range(size):
        s, a, following = batch.observations[[n]], actions[[n]], batch.states_n[[n]]
        backed_up, own = [], []
        for i in range(R * n, R * (n + 1)):
            z = policy_noise[[i]]
            proposed = np.clip(cases.mlp(params["one_step"], following, z), -1, 1)
            ends = [integrate(f, following, proposed, next_noise[i]) for f in fixed]
            backed_up.append(batch.returns_n[n] + batch.bootstraps[n] * aggregate(ends))
            own += [integrate(f, s, a, own_noise[i]) for f in online]
        y = np.mean(backed_up)
        for i in range(R * n, R * (n + 1)):
            e, t = own_noise[i], times[i]
            for field in online:
                at = velocity(field, s, a, (1 - t) * e + t * y, t)
                field_loss += (at - (y - e)) ** 2 / (2 * size)
        for q in cases.twins(params["critic"], s, a):
            critic_loss += (q[0] - np.mean(own)) ** 2 / (2 * size)
    match_key, actor_noise_key = jax.random.split(policy_key)
    noise = cases.normal(actor_noise_key, size, 2)
    states = batch.observations
    taught = cases.flow_actions(params["flow"], states, noise, steps=3)
    proposed = cases.mlp(params["one_step"], states, noise)
    raised = cases.twins(params["critic"], states, np.clip(proposed, -1, 1))
    errors = cases.matching_errors(params["flow"], states, actions, match_key)
    return {
        "field_loss": field_loss,
        "critic_loss": critic_loss,
        "flow_loss": errors.mean(),
        "distill_loss": 3.0 * np.square(proposed - taught).mean(),
        "improve_loss": -np.mean(raised),
    }


def test_update_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent())
        cases.check_update(case, reference, TRAINS, target="field")


def test_the_smaller_field_of_an_unsolved_task_against_numpy() -> None:
    with jax.enable_x64(True):
        case = cases.make_case(make_agent(UNSOLVED, aggregation="min"))
        expected = partial(
            # A tenth of the values from -30 to 0.
            reference,
            facts=UNSOLVED,
            interval=(-3.0, 0.0),
            aggregate=min,
        )
        cases.check_losses(case, expected)


def test_noise_is_drawn_from_the_share_of_the_values() -> None:
    assert make_agent().noise_bounds == pytest.approx((-1, 0))
    # The code's buffer is padded with zeros: -1 is not the largest reward there.
    assert make_agent(UNSOLVED).noise_bounds == pytest.approx((-3, 0))
    # Nor is 1 the smallest where every step of an episode earns as much.
    alive = dataclasses.replace(FACTS, reward_min=1.0, reward_max=1.0)
    assert make_agent(alive).noise_bounds == pytest.approx((0, 1))


def test_encoding_sums_to_one_and_never_breaks() -> None:
    agent = Floq(FloqConfig(), FACTS)
    z = jnp.array([[-1e6], [-150.0], [-100.0], [-37.0], [0.0], [40.0], [1e6]])
    shares = agent.encode(z)
    assert shares.shape == (7, 50)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-4)
    # At least 0 but for the rounding of the error function next to 1.
    assert (shares > -2e-3).all()
    # Each is the larger the nearer: the fullest bin is where z is.
    assert shares[0].argmax() == 0
    assert shares[6].argmax() == 49
    # Edges are 2.04 apart, from -101 to 1: -37 lies in bin 31.
    assert shares[3].argmax() == 31


def test_encoding_of_positive_rewards_spans_the_values_from_zero() -> None:
    alive = dataclasses.replace(FACTS, reward_min=1.0, reward_max=1.0)
    shares = make_agent(alive, bin_deviation=1.0).encode(jnp.array([[1.0], [9.0]]))
    # Five bins from -0.1 to 10.1: an episode that ends soon is worth little.
    assert shares.argmax(axis=1).tolist() == [0, 4]


def test_acting_is_one_clipped_draw() -> None:
    agent = make_agent()
    cases.check_first_state(agent, target="field")
    params = cases.make_case(agent).params
    numeric = jax.tree.map(np.asarray, params["one_step"])
    state = TABLE.observations[3]
    for key in map(jax.random.key, range(3)):
        noise = np.asarray(jax.random.normal(key, (1, 2)))
        expected = np.clip(cases.mlp(numeric, state[None], noise), -1, 1)
        action = agent.act(params, jnp.asarray(state), key)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)


def test_bad_hyperparameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"agent\.bins.*at least 2.*1"):
        FloqConfig(bins=1)
    with pytest.raises(ValueError, match=r"agent\.bin_deviation.*above 0"):
        FloqConfig(bin_deviation=0.0)
    with pytest.raises(ValueError, match=r"agent\.critic_steps.*at least 1.*0"):
        FloqConfig(critic_steps=0)
