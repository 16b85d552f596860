"""What a configuration comes to, before there are data or devices.

Nothing is drawn or compiled.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from trainer.agents import make_agent
from trainer.config import Config, encode
from trainer.costs import flops
from trainer.costs.accelerators import ACCELERATORS, Accelerator
from trainer.costs.network_shapes import Network, optimised_layers, read_networks
from trainer.costs.random_data import shape_facts

UPDATES = 1_000_000
# What bounds are given for.
_DEVICE = ACCELERATORS["h100"]


@dataclass(frozen=True)
class Cost:
    """What one update of all seeds costs.

    Attributes:
        calls: Evaluations of networks by one seed.
        flops_per_update: Operations of their dense layers, of all seeds.
        device: That the bounds are for.
        bounds: Least time of a million updates on one such device.
    """

    calls: tuple[flops.Call, ...]
    flops_per_update: int
    device: Accelerator
    bounds: tuple[flops.Bound, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
    """What a configuration comes to.

    Attributes:
        config: As resolved for a task.
        observation_dim: S.
        action_dim: A.
        networks: Of the agent; the optimised ones first.
        state_bytes: Parameters, targets and optimiser state, of one seed.
        cost: None where the agent's evaluations are not counted.
    """

    config: Config
    observation_dim: int
    action_dim: int
    networks: tuple[Network, ...]
    state_bytes: int
    cost: Cost | None

    def parameters(self, role: str | None = None) -> int:
        """Parameters of all networks, or of those of one role, of one seed."""
        return sum(
            network.parameters
            for network in self.networks
            if role in (None, network.role)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "config": encode(self.config),
            "observation_dim": self.observation_dim,
            "action_dim": self.action_dim,
            "networks": [
                dataclasses.asdict(network) | {"chain": network.chain}
                for network in self.networks
            ],
            "parameters": {
                "optimised": self.parameters("optimised"),
                "target": self.parameters("target"),
                "total": self.parameters(),
            },
            "state_bytes": self.state_bytes,
            "cost": None if self.cost is None else self.cost.to_json(),
        }


def describe(config: Config, *, observation_dim: int, action_dim: int) -> Description:
    """Works out what a configuration comes to.

    Args:
        config: As resolved for a task.
        observation_dim: S.
        action_dim: A.

    Returns:
        The description.
    """
    agent = make_agent(config.agent, shape_facts(observation_dim, action_dim))
    state = jax.eval_shape(agent.init, jax.random.key(0))
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
        cost=_cost(config, networks, state_bytes),
    )


def _cost(
    config: Config, networks: tuple[Network, ...], state_bytes: int
) -> Cost | None:
    count_calls = flops.CALLS.get(config.agent.name)
    if count_calls is None:
        return None
    calls = count_calls(config.agent, config.trainer.batch_size)
    seeds = config.trainer.seeds
    operations = seeds * flops.update_flops(calls, optimised_layers(networks))
    return Cost(
        calls=calls,
        flops_per_update=operations,
        device=_DEVICE,
        bounds=flops.bounds(operations, seeds * state_bytes, _DEVICE, updates=UPDATES),
    )
