"""Memory of VAST's training call on a chip, by a formula; nothing here needs JAX.

It stands for what compilers plan (`python -m trainer compile`) where none was asked: a
test holds it to what they planned for programs of several sizes and meshes.
"""

from dataclasses import dataclass

from trainer.agents.vast_config import VASTConfig
from trainer.costs import flops
from trainer.costs.network_shapes import Network, optimised_layers, vast_networks

_FLOAT_BYTES = 4
# Of the program itself: 27 MB for cube-single-play on a v5e, whatever its width.
_PROGRAM_BYTES = 27_000_000


@dataclass(frozen=True)
class Shape:
    """What decides the cost of an update of VAST.

    Attributes:
        config: Of the agent: width, depth and flow steps.
        batch_size: B, of all chips together.
        observation_dim: S.
        action_dim: A.
    """

    config: VASTConfig
    batch_size: int
    observation_dim: int
    action_dim: int

    @property
    def networks(self) -> tuple[Network, ...]:
        """VAST's networks, the targets last."""
        return vast_networks(
            self.config,
            observation_dim=self.observation_dim,
            action_dim=self.action_dim,
        )


def parameters(shape: Shape) -> int:
    """Trained parameters P, of one seed."""
    return sum(
        network.parameters for network in shape.networks if network.role == "optimised"
    )


def state_bytes(shape: Shape) -> int:
    """Bytes of one seed's state: ``4 * (3 P + T)``.

    Parameters and Adam's two moments, and the T parameters of the target critics.
    """
    kept = sum(network.parameters for network in shape.networks)
    return _FLOAT_BYTES * (kept + 2 * parameters(shape))


def activation_bytes(shape: Shape, *, chips: int) -> int:
    """Bytes kept for the backward pass on a chip: ``12 w depth (B / n) rows``.

    Three float32 arrays a hidden layer (before and after the activation, after
    LayerNorm), on the rows of the network that is trained on most of them: losses are
    independent, and where it matters compilers take them one after another.
    """
    local = -(-shape.batch_size // chips)
    layers = optimised_layers(shape.networks)
    rows = max(
        call.rows * call.times * layers[call.network][1]
        for call in flops.vast_calls(shape.config, local)
        if call.trained
    )
    return 3 * _FLOAT_BYTES * shape.config.width * shape.config.depth * rows


@dataclass(frozen=True)
class Spread:
    """How a run lies on chips: sizes of the mesh's axes.

    Attributes:
        seed: Chips that seeds are spread over.
        data: Chips that rows of a batch are spread over, the state whole on each.
        fsdp: Chips that rows and state are spread over.
        tensor: Chips that every layer is spread over.
    """

    seed: int = 1
    data: int = 1
    fsdp: int = 1
    tensor: int = 1


def call_bytes(shape: Shape, spread: Spread, *, seeds: int = 1, rows: int = 0) -> float:
    """Memory of a chip: state, what is between, activations, rows and program.

    Of a seed, ``4 (3 P + T) / (f t) + between + activations``, times s / S.

    What is between is ``4 P / t``, the gradients, where the state is whole, and
    ``4 (2 P + T) / t`` where it is split: an update brings all parameters and targets
    together before it evaluates any network. Of layers in t parts every second one's
    outputs are whole.

    Args:
        shape: Of networks and batch.
        spread: Over S, d, f and t chips.
        seeds: s.
        rows: Of the store, on each chip: ``4 (S' + A')`` bytes each, components
            rounded up to eight as TPUs lay them out.

    Returns:
        Bytes.
    """
    P = parameters(shape)
    targets = sum(each.parameters for each in shape.networks) - P
    gathered = 2 * P + targets if spread.fsdp > 1 else P
    between = _FLOAT_BYTES * gathered / spread.tensor
    kept = activation_bytes(shape, chips=spread.data * spread.fsdp)
    state = state_bytes(shape) / (spread.fsdp * spread.tensor)
    one = state + between + kept * (1 + 1 / spread.tensor) / 2
    components = sum(
        -(-size // 8) * 8 for size in (shape.observation_dim, shape.action_dim)
    )
    held = _FLOAT_BYTES * components * rows + _PROGRAM_BYTES
    return one * seeds / spread.seed + held
