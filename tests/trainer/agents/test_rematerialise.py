"""Evaluations done twice rather than kept: less is kept, and nothing else changes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.stores import make_facts, make_table
from tests.trainer.agents.baseline_cases import run
from trainer.agents.registry import AGENTS
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.costs.random_data import draw_batches
from trainer.nn import flow, networks
from trainer.nn.networks import MLP

TABLE = make_table([60, 70], S=4, A=2)
CONFIG = VASTConfig(width=16, depth=2, flow_steps=2)
STEPS, ROWS, WIDTH = 6, 16, 64


def sampled(params: Any, noise: jax.Array, *, rematerialise: bool) -> jax.Array:
    net = MLP(3, WIDTH, depth=3, rematerialise=rematerialise)
    return flow.integrate(
        lambda x, time: networks.apply(net, params, x, time), noise, steps=STEPS
    )


def test_of_a_sampled_flow_the_points_are_kept_and_no_layer() -> None:
    params = run(
        lambda key: networks.init(MLP(3, WIDTH, depth=3), key, 3, 1), jax.random.key(0)
    )
    noise = jax.random.normal(jax.random.key(1), (ROWS, 3))

    def kept(rematerialise: bool) -> tuple[int, Any]:
        _, back = run(
            lambda params: jax.vjp(
                lambda params: sampled(params, noise, rematerialise=rematerialise),
                params,
            ),
            params,
        )
        (gradient,) = run(back, jnp.ones((ROWS, 3)))
        return sum(leaf.nbytes for leaf in jax.tree.leaves(back)), gradient

    (less, ours), (all_of_it, theirs) = kept(True), kept(False)
    # A step's hidden layers: of each at least its product and what follows.
    layers = STEPS * 3 * 2 * ROWS * WIDTH * 4
    assert all_of_it > layers
    assert less < all_of_it - layers
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        ours,
        theirs,
    )


def test_losses_and_gradients_are_the_same() -> None:
    found = []
    for config in (CONFIG, dataclasses.replace(CONFIG, rematerialise=True)):
        agent = VAST(config, make_facts(TABLE))
        state = run(agent.init, jax.random.key(0))
        batch = jax.tree.map(
            lambda x: jnp.asarray(x[0, 0]),
            draw_batches(agent, TABLE, updates=1, seeds=(0,), size=16),
        )
        found.append(
            run(
                jax.value_and_grad(agent.total_loss, has_aux=True),
                *(state.params, state.targets, batch, jax.random.key(1)),
            )
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found
    )


def test_every_network_of_every_agent_follows_the_setting() -> None:
    for name, kind in AGENTS.items():
        config = kind.config(width=8, depth=1, rematerialise=True)
        agent = kind.agent(config, make_facts(TABLE))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        batch = jax.tree.map(
            lambda x: jnp.asarray(x[0, 0]),
            draw_batches(agent, TABLE, updates=1, seeds=(0,), size=4),
        )
        traced = jax.make_jaxpr(agent.total_loss)(
            state.params, state.targets, batch, jax.random.key(1)
        )
        assert not products_kept(traced.jaxpr), name


def products_kept(jaxpr: Any) -> list[Any]:
    """Products outside of what is computed anew."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation)
        if equation.primitive.name not in ("remat2", "checkpoint", "remat"):
            for inner in jax.tree.leaves(
                list(equation.params.values()),
                is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += products_kept(inner)
    return found
