"""Formulas for what data and training of a given size would take.

Formulas use measured rates (`infra.estimates.measured`), the makers' data of chips
(`trainer.costs.accelerators`), and the shapes and calls of VAST's networks
(`trainer.costs`). They leave out all that they do not name, such as start-up,
stragglers, quota and overlap.
"""

from dataclasses import dataclass

from infra.estimates.measured import CollectRate, Measured
from trainer.costs import flops
from trainer.costs.accelerators import Accelerator
from trainer.costs.call_memory import (
    Shape,
    Spread,
    call_bytes,
    count_parameters,
    gathered_bytes,
    gradient_bytes,
)
from trainer.costs.network_shapes import optimised_layers

_FLOAT_BYTES = 4
_HOUR_S = 3600.0


# -- Data ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataWork:
    """Cost of collecting or of sharding a number of rows.

    Attributes:
        hours: Hours that all machines take, if those that can be busy always are.
        core_hours: Core hours of work.
        rows_per_s: Rows per second of all machines together.
        busy_workers: Machines that can be kept busy.
    """

    hours: float
    core_hours: float
    rows_per_s: float
    busy_workers: int


def estimate_collecting(
    rate: CollectRate, *, rows: int, workers: int, cores: int
) -> DataWork:
    """Computes the cost of collecting: N rows take ``N / (workers * cores * r)``.

    Args:
        rate: Measured rate r of a core, for the data set.
        rows: Number N of rows.
        workers: Number of machines.
        cores: Cores of each machine, which collect an episode each.

    Returns:
        The cost.
    """
    return _work(rows, per_core=rate.rows_per_s, workers=workers, cores=cores)


