"""Scale on paper: what data and training of a given size would take.

Every figure is a formula over measured rates (`infra.estimates.measured`), the makers'
figures of a chip (`trainer.costs.accelerators`) and the shapes and calls of VAST's
networks (`trainer.costs`). A formula leaves out what it does not name: start-up,
stragglers, quota, overlap.
"""

from dataclasses import dataclass

from infra.estimates.measured import Measured
from trainer.costs import flops
from trainer.costs.accelerators import Accelerator
from trainer.costs.call_memory import (
    Shape,
    Spread,
    call_bytes,
    gathered_bytes,
    gradient_bytes,
    parameters,
)
from trainer.costs.network_shapes import optimised_layers

_FLOAT_BYTES = 4
_HOUR_S = 3600.0


# -- Data ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataScale:
    """What collecting and sharding some transitions takes.

    Attributes:
        transitions: Rows.
        workers: Machines of ``cores`` cores asked for.
        npz_bytes: Of the raw files.
        store_bytes: Of the store.
        collect_h: Hours to collect them in MuJoCo.
        shard_h: Hours from npz to store.
        busy_workers: Machines that sharding can keep busy: a part has one writer.
        write_bytes_per_s: Into the bucket, by all workers that shard.
        collect_core_h: Core hours of collecting.
        shard_core_h: Core hours of sharding.
    """

    transitions: int
    workers: int
    npz_bytes: float
    store_bytes: float
    collect_h: float
    shard_h: float
    busy_workers: int
    write_bytes_per_s: float
    collect_core_h: float
    shard_core_h: float


def data_scale(
    measured: Measured, *, transitions: int, workers: int, cores: int = 2
) -> DataScale:
    """Computes what collecting and sharding takes.

    Args:
        measured: Rates of one machine.
        transitions: Rows N.
        workers: Machines.
        cores: Cores of each.

    Returns:
        With r the rate of a core: collecting takes ``N / (workers * cores * r)``;
        sharding ``N / (min(workers, parts) * r * cores)``, parts being N by the rows
        of a part; bytes are those of a row's arrays by the two measured shares.
    """
    parts = -(-transitions // measured.part_rows)
    busy = min(workers, parts)
    shard_per_core = measured.shard_rows_per_s / measured.shard_cores
    npz_row = measured.row_floats * _FLOAT_BYTES * measured.npz_share
    store_row = npz_row * measured.store_share
    collect_rate = workers * cores * measured.collect_rows_per_s
    shard_rate = busy * cores * shard_per_core
    return DataScale(
        transitions=transitions,
        workers=workers,
        npz_bytes=transitions * npz_row,
        store_bytes=transitions * store_row,
        collect_h=transitions / collect_rate / _HOUR_S,
        shard_h=transitions / shard_rate / _HOUR_S,
        busy_workers=busy,
        write_bytes_per_s=shard_rate * store_row,
        collect_core_h=transitions / measured.collect_rows_per_s / _HOUR_S,
        shard_core_h=transitions / shard_per_core / _HOUR_S,
    )


# -- Training --------------------------------------------------------------------------


def update_flops(shape: Shape) -> int:
    """Operations of an update of one seed, see ``trainer.costs.flops``."""
    return flops.update_flops(
        flops.vast_calls(shape.config, shape.batch_size),
        optimised_layers(shape.networks),
    )


def window_bytes(shape: Shape) -> int:
    """Bytes of a window on its way to a device: five states, an action, 7 scalars."""
    return _FLOAT_BYTES * (5 * shape.observation_dim + shape.action_dim + 7)


def arithmetic_s(shape: Shape, accelerator: Accelerator, *, chips: int) -> float:
    """Seconds of an update by arithmetic at its peak: ``flops / (n peak)``."""
    return update_flops(shape) / (chips * accelerator.default_peak)


def sent_bytes(
    shape: Shape, spread: Spread, accelerator: Accelerator | None, *, seeds: int = 1
) -> float:
    """What a chip sends in an update, round rings, with ``g(n) = (n - 1) / n``.

    Gradients are all-reduced over data, ``2 g(d) 4 P / (f t)``. With the state split,
    parameters and targets are gathered, ``g(f) c (P + T) / t`` with c bytes an element
    (``call_memory.gathered_bytes``), and gradients scattered, ``g(f) e P / t``. With
    layers split, the outputs of every second one but the first are summed, and what
    goes back to the inputs of the others: ``g(t) 4 w ((L - 2) R + L R')`` for L layers
    of width w, R rows that are evaluated and R' that are trained on.

    Args:
        shape: Of networks and batch.
        spread: Over S, d, f and t chips.
        accelerator: What the chips are; None for others, that send float32.
        seeds: s.

    Returns:
        Bytes.
    """
    d, f, t = spread.data, spread.fsdp, spread.tensor
    P = parameters(shape)
    sent = 2 * _ring(d) * _FLOAT_BYTES * P / (f * t)
    gathered = gathered_bytes(shape.config, accelerator)
    gathered *= sum(network.parameters for network in shape.networks)
    sent += _ring(f) * (gathered + gradient_bytes(shape.config) * P) / t
    width, depth = shape.config.width, shape.config.depth
    layers = optimised_layers(shape.networks)
    calls = flops.vast_calls(shape.config, -(-shape.batch_size // (d * f)))
    for call in calls:
        rows = call.rows * call.times * layers[call.network][1]
        sums = max(depth - 2, 0) + (depth if call.trained else 0)
        sent += _ring(t) * _FLOAT_BYTES * width * sums * rows
    return sent * seeds / spread.seed


def _ring(chips: int) -> float:
    return (chips - 1) / chips


@dataclass(frozen=True)
class TrainScale:
    """What training at some width on some chips takes, one seed.

    Attributes:
        chips: n.
        whole_bytes: Memory of a chip that holds all of the state.
        split_bytes: Memory of a chip that holds its share of the state.
        tensor_bytes: Memory of a chip that holds its share of every layer; None where
            a layer cannot be split so.
        whole_sent: What a chip sends in an update with the state whole.
        split_sent: The same with the state split.
        tensor_sent: The same with every layer split, or None.
        least_s: Seconds an update takes at least, by arithmetic or links alone.
        link_bound: Whether that is the links', state whole.
        input_bytes: What the hosts send to all chips in an update, rows gathered
            there.
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


def train_scale(shape: Shape, accelerator: Accelerator, *, chips: int) -> TrainScale:
    """Computes memory, traffic and the least time of an update.

    Args:
        shape: Of networks and batch.
        accelerator: What the chips are.
        chips: n.

    Returns:
        Memory and traffic of the three ways to use n chips, see ``call_bytes`` and
        ``sent_bytes``. The least time is the larger of ``flops / (n peak)`` and bytes
        by half the link's two-way rate, state whole.
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
