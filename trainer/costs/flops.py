"""What an update costs, counted by hand: the dense layers it evaluates and trains.

Only matrix products are counted, two operations for a multiplication and its
addition. Activations, LayerNorm, losses, random numbers and the optimiser are a few
operations a unit or parameter: at width 512 they are within some percent. Compilers'
own counts are no substitute, since they count the body of a loop once. What
``rematerialise`` computes a second time is no part of the update and not counted.

Dimensions: B batch, T flow steps, E critics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.agents.vast_config import VASTConfig
from trainer.costs.accelerators import Accelerator

# (inputs, outputs) of each dense layer of a network, in order.
Layers = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Call:
    """Evaluations of one network within an update.

    Attributes:
        network: Its name among the parameters; a target counts as what it copies.
        rows: Of each evaluation, for every copy of the network.
        purpose: What it is evaluated for.
        times: Evaluations one after another.
        trained: Whether gradients flow back to its parameters; none flow to its
            inputs, which are data or stopped.
    """

    network: str
    rows: int
    purpose: str
    times: int = 1
    trained: bool = False


def forward_flops(layers: Layers) -> int:
    """Operations of one row through one network."""
    return sum(2 * inputs * outputs for inputs, outputs in layers)


def backward_flops(layers: Layers) -> int:
    """Operations of one row back through one network.

    As many as forward for the gradient of the parameters and again for that of the
    inputs, save that nobody asks for the gradient of the first layer's.
    """
    return 2 * forward_flops(layers) - forward_flops(layers[:1])


def call_flops(call: Call, layers: Layers, *, copies: int) -> int:
    """Operations of a call.

    Args:
        call: What is evaluated.
        layers: Of its network.
        copies: Of the network.

    Returns:
        Operations of all rows and copies.
    """
    row = forward_flops(layers)
    if call.trained:
        row += backward_flops(layers)
    return row * call.rows * call.times * copies


def update_flops(
    calls: Iterable[Call], networks: Mapping[str, tuple[Layers, int]]
) -> int:
    """Operations of one update of one seed.

    Args:
        calls: All evaluations of the update.
        networks: Layers and number of copies, by name.

    Returns:
        Operations.
    """
    total = 0
    for call in calls:
        layers, copies = networks[call.network]
        total += call_flops(call, layers, copies=copies)
    return total


def vast_calls(config: VASTConfig, batch_size: int) -> tuple[Call, ...]:
    """What one update of VAST evaluates.

    Args:
        config: Of the agent.
        batch_size: B.

    Returns:
        The calls, in the order of ``VAST.total_loss``.
    """
    B, T = batch_size, config.flow_steps
    return (
        Call("stitch", B, "sub-goals of V's targets", times=T),
        # Continuations are valued at those sub-goals and at the windows' ends.
        Call("stitch", 2 * B, "goals of the continuations", times=T),
        Call("exec", 2 * B, "actions of the continuations", times=T),
        Call("critic", 2 * B, "values of the continuations (targets)"),
        # A window, its first part and its second.
        Call("segment", 3 * B, "loss of G", trained=True),
        Call("segment", B, "returns up to the sub-goals"),
        Call("value", B, "loss of V", trained=True),
        Call("value", B, "targets of Q"),
        Call("critic", B, "loss of Q", trained=True),
        Call("stitch", B, "loss of the stitching policy", trained=True),
        Call("exec", B, "loss of the execution policy", trained=True),
    )


# By name of the agent; agents that are not here are not counted.
CALLS: dict[str, Callable[[Any, int], tuple[Call, ...]]] = {"vast": vast_calls}


@dataclass(frozen=True)
class Bound:
    """Least time that many updates can take on a device.

    Attributes:
        precision: Of the matrix products.
        compute_hours: Of their operations at the device's peak.
        memory_hours: Of reading and writing the state once an update.
    """

    precision: str
    compute_hours: float
    memory_hours: float

    @property
    def rules(self) -> str:
        """Which of the two is longer: ``"compute"`` or ``"memory"``."""
        return "compute" if self.compute_hours >= self.memory_hours else "memory"

    @property
    def hours(self) -> float:
        """The longer of the two."""
        return max(self.compute_hours, self.memory_hours)


def bounds(
    flops: int, state_bytes: int, device: Accelerator, *, updates: int
) -> tuple[Bound, ...]:
    """Bounds the time of updates from below, for each precision.

    Real updates take longer: layers this narrow do not fill the device, and flow steps
    wait for one another. The bound from memory supposes that the state is larger than
    the device's cache, so that none of it is still there at the next update.

    Args:
        flops: Operations of one update.
        state_bytes: Parameters, targets and optimiser state.
        device: Where.
        updates: How many.

    Returns:
        One bound for each precision.
    """
    memory_s = 2 * state_bytes / device.bandwidth * updates
    return tuple(
        Bound(
            precision=precision,
            compute_hours=flops / peak * updates / 3600,
            memory_hours=memory_s / 3600,
        )
        for precision, peak in device.peaks.items()
    )