def estimate_sharding(
    measured: Measured, *, rows: int, workers: int, cores: int
) -> DataWork:
    """Computes the cost of sharding.

    With r the rate of a core, N rows take ``N / (min(workers, parts) * min(cores, c) *
    r)``: a worker writes one part at a time, which keeps c cores busy and no more.

    Args:
        measured: Measured rates of one machine.
        rows: Number N of rows.
        workers: Number of machines.
        cores: Cores of each machine.

    Returns:
        The cost.
    """
    parts = -(-rows // measured.part_rows)
    return _work(
        rows,
        per_core=measured.shard_rows_per_s / measured.shard_cores,
        workers=min(workers, parts),
        cores=min(cores, measured.shard_cores),
    )


def _work(rows: int, *, per_core: float, workers: int, cores: int) -> DataWork:
    rows_per_s = workers * cores * per_core
    return DataWork(
        hours=rows / rows_per_s / _HOUR_S,
        core_hours=rows / per_core / _HOUR_S,
        rows_per_s=rows_per_s,
        busy_workers=workers,
    )


# -- Training --------------------------------------------------------------------------


def update_flops(shape: Shape) -> int:
    """Counts operations of an update of one seed, see ``trainer.costs.flops``."""
    return flops.update_flops(
        flops.list_vast_calls(shape.config, shape.batch_size),
        optimised_layers(shape.networks),
    )


def window_bytes(shape: Shape) -> int:
    """Computes the size of a window of VAST: five states, an action and 7 scalars."""
    return _FLOAT_BYTES * (5 * shape.observation_dim + shape.action_dim + 7)


def arithmetic_s(shape: Shape, accelerator: Accelerator, *, chips: int) -> float:
    """Computes the seconds of an update at peak arithmetic: ``flops / (n peak)``."""
    return update_flops(shape) / (chips * accelerator.default_peak)


def sent_bytes(
    shape: Shape, spread: Spread, accelerator: Accelerator | None, *, seeds: int = 1
) -> float:
    """Computes the bytes that a chip sends in an update.

    Collectives are rings of n chips, in which a chip sends the share ``g(n) = (n - 1) /
    n`` of an array. Gradients are all-reduced over ``data``, ``2 g(d) 4 P / (f t)``. If
    the state is sharded, parameters and targets are gathered, ``g(f) c (P + T) / t``
    with c bytes an element (``call_memory.gathered_bytes``), and gradients scattered,
    ``g(f) e P / t``. If layers are sharded, the outputs of every second layer but the
    first are summed, and so are gradients at the inputs of the other layers:
    ``g(t) 4 w ((L - 2) R + L R')`` for L layers of width w, R rows that are evaluated
    and R' rows that are trained on.

    Args:
        shape: Shapes of networks and batch.
        spread: Chips of each mesh axis: S, d, f and t.
        accelerator: Kind of the chips; None for others, which send float32.
        seeds: Number s of seeds.

    Returns:
        Bytes per update.
    """
    d, f, t = spread.data, spread.fsdp, spread.tensor
    P = count_parameters(shape)
    sent = 2 * _ring(d) * _FLOAT_BYTES * P / (f * t)
    gathered = gathered_bytes(shape.config, accelerator)
    gathered *= sum(network.parameters for network in shape.networks)
    sent += _ring(f) * (gathered + gradient_bytes(shape.config) * P) / t
    width, depth = shape.config.width, shape.config.depth
    layers = optimised_layers(shape.networks)
    calls = flops.list_vast_calls(shape.config, -(-shape.batch_size // (d * f)))
    for call in calls:
        # A trained network also sums gradients, at the inputs of every other layer.
        rows = call.rows * call.times * layers[call.network][1]
        sums = max(depth - 2, 0) + (depth if call.trained else 0)
        sent += _ring(t) * _FLOAT_BYTES * width * sums * rows
    return sent * seeds / spread.seed


def _ring(chips: int) -> float:
    return (chips - 1) / chips


@dataclass(frozen=True)
class TrainScale:
    """Cost of training one seed on n chips, with the three meshes that use all of them.

    Attributes:
        chips: Number n of chips.
        whole_bytes: Memory of a chip that has a copy of the whole state.
        split_bytes: Memory of a chip that has a shard of the state.
        tensor_bytes: Memory of a chip that has a shard of every layer; None if the
            width is no multiple of n.
        whole_sent: Bytes that a chip sends in an update with copies of the state.
        split_sent: Bytes that a chip sends in an update with shards of the state.
        tensor_sent: Bytes that a chip sends in an update with shards of every layer, or
            None.
        least_s: Lower bound of the seconds of an update, by arithmetic or by links.
        link_bound: Whether links set the bound, with copies of the state.
        input_bytes: Bytes that hosts send to all chips in an update, if they look rows
            up.
    """

    chips: int
    whole_bytes: float
    split_bytes: float
    tensor_bytes: float | None
    whole_sent: float
    split_sent: float
    tensor_sent: float | None
    least_s: float
    link_bound: bool
    input_bytes: int


def estimate_training(
    shape: Shape, accelerator: Accelerator, *, chips: int
) -> TrainScale:
    """Computes memory, traffic and the least time of an update.

    Args:
        shape: Shapes of networks and batch.
        accelerator: Kind of the chips.
        chips: Number n of chips.

    Returns:
        Memory and traffic of the three meshes, see ``call_bytes`` and ``sent_bytes``,
        and the lower bound of time for copies of the state.
    """
    whole, split, tensor = (
        Spread(data=chips),
        Spread(fsdp=chips),
        Spread(tensor=chips) if shape.config.width % chips == 0 else None,
    )
    sent = sent_bytes(shape, whole, accelerator)
    compute_s = arithmetic_s(shape, accelerator, chips=chips)
    link_s = 0.0
    if accelerator.link_bytes_per_s is not None:
        # Makers give the rate of both directions together, and a ring sends in one.
        link_s = sent / (accelerator.link_bytes_per_s / 2)
    return TrainScale(
        chips=chips,
        whole_bytes=call_bytes(shape, whole, accelerator),
        split_bytes=call_bytes(shape, split, accelerator),
        tensor_bytes=None if tensor is None else call_bytes(shape, tensor, accelerator),
        whole_sent=sent,
        split_sent=sent_bytes(shape, split, accelerator),
        tensor_sent=None if tensor is None else sent_bytes(shape, tensor, accelerator),
        least_s=max(compute_s, link_s),
        link_bound=link_s > compute_s,
        input_bytes=shape.batch_size * window_bytes(shape),
    )
