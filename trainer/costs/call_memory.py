"""Memory of VAST's training call on a chip, by a formula that needs no JAX.

The formula estimates what a compiler would plan (`python -m trainer compile`), where
none is installed. A test compares it with the plans of compiled programs of several
sizes and meshes.
"""

from dataclasses import dataclass

from trainer.agents.vast_config import VASTConfig
from trainer.costs import flops
from trainer.costs.accelerators import Accelerator
from trainer.costs.network_shapes import Network, optimised_layers, vast_networks

_FLOAT_BYTES = 4
_BFLOAT16_BYTES = 2
# Bytes of the program itself: 27 MB for cube-single-play on a v5e, at any width.
_PROGRAM_BYTES = 27_000_000


@dataclass(frozen=True)
class Shape:
    """The sizes that the cost of an update of VAST depends on.

    Attributes:
        config: Hyperparameters of the agent: width, depth and flow steps.
        batch_size: Rows B of a batch, on all chips together.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
    """

    config: VASTConfig
    batch_size: int
    observation_dim: int
    action_dim: int

    @property
    def networks(self) -> tuple[Network, ...]:
        """Networks of the agent, the targets last."""
        return vast_networks(
            self.config,
            observation_dim=self.observation_dim,
            action_dim=self.action_dim,
        )


def count_parameters(shape: Shape) -> int:
    """Counts the trained parameters P of one seed."""
    return sum(
        network.parameters for network in shape.networks if network.role == "optimised"
    )


def state_bytes(shape: Shape) -> int:
    """Computes the bytes of one seed's state: ``4 * (3 P + T)``.

    The state holds the P parameters, Adam's two moments of each, and the T parameters
    of the target critics. An average of the parameters is P more.
    """
    with_targets = sum(network.parameters for network in shape.networks)
    copies = 3 if shape.config.ema_decay else 2
    return _FLOAT_BYTES * (with_targets + copies * count_parameters(shape))


def activation_bytes(shape: Shape, *, chips: int) -> int:
    """Computes the bytes kept for the backward pass: ``12 w depth (B / n) rows``.

    Of each hidden layer three float32 arrays are kept: before and after the activation,
    and after LayerNorm. Their rows are those of the network that is trained on most
    rows. The losses are independent of each other, and where memory is short compilers
    compute them one after another.
    """
    # Rounded up: the chip with most rows decides.
    local = -(-shape.batch_size // chips)
    # Evaluations that are not trained, such as sampled flows, keep nothing.
    layers = optimised_layers(shape.networks)
    rows = max(
        call.rows * call.times * layers[call.network][1]
        for call in flops.list_vast_calls(shape.config, local)
        if call.trained
    )
    return 3 * _FLOAT_BYTES * shape.config.width * shape.config.depth * rows


def gathered_bytes(config: VASTConfig, accelerator: Accelerator | None) -> int:
    """Computes the bytes c in which a parameter is sent to other chips.

    Parameters of bfloat16 layers are cast before they are sent, and take 2 bytes. So do
    those of float32 layers on TPUs, where the compiler sends them in the precision of
    its products. Others take 4.

    Args:
        config: Hyperparameters of the agent.
        accelerator: Kind of the chips; None if it is not in the table.

    Returns:
        Bytes of a parameter.
    """
    if accelerator is not None and accelerator.rounds_to_bfloat16:
        return _BFLOAT16_BYTES
    return gradient_bytes(config)


def gradient_bytes(config: VASTConfig) -> int:
    """Computes the bytes e in which a gradient's element is sent to other chips."""
    return _BFLOAT16_BYTES if config.precision == "bfloat16" else _FLOAT_BYTES


@dataclass(frozen=True)
class Spread:
    """Sizes of the mesh's axes, all known.

    Attributes:
        seed: Chips that the seeds are sharded over.
        data: Chips that the rows of a batch are sharded over, each with a whole state.
        fsdp: Chips that rows and state are sharded over.
        tensor: Chips that every layer is sharded over.
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
    """Computes the memory of a chip: state, gradients, activations, rows and program.

    A seed takes ``4 (3 P + T) / (f t) + gradients + activations``, and a chip holds
    s / S seeds.

    If the state is whole on every chip, the gradients take ``4 P / t``: all of them
    wait for the norm that clips them. If the state is sharded, the gradients wait as
    shards, and the largest arrays are the kernels that were gathered before:

    - ``c P / t`` on TPUs. Kernels are gathered late. Those of the targets are freed
      before the last others arrive, and these are freed one by one as their gradients
      are computed.
    - ``(c (P + T) + e G) / t`` elsewhere. All kernels are gathered at the start of an
      update, to hide the transfer, and are still in memory when the first whole
      gradient is. The worst is that of the network with most parameters G: both
      critics.

    ``gathered_bytes`` gives c and ``gradient_bytes`` gives e. With layers sharded into
    t parts, the outputs of every second layer are whole.

    Args:
        shape: Sizes of networks and batch.
        spread: Sizes S, d, f and t of the mesh's axes.
        accelerator: Kind of the chips; None if it is not in the table, which counts
            float32 sent between chips.
        seeds: Number s of seeds.
        rows: Rows of the store on each chip. Each takes ``4 (S' + A')`` bytes, with
            components rounded up to a multiple of eight, as TPUs lay them out.

    Returns:
        Bytes of a chip's memory.
    """
    gradients = _FLOAT_BYTES * count_parameters(shape)
    if spread.fsdp > 1:
        gradients = _sharded_gradient_bytes(shape, accelerator)
    kept = activation_bytes(shape, chips=spread.data * spread.fsdp)
    state = state_bytes(shape) / (spread.fsdp * spread.tensor)
    of_seed = state + gradients / spread.tensor + kept * (1 + 1 / spread.tensor) / 2
    components = sum(
        -(-size // 8) * 8 for size in (shape.observation_dim, shape.action_dim)
    )
    held = _FLOAT_BYTES * components * rows + _PROGRAM_BYTES
    return of_seed * seeds / spread.seed + held


def _sharded_gradient_bytes(shape: Shape, accelerator: Accelerator | None) -> int:
    """Computes the bytes of kernels and gradients if the state is sharded.

    ``call_bytes`` explains the formula.
    """
    gathered = gathered_bytes(shape.config, accelerator)
    if accelerator is not None and accelerator.rounds_to_bfloat16:
        return gathered * count_parameters(shape)
    sizes = [network.parameters for network in shape.networks]
    # Targets have no gradient, but are copies of networks that have one, so the largest
    # of all networks has as many parameters as the largest trained one.
    return gathered * sum(sizes) + gradient_bytes(shape.config) * max(sizes)
