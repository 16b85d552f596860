"""One update of any agent: gradient of its loss, step of Adam, targets, average.

Dimensions: B batch, N microbatches.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.agents.base import Agent, AgentState, Metrics
from trainer.nn import optimizers
from trainer.nn.networks import Params

# (state, batch, key) -> (state, metrics)
Update = Callable[[AgentState, Any, jax.Array], tuple[AgentState, Metrics]]
# Moves a tree of parameters, or of their gradients, to another layout on a mesh.
Layout = Callable[[Params], Params]


def make_update(
    agent: Agent[Any],
    *,
    microbatches: int = 1,
    gather: Layout = lambda params: params,
    scatter: Layout = lambda gradient: gradient,
    norm: Callable[[Params], jax.Array] = optimizers.global_norm,
) -> Update:
    """Builds the update of one seed.

    The layouts are arguments, so that this module knows nothing of meshes.

    Args:
        agent: The algorithm.
        microbatches: Parts N of a batch whose gradients are averaged one after
            another, so that only the activations of one part are in memory. N divides
            B. Each part draws its own noise.
        gather: Lays parameters out for evaluating networks.
        scatter: Lays the gradient out as parameters lie between updates.
        norm: Measures the gradient in that layout.

    Returns:
        The update, a pure function.
    """
    optimizer = optax.with_extra_args_support(agent.optimizer)

    def compute_gradient(
        state: AgentState, batch: Any, key: jax.Array
    ) -> tuple[Params, Metrics]:
        # Parameters are gathered once for all evaluations of an update; otherwise each
        # of a flow's steps would fetch its layers again.
        def loss(
            params: Params, targets: Params, batch: Any, key: jax.Array
        ) -> tuple[jax.Array, Metrics]:
            return agent.total_loss(gather(params), gather(targets), batch, key)

        gradient, metrics = jax.grad(loss, has_aux=True)(
            state.params, state.targets, batch, key
        )
        return scatter(gradient), metrics

    def accumulate_gradient(
        state: AgentState, batch: Any, key: jax.Array
    ) -> tuple[Params, Metrics]:
        def add(total: Params, part: tuple[Any, jax.Array]) -> tuple[Params, Metrics]:
            gradient, metrics = compute_gradient(state, *part)
            return jax.tree.map(jnp.add, total, gradient), metrics

        # Part n takes rows n, n + N, ...: every device then keeps its own rows, where
        # consecutive rows would all lie on one device.
        parts = jax.tree.map(
            lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1), batch
        )
        zeros = jax.tree.map(jnp.zeros_like, state.params)
        total, metrics = jax.lax.scan(
            add, zeros, (parts, jax.random.split(key, microbatches))
        )
        return jax.tree.map(lambda x: x / microbatches, total), metrics.reduce()

    def update(
        state: AgentState, batch: Any, key: jax.Array
    ) -> tuple[AgentState, Metrics]:
        compute = compute_gradient if microbatches == 1 else accumulate_gradient
        gradient, metrics = compute(state, batch, key)
        # Measured once, for the log and for clipping.
        metrics.mean["gradient_norm"] = norm(gradient)
        steps, opt_state = optimizer.update(
            gradient,
            state.opt_state,
            state.params,
            norm=metrics.mean["gradient_norm"],
        )
        params = optax.apply_updates(state.params, steps)
        # Agents choose which critics their targets follow: the baselines' published
        # code takes those from before the step.
        targets = agent.move_targets(state.targets, before=state.params, after=params)
        average = state.average
        if average is not None:
            average = optimizers.soft_update(
                average, params, rate=average_rate(agent.config.ema_decay, state.step)
            )
        return AgentState(params, targets, opt_state, state.step + 1, average), metrics

    return update


def average_rate(decay: float, step: jax.Array) -> jax.Array:
    """Computes the rate at which averaged parameters follow the trained ones.

    Early in training the average follows faster than ``decay`` says. At first it spans
    about the last ninth of the updates, so that the first parameters are soon
    forgotten.

    Args:
        decay: Decay of the average once training is long, in (0, 1).
        step: ``i32[]``, updates done before this one.

    Returns:
        ``f32[]``, ``1 - min(decay, (1 + step) / (10 + step))``.

    References:
        Polyak & Juditsky (1992), Acceleration of stochastic approximation by averaging;
        the schedule is that of TensorFlow's ``ExponentialMovingAverage``.
    """
    return 1 - jnp.minimum(decay, (1 + step) / (10 + step))
