"""Counts the operations of an update, from the dense layers that it evaluates.

Only matrix products are counted, with two operations for a multiplication and its
addition. Activations, LayerNorm, losses, random numbers and the optimiser take a few
operations for each unit or parameter: some percent at width 512. Compilers' own counts
are no substitute, because they count the body of a loop once. Layers that
``rematerialise`` computes a second time are counted once.

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
        network: Name of the network among the parameters; a target has the name of
            the network that it copies.
        rows: Rows of each evaluation, for every copy of the network.
        purpose: Purpose of the evaluations, for people.
        times: Number of evaluations, one after another.
        trained: Whether gradients flow back to the parameters. None flow to the inputs,
            which are data or have their gradient stopped.
    """

    network: str
    rows: int
    purpose: str
    times: int = 1
    trained: bool = False


def forward_flops(layers: Layers) -> int:
    """Counts the operations of one row through one network."""
    return sum(2 * inputs * outputs for inputs, outputs in layers)


def backward_flops(layers: Layers) -> int:
    """Counts the operations of one row back through one network.

    The gradient of the parameters takes as many as the forward pass, and so does the
    gradient of the inputs; that of the first layer's inputs is not computed.
    """
    return 2 * forward_flops(layers) - forward_flops(layers[:1])


def call_flops(call: Call, layers: Layers, *, copies: int) -> int:
    """Counts the operations of a call.

    Args:
        call: The evaluations.
        layers: Layers of the network.
        copies: Number of copies of the network.

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
    """Counts the operations of one update of one seed.

    Args:
        calls: All evaluations of the update.
        networks: Layers and number of copies of each network, by name.

    Returns:
        Number of operations.
    """
    total = 0
    for call in calls:
        layers, copies = networks[call.network]
        total += call_flops(call, layers, copies=copies)
    return total


def list_vast_calls(config: VASTConfig, batch_size: int) -> tuple[Call, ...]:
    """Lists the evaluations of one update of VAST.

    Args:
        config: Hyperparameters of the agent.
        batch_size: Rows B of a batch.

    Returns:
        The calls, in the order of ``VAST.total_loss``.
    """
    B, T = batch_size, config.flow_steps
    # Continuations start at the windows' ends, and at the sub-goals that are drawn.
    drawn = config.value_windows == "drawn"
    C = 2 * B if drawn else B
    subgoals = (
        # A flow is sampled in T Euler steps, each of which is a forward pass.
        Call("stitch", B, "sub-goals of V's targets", times=T),
        Call("segment", B, "returns up to the sub-goals"),
    )
    return (
        # G is trained on a window, and composed of the window's two parts.
        Call("segment", 3 * B, "loss of G", trained=True),
        *(subgoals if drawn else ()),
        Call("stitch", C, "goals of the continuations", times=T),
        Call("exec", C, "actions of the continuations", times=T),
        Call("critic", C, "values of the continuations (targets)"),
        Call("value", B, "loss of V", trained=True),
        Call("value", B, "targets of Q"),
        Call("critic", B, "loss of Q", trained=True),
        Call("stitch", B, "loss of the stitching policy", trained=True),
        Call("exec", B, "loss of the execution policy", trained=True),
    )


# Functions that list the evaluations of an update, by the agent's name. The operations
# of agents that are missing here are not counted.
CALLS: dict[str, Callable[[Any, int], tuple[Call, ...]]] = {"vast": list_vast_calls}


@dataclass(frozen=True)
class Bound:
    """Least time that many updates can take on a device.

    Attributes:
        precision: Precision of the matrix products.
        compute_hours: Hours of the operations at the device's peak.
        memory_hours: Hours of reading and writing the state once for each update.
    """

    precision: str
    compute_hours: float
    memory_hours: float

    @property
    def rules(self) -> str:
        """Name of the longer of the two: ``"compute"`` or ``"memory"``."""
        return "compute" if self.compute_hours >= self.memory_hours else "memory"

    @property
    def hours(self) -> float:
        """The longer of the two."""
        return max(self.compute_hours, self.memory_hours)


def compute_bounds(
    flops: int, state_bytes: int, device: Accelerator, *, updates: int
) -> tuple[Bound, ...]:
    """Computes the least time of updates, for each precision.

    Real updates take longer: narrow layers do not fill the device, and flow steps wait
    for one another. The bound by memory assumes that the state does not fit into the
    device's cache, so that every update reads it from memory.

    Args:
        flops: Operations of one update.
        state_bytes: Bytes of parameters, targets and optimiser state.
        device: Accelerator that the bounds are for.
        updates: Number of updates.

    Returns:
        A bound for each precision.
    """
    # The state is read once and written once.
    memory_s = 2 * state_bytes / device.bandwidth * updates
    return tuple(
        Bound(
            precision=precision,
            compute_hours=flops / peak * updates / 3600,
            memory_hours=memory_s / 3600,
        )
        for precision, peak in device.peaks.items()
    )
