"""The shapes of an agent's networks: of any agent with JAX, of VAST without.

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
        name: Name of the network among the parameters.
        role: ``"optimised"``, or ``"target"`` for a slowly moving copy.
        layers: Inputs and outputs of the dense layers, in order.
        copies: Number of independent copies, on leading axes of the parameters.
        parameters: Number of parameters of all copies.
    """

    name: str
    role: Literal["optimised", "target"]
    layers: tuple[tuple[int, int], ...]
    copies: int
    parameters: int

    @property
    def chain(self) -> tuple[int, ...] | None:
        """Widths from input to output; None if layers do not follow one another."""
        outputs = [layer[1] for layer in self.layers]
        if not outputs or outputs[:-1] != [layer[0] for layer in self.layers[1:]]:
            return None
        return (self.layers[0][0], *outputs)


def read_networks(state: "AgentState") -> tuple[Network, ...]:
    """Reads the networks of an agent from the shapes of its state.

    Args:
        state: State that ``agent.init`` returns, or its abstract shapes.

    Returns:
        The optimised networks by name, then the targets.
    """
    roles: tuple[tuple[Literal["optimised", "target"], Any], ...] = (
        ("optimised", state.params),
        ("target", state.targets),
    )
    return tuple(
        _read_network(name, role, tree)
        for role, trees in roles
        for name, tree in sorted(trees.items())
    )


def vast_networks(
    config: VASTConfig, *, observation_dim: int, action_dim: int
) -> tuple[Network, ...]:
    """Computes the networks of VAST without JAX.

    A test compares them with ``read_networks`` of the agent's state.

    Args:
        config: Hyperparameters of the agent.
        observation_dim: Components S of an observation.
        action_dim: Components A of an action.

    Returns:
        The same networks as ``read_networks`` returns.
    """
    S, A = observation_dim, action_dim
    # The two critics are stacked on a leading axis, and so are their targets.
    critic = _make_perceptron("critic", S + A, 1, config, copies=2)
    return (
        critic,
        # State, goal, noisy action and time of the flow.
        _make_perceptron("exec", 2 * S + A + 1, A, config),
        # Both ends of a segment, and its length.
        _make_perceptron("segment", 2 * S + 1, 1, config),
        # State, time, and the noisy pair of a horizon and a sub-goal.
        _make_perceptron("stitch", 2 * S + 2, 1 + S, config),
        _make_perceptron("value", S, 1, config),
        dataclasses.replace(critic, role="target"),
    )


def _make_perceptron(
    name: str, inputs: int, outputs: int, config: VASTConfig, *, copies: int = 1
) -> Network:
    """Makes the shapes of an MLP with the agent's width and depth."""
    widths = (inputs, *(config.width,) * config.depth, outputs)
    layers = tuple(itertools.pairwise(widths))
    kernels = sum(rows * columns for rows, columns in layers)
    # Each unit has a bias; each hidden unit also LayerNorm's scale and shift.
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
    """Selects the layers and copies of the optimised networks, by name."""
    return {
        network.name: (network.layers, network.copies)
        for network in networks
        if network.role == "optimised"
    }


def _read_network(
    name: str, role: Literal["optimised", "target"], tree: Any
) -> Network:
    """Reads the shapes of one network from its parameters."""
    # Imported here, because the rest of this module must not need JAX.
    import jax

    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    kernels = [
        leaf.shape
        for path, leaf in sorted(leaves, key=lambda item: _split_numbers(item[0]))
        if path.rpartition("/")[2] == "kernel"
    ]
    return Network(
        name=name,
        role=role,
        # Leading axes are those of copies.
        layers=tuple((shape[-2], shape[-1]) for shape in kernels),
        copies=math.prod(kernels[0][:-2]) if kernels else 1,
        parameters=sum(leaf.size for _, leaf in leaves),
    )


def _split_numbers(path: str) -> list[tuple[str, int]]:
    """Splits a path into a sorting key that puts ``hidden_2`` before ``hidden_10``."""
    parts = re.findall(r"(\D*)(\d*)", path)
    return [(text, int(number or 0)) for text, number in parts]
