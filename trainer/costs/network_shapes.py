"""An agent's networks: read off the shapes of its state, or VAST's without JAX.

Dimensions: S observation, A action.
"""

import dataclasses
import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainer.agents.vast_config import VASTConfig

if TYPE_CHECKING:
    from trainer.agents.base import AgentState


@dataclass(frozen=True)
class Network:
    """One network of an agent.

    Attributes:
        name: Among the parameters.
        role: Whether it is optimised, or a slowly moving target.
        layers: Inputs and outputs of its dense layers, in order.
        copies: Independent copies, on leading axes of its parameters.
        parameters: Of all copies.
    """

    name: str
    role: Literal["optimised", "target"]
    layers: tuple[tuple[int, int], ...]
    copies: int
    parameters: int

    @property
    def chain(self) -> tuple[int, ...] | None:
        """Widths from input to output; None if its layers do not follow one another."""
        outputs = [layer[1] for layer in self.layers]
        if not outputs or outputs[:-1] != [layer[0] for layer in self.layers[1:]]:
            return None
        return (self.layers[0][0], *outputs)


def read_networks(state: "AgentState") -> tuple[Network, ...]:
    """Reads an agent's networks off the shapes of its state.

    Args:
        state: As ``agent.init`` returns it, or its abstract shapes.

    Returns:
        The optimised networks by name, then the targets.
    """
    roles: tuple[tuple[Literal["optimised", "target"], Any], ...] = (
        ("optimised", state.params),
        ("target", state.targets),
    )
    return tuple(
        _network(name, role, tree)
        for role, trees in roles
        for name, tree in sorted(trees.items())
    )


def vast_networks(
    config: VASTConfig, *, observation_dim: int, action_dim: int
) -> tuple[Network, ...]:
    """Works out VAST's networks where there is no JAX to read them off with.

    A test holds this equal to ``read_networks`` of the agent's state.

    Args:
        config: Of the agent.
        observation_dim: S.
        action_dim: A.

    Returns:
        As ``read_networks``.
    """
    S, A = observation_dim, action_dim
    critic = _perceptron("critic", S + A, 1, config, copies=2)
    return (
        critic,
        # State, goal, noisy action and time of the flow.
        _perceptron("exec", 2 * S + A + 1, A, config),
        # Both ends of a segment and its length.
        _perceptron("segment", 2 * S + 1, 1, config),
        # State, time, and the noisy pair of a horizon and a sub-goal.
        _perceptron("stitch", 2 * S + 2, 1 + S, config),
        _perceptron("value", S, 1, config),
        dataclasses.replace(critic, role="target"),
    )


def _perceptron(
    name: str, inputs: int, outputs: int, config: VASTConfig, *, copies: int = 1
) -> Network:
    widths = (inputs, *(config.width,) * config.depth, outputs)
    layers = tuple(itertools.pairwise(widths))
    kernels = sum(rows * columns for rows, columns in layers)
    # A bias for each unit; LayerNorm's scale and shift for each hidden one.
    biases = 3 * config.width * config.depth + outputs
    return Network(
        name=name,
        role="optimised",
        layers=layers,
        copies=copies,
        parameters=copies * (kernels + biases),
    )


def optimised_layers(
    networks: tuple[Network, ...],
) -> dict[str, tuple[tuple[tuple[int, int], ...], int]]:
    """Layers and copies of the optimised networks, by name."""
    return {
        network.name: (network.layers, network.copies)
        for network in networks
        if network.role == "optimised"
    }


def _network(name: str, role: Literal["optimised", "target"], tree: Any) -> Network:
    import jax  # Whoever has a state has JAX; the rest of the module needs none.

    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    kernels = [
        leaf.shape
        for path, leaf in sorted(leaves, key=lambda item: _natural(item[0]))
        if path.rpartition("/")[2] == "kernel"
    ]
    return Network(
        name=name,
        role=role,
        layers=tuple((shape[-2], shape[-1]) for shape in kernels),
        copies=math.prod(kernels[0][:-2]) if kernels else 1,
        parameters=sum(leaf.size for _, leaf in leaves),
    )


def _natural(path: str) -> list[tuple[str, int]]:
    """Orders ``hidden_2`` before ``hidden_10``."""
    parts = re.findall(r"(\D*)(\d*)", path)
    return [(text, int(number or 0)) for text, number in parts]
