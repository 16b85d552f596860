"""One update of any agent: the gradient of its loss, a step of Adam, then the targets.

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

    Args:
        agent: The algorithm.
        microbatches: N, parts of a batch whose gradients are averaged one after
            another, so that only the activations of one part are in memory. Divides
            B. Each part draws noise of its own.
        gather: Lays parameters out for evaluating networks.
        scatter: Lays their gradient out as they lie between updates.
        norm: Measures the gradient so laid out.

    Returns:
        The update, a pure function.
    """
    optimizer = optax.with_extra_args_support(agent.optimizer)

    def gradient_of(
        state: AgentState, batch: Any, key: jax.Array
    ) -> tuple[Params, Metrics]:
        # Brought together once for all evaluations of an update: a flow's many steps
        # would fetch their layers anew each.
        def loss(
            params: Params, targets: Params, batch: Any, key: jax.Array
        ) -> tuple[jax.Array, Metrics]:
            return agent.total_loss(gather(params), gather(targets), batch, key)

        gradient, metrics = jax.grad(loss, has_aux=True)(
            state.params, state.targets, batch, key
        )
        return scatter(gradient), metrics

    def accumulated(
        state: AgentState, batch: Any, key: jax.Array
    ) -> tuple[Params, Metrics]:
        def add(total: Params, part: tuple[Any, jax.Array]) -> tuple[Params, Metrics]:
            gradient, metrics = gradient_of(state, *part)
            return jax.tree.map(jnp.add, total, gradient), metrics

        # Rows of a part are a stride apart: each device goes on holding its own.
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
        compute = gradient_of if microbatches == 1 else accumulated
        gradient, metrics = compute(state, batch, key)
        metrics.mean["gradient_norm"] = norm(gradient)
        steps, opt_state = optimizer.update(
            gradient,
            state.opt_state,
            state.params,
            norm=metrics.mean["gradient_norm"],
        )
        params = optax.apply_updates(state.params, steps)
        targets = agent.move_targets(state.targets, before=state.params, after=params)
        return AgentState(params, targets, opt_state, state.step + 1), metrics

    return update
