"""Memory of VAST's training call on a chip, by a formula; nothing here needs JAX.

It stands for what compilers plan (`python -m trainer compile`) where none was asked: a
test holds it to what they planned for programs of several sizes and meshes.
"""

from dataclasses import dataclass

from trainer.agents.vast_config import VASTConfig
from trainer.costs import flops
from trainer.costs.accelerators import Accelerator
from trainer.costs.network_shapes import Network, optimised_layers, vast_networks

_FLOAT_BYTES = 4
_BFLOAT16_BYTES = 2
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


def gathered_bytes(config: VASTConfig, accelerator: Accelerator | None) -> int:
    """Bytes of a parameter on its way to other chips: c.

    2 where hidden layers are bfloat16, which are cast before they travel, and on TPUs,
    whose compiler has float32 kernels travel as its products take them; else 4.

    Args:
        config: Of the agent.
        accelerator: What the chips are; None for others.

    Returns:
        Bytes.
    """
    if accelerator is not None and accelerator.rounds_to_bfloat16:
        return _BFLOAT16_BYTES
    return gradient_bytes(config)


def gradient_bytes(config: VASTConfig) -> int:
    """Bytes of a gradient's element on its way to other chips: e, 2 if cast, else 4."""
    return _BFLOAT16_BYTES if config.precision == "bfloat16" else _FLOAT_BYTES


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


def call_bytes(
    shape: Shape,
    spread: Spread,
    accelerator: Accelerator | None,
    *,
    seeds: int = 1,
    rows: int = 0,
) -> float:
    """Memory of a chip: state, what is between, activations, rows and program.

    Of a seed, ``4 (3 P + T) / (f t) + between + activations``, times s / S.

    What is between is ``4 P / t``, the gradients, where the state is whole: all wait
    for the norm that they are clipped by. Where it is split they wait in parts, in the
    place of kernels that were gathered before:

    - on TPUs ``c P / t``. Kernels are gathered late, those of the targets are let go
      before the last of the others come, and these go one by one as their gradients do;
    - else ``(c (P + T) + e G) / t``. All are gathered at the start of an update, which
      hides it, and are there when the first gradient is whole, at the worst that of the
      network with most parameters, G: both critics.

    c and e are of ``gathered_bytes`` and ``gradient_bytes``. Of layers in t parts every
    second one's outputs are whole.

    Args:
        shape: Of networks and batch.
        spread: Over S, d, f and t chips.
        accelerator: What the chips are; None for others, that send float32.
        seeds: s.
        rows: Of the store, on each chip: ``4 (S' + A')`` bytes each, components
            rounded up to eight as TPUs lay them out.

    Returns:
        Bytes.
    """
    between = _FLOAT_BYTES * parameters(shape)
    if spread.fsdp > 1:
        between = _between(shape, accelerator)
    kept = activation_bytes(shape, chips=spread.data * spread.fsdp)
    state = state_bytes(shape) / (spread.fsdp * spread.tensor)
    one = state + between / spread.tensor + kept * (1 + 1 / spread.tensor) / 2
    components = sum(
        -(-size // 8) * 8 for size in (shape.observation_dim, shape.action_dim)
    )
    held = _FLOAT_BYTES * components * rows + _PROGRAM_BYTES
    return one * seeds / spread.seed + held


def _between(shape: Shape, accelerator: Accelerator | None) -> int:
    """Bytes between the parts of a state that is split, see ``call_bytes``."""
    gathered = gathered_bytes(shape.config, accelerator)
    if accelerator is not None and accelerator.rounds_to_bfloat16:
        return gathered * parameters(shape)
    kept = [network.parameters for network in shape.networks]
    # Targets copy a network, so that none of them is larger than all.
    return gathered * sum(kept) + gradient_bytes(shape.config) * max(kept)
