"""Describes a configuration (networks, parameters, cost) without data or devices.

No parameter is drawn, and nothing is compiled.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from trainer.agents.registry import make_agent
from trainer.config import Config, encode
from trainer.costs import flops
from trainer.costs.accelerators import ACCELERATORS, Accelerator
from trainer.costs.network_shapes import Network, optimised_layers, read_networks
from trainer.costs.random_data import make_shape_facts
from trainer.step.state import init_agent

UPDATES = 1_000_000
# The bounds are for this accelerator.
_DEVICE = ACCELERATORS["h100"]


@dataclass(frozen=True)
class Cost:
    """Cost of one update of all seeds.

    Attributes:
        calls: Evaluations of networks, for one seed.
        flops_per_update: Operations of the dense layers, for all seeds.
        device: Accelerator that the bounds are for.
        bounds: Least time of a million updates on one such accelerator.
    """

    calls: tuple[flops.Call, ...]
    flops_per_update: int
    device: Accelerator
    bounds: tuple[flops.Bound, ...]

    def to_json(self) -> dict[str, Any]:
        """Makes plain values that JSON can hold."""
        return {
            "flops_per_update": self.flops_per_update,
            "calls": [dataclasses.asdict(call) for call in self.calls],
            "device": dataclasses.asdict(self.device),
            "hours_per_million_updates": [
                dataclasses.asdict(bound) | {"hours": bound.hours, "rules": bound.rules}
                for bound in self.bounds
            ],
        }


@dataclass(frozen=True)
class Description:
    """Description of a configuration.

    Attributes:
        config: The configuration.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
        networks: Networks of the agent, the optimised ones first.
        state_bytes: Bytes of one seed's parameters, their average if one is kept,
            targets and optimiser state.
        cost: Cost of an update; None if the agent's operations are not counted.
    """

    config: Config
    observation_dim: int
    action_dim: int
    networks: tuple[Network, ...]
    state_bytes: int
    cost: Cost | None

    def count_parameters(self, role: str | None = None) -> int:
        """Counts the parameters of one seed's networks, of one role or of all."""
        return sum(
            network.parameters
            for network in self.networks
            if role in (None, network.role)
        )

    def to_json(self) -> dict[str, Any]:
        """Makes plain values that JSON can hold."""
        return {
            "config": encode(self.config),
            "observation_dim": self.observation_dim,
            "action_dim": self.action_dim,
            "networks": [
                dataclasses.asdict(network) | {"chain": network.chain}
                for network in self.networks
            ],
            "parameters": {
                "optimised": self.count_parameters("optimised"),
                "target": self.count_parameters("target"),
                "total": self.count_parameters(),
            },
            "state_bytes": self.state_bytes,
            "cost": None if self.cost is None else self.cost.to_json(),
        }


def describe(config: Config, *, observation_dim: int, action_dim: int) -> Description:
    """Describes a configuration.

    Args:
        config: Configuration, resolved for a task.
        observation_dim: Components of an observation.
        action_dim: Components of an action.

    Returns:
        The description.
    """
    agent = make_agent(config.agent, make_shape_facts(observation_dim, action_dim))
    # Only shapes are needed, and the widest networks may not fit in this machine.
    state = jax.eval_shape(partial(init_agent, agent), jax.random.key(0))
    networks = read_networks(state)
    state_bytes = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )
    return Description(
        config=config,
        observation_dim=observation_dim,
        action_dim=action_dim,
        networks=networks,
        state_bytes=state_bytes,
        cost=_compute_cost(config, networks, state_bytes),
    )


def _compute_cost(
    config: Config, networks: tuple[Network, ...], state_bytes: int
) -> Cost | None:
    """Computes the cost of an update; None if the agent's is not counted."""
    list_calls = flops.CALLS.get(config.agent.name)
    if list_calls is None:
        return None
    # Microbatches do not matter here: they split the same operations.
    calls = list_calls(config.agent, config.trainer.batch_size)
    seeds = config.trainer.seeds
    operations = seeds * flops.update_flops(calls, optimised_layers(networks))
    return Cost(
        calls=calls,
        flops_per_update=operations,
        device=_DEVICE,
        bounds=flops.compute_bounds(
            operations, seeds * state_bytes, _DEVICE, updates=UPDATES
        ),
    )
