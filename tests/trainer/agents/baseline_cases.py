"""What the tests of the baselines share: data, parameters, references, comparisons.

The references are NumPy loops in float64, a sample and a network at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import references
from tests.stores import make_facts, make_table, numbers_of
from trainer.agents.base import Agent, AgentState
from trainer.data.nstep_windows import NStepBatch
from trainer.nn.networks import Params
from trainer.step.update import make_update

TABLE = make_table([30, 40], discount=0.9, S=4, A=2)
FACTS = make_facts(TABLE)
SIZE = 8
TINY: dict[str, Any] = {"discount": 0.9, "width": 8, "depth": 1}
KEY = 7
Losses = dict[str, float]
# (parameters, targets, batch, key) -> every loss, as it enters the total
Reference = Callable[[Params, Params, NStepBatch, jax.Array], Losses]


def make_batch(agent: Agent, size: int = SIZE) -> NStepBatch:
    """Windows of the table, some of them solved, some cut, some actions at a bound."""
    sampler = agent.sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, size))
    batch = sampler.gather(TABLE.observations, TABLE.actions, index)
    row = np.arange(size)
    solved = row % 3 == 0
    inside = np.ones_like(batch.valid_actions)
    if batch.chunks.shape[1] > 1:
        inside[row % 4 == 1, -1] = 0
    chunks = batch.chunks.copy()
    chunks[2, 0, 0] = 1.0
    return batch._replace(
        actions=chunks[:, 0],
        chunks=chunks,
        bootstraps=np.where(solved, 0, batch.bootstraps).astype(np.float32),
        valid=inside[:, -1],
        valid_actions=inside,
    )


@dataclass(frozen=True)
class Case:
    """An agent with parameters, targets and a batch, no parameter zero."""

    agent: Any
    params: Params
    targets: Params
    batch: NStepBatch


def make_case(agent: Any, seed: int = 0, scale: float = 0.4) -> Case:
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape)), shapes.params
    )
    targets = {
        name: jax.tree.map(lambda x: x * 1.1 + 0.02, params[name])
        for name in shapes.targets
    }
    # Double precision inside of `jax.enable_x64`, single outside.
    batch = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.asarray(0.0).dtype), make_batch(agent)
    )
    return Case(agent, params, targets, batch)


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compiles a function and calls it once: quicker than an operation at a time."""
    return jax.jit(function)(*arguments)


def check_update(
    case: Case, reference: Reference, trains: dict[str, str], *, target: str
) -> None:
    """Compares one update of an agent with what a reference says of it.

    Args:
        case: What to evaluate at.
        reference: The second implementation.
        trains: The one network that each loss may train.
        target: Network that has a target.
    """
    agent = case.agent
    start = AgentState(
        case.params,
        case.targets,
        agent.optimizer.init(case.params),
        jnp.zeros((), jnp.int32),
    )
    key = jax.random.key(KEY)
    after, metrics = run(make_update(agent), start, case.batch, key)

    numeric = jax.tree.map(np.asarray, (case.params, case.targets, case.batch))
    expected = reference(*numeric, key)
    assert expected.keys() == trains.keys()
    for name, value in expected.items():
        assert metrics.mean[name] == pytest.approx(value, rel=1e-6), name
    assert metrics.mean["loss"] == pytest.approx(sum(expected.values()), rel=1e-6)

    # Adam's first moment after one step is a tenth of the gradient.
    gradient = jax.tree.map(lambda x: 10 * np.asarray(x), after.opt_state[0].mu)
    assert set(trains.values()) == set(gradient)
    _check_gradient(numeric, reference, trains, gradient, key)

    assert after.step == 1
    assert set(after.targets) == {target}
    rate = agent.config.target_rate
    jax.tree.map(
        # From the parameters before the step, not after it.
        lambda old, online, new: np.testing.assert_allclose(
            new, (1 - rate) * old + rate * online, rtol=1e-12, atol=1e-12
        ),
        case.targets[target],
        case.params[target],
        after.targets[target],
    )
    jax.tree.map(
        # Nothing is clipped: the first step of Adam has the size of its rate.
        lambda old, new: np.testing.assert_allclose(
            np.abs(new - old).max(), agent.config.learning_rate, rtol=1e-2
        ),
        case.params,
        after.params,
    )


def check_losses(case: Case, reference: Reference) -> None:
    """Compares the losses alone."""
    key = jax.random.key(KEY)
    _, metrics = run(case.agent.total_loss, case.params, case.targets, case.batch, key)
    numeric = jax.tree.map(np.asarray, (case.params, case.targets, case.batch))
    for name, value in reference(*numeric, key).items():
        assert metrics.mean[name] == pytest.approx(value, rel=1e-6), name


def _check_gradient(
    numeric: tuple[Params, Params, NStepBatch],
    reference: Reference,
    trains: dict[str, str],
    gradient: Params,
    key: jax.Array,
) -> None:
    """Slopes of a network's own losses along random directions, all else held fixed.

    The gradient of the total is compared, so one that leaks from another loss into a
    network is found as well.
    """
    params, targets, batch = numeric
    rng = np.random.default_rng(1)
    for network in params:
        own = [name for name, trained in trains.items() if trained == network]
        for _ in range(2):
            direction = jax.tree.map(
                lambda x: rng.normal(size=x.shape), params[network]
            )
            ends = []
            for step in (1e-6, -1e-6):
                moved = jax.tree.map(
                    lambda x, d, step=step: x + step * d, params[network], direction
                )
                found = reference({**params, network: moved}, targets, batch, key)
                ends.append(sum(found[name] for name in own))
            products = jax.tree.map(
                lambda g, d: float(np.sum(g * d)), gradient[network], direction
            )
            assert sum(jax.tree.leaves(products)) == pytest.approx(
                (ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7
            ), network


def check_first_state(agent: Any, *, target: str) -> None:
    """The target starts as a copy of its network, without being drawn."""

    def init(key: jax.Array) -> AgentState:
        state = agent.init(key)
        jax.tree.map(_assert_same, state.targets, {target: state.params[target]})
        return state

    jax.eval_shape(init, jax.random.key(0))


def _assert_same(one: object, other: object) -> None:
    assert one is other


# References.


def mlp(params: Params, *inputs: np.ndarray) -> np.ndarray:
    """Dense, GELU by its tanh formula, LayerNorm if there is one, ..., Dense."""
    x = np.concatenate(inputs, axis=-1)
    layer = 0
    while f"hidden_{layer}" in params:
        dense = params[f"hidden_{layer}"]
        x = x @ dense["kernel"] + dense["bias"]
        x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if f"norm_{layer}" in params:
            norm = params[f"norm_{layer}"]
            centred = x - x.mean(axis=-1, keepdims=True)
            deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-6)
            x = centred / deviation * norm["scale"] + norm["bias"]
        layer += 1
    return x @ params["output"]["kernel"] + params["output"]["bias"]


def twins(params: Params, *inputs: np.ndarray) -> list[np.ndarray]:
    """Both members' outputs without the last axis, one after the other."""
    return [mlp(references.member(params, j), *inputs)[..., 0] for j in range(2)]


def normal(key: jax.Array, *shape: int) -> np.ndarray:
    return np.asarray(jax.random.normal(key, shape, jnp.float64))


def flow_actions(
    net: Params, states: np.ndarray, noise: np.ndarray, *, steps: int
) -> np.ndarray:
    """Actions of a behaviour flow, clipped at the end."""
    ends = references.flow_samples(
        lambda x, time: mlp(net, states, x, time), noise, steps
    )
    return np.clip(ends, -1, 1)


def matching_errors(
    net: Params, states: np.ndarray, data: np.ndarray, key: jax.Array
) -> np.ndarray:
    """Squared errors of a flow's velocity ``[B, D]``, with the product's draws."""
    noise_key, time_key = jax.random.split(key)
    noise = normal(noise_key, *data.shape)
    time = np.asarray(jax.random.uniform(time_key, (len(data), 1), jnp.float64))
    point = (1 - time) * noise + time * data
    return np.square(mlp(net, states, point, time) - (data - noise))


def clipped(actions: np.ndarray) -> np.ndarray:
    """Recorded actions as they are trained on."""
    return np.clip(actions, -(1 - 1e-5), 1 - 1e-5)
