"""Scale on paper: what data and training of a given size would take.

Every figure is a formula over measured rates (`infra.estimates.measured`), the makers'
figures of a chip (`trainer.costs.accelerators`) and the shapes of VAST's networks. A
formula leaves out what it does not name: start-up, stragglers, quota, overlap.
"""

from dataclasses import dataclass

from infra.estimates.measured import Measured
from trainer.costs.accelerators import Accelerator

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


@dataclass(frozen=True)
class Shape:
    """What decides the cost of an update of VAST.

    Attributes:
        width: Of the hidden layers.
        batch_size: B, of all chips together.
        depth: Hidden layers.
        observation_dim: S.
        action_dim: A.
        flow_steps: Euler steps of a flow sample.
    """

    width: int
    batch_size: int = 1024
    depth: int = 4
    observation_dim: int = 46
    action_dim: int = 5
    flow_steps: int = 10


@dataclass(frozen=True)
class Network:
    """One of VAST's perceptrons, and how often an update evaluates it.

    Attributes:
        name: As in the agent's parameters.
        inputs: Width of its input.
        outputs: Width of its output.
        copies: Independent copies.
        trained: Rows it is trained on, by B.
        read: Rows it is evaluated on without a gradient, by B.
        targets: Whether a second set of its parameters is kept.
    """

    name: str
    inputs: int
    outputs: int
    copies: int
    trained: int
    read: int
    targets: bool = False

    def multiplied(self, shape: Shape) -> int:
        """Entries of its matrices, all copies."""
        w = shape.width
        one = self.inputs * w + (shape.depth - 1) * w * w + w * self.outputs
        return self.copies * one

    def parameters(self, shape: Shape) -> int:
        """Its matrices, their biases, and scale and shift of each LayerNorm."""
        rest = 3 * shape.depth * shape.width + self.outputs
        return self.multiplied(shape) + self.copies * rest


def networks(shape: Shape) -> tuple[Network, ...]:
    """VAST's five networks.

    The stitching flow is sampled at the window's start (B rows) and at both
    continuations (2B), the execution flow at the continuations; each sample costs
    ``flow_steps`` evaluations. G is trained on a window and its two halves (3B).
    """
    S, A, steps = shape.observation_dim, shape.action_dim, shape.flow_steps
    return (
        Network("value", S, 1, 1, trained=1, read=1),
        Network("critic", S + A, 1, 2, trained=1, read=2, targets=True),
        Network("segment", 2 * S + 1, 1, 1, trained=3, read=1),
        Network("stitch", 2 * S + 2, 1 + S, 1, trained=1, read=3 * steps),
        Network("exec", 2 * S + A + 1, A, 1, trained=1, read=2 * steps),
    )


def parameters(shape: Shape) -> int:
    """Trained parameters P, of one seed."""
    return sum(each.parameters(shape) for each in networks(shape))


def state_bytes(shape: Shape) -> int:
    """Bytes of one seed's state: ``4 * (3 P + T)``.

    Parameters and Adam's two moments, and the T parameters of the target critics.
    """
    targets = sum(each.parameters(shape) for each in networks(shape) if each.targets)
    return _FLOAT_BYTES * (3 * parameters(shape) + targets)


def update_flops(shape: Shape) -> int:
    """Floating-point operations of an update: ``2 M B (read + 3 trained)``, summed.

    M are the entries of a network's matrices; a backward pass costs two forward
    passes. Everything but matrix products is left out.
    """
    return sum(
        2 * each.multiplied(shape) * shape.batch_size * (each.read + 3 * each.trained)
        for each in networks(shape)
    )


def activation_bytes(shape: Shape, *, chips: int) -> int:
    """Bytes kept for the backward pass on a chip: ``12 w depth (B / n) rows``.

    Three float32 arrays a hidden layer (before and after the activation, after
    LayerNorm), on the rows trained on. An upper estimate: XLA recomputes some.
    """
    rows = sum(each.copies * each.trained for each in networks(shape))
    local = -(-shape.batch_size // chips)
    return 3 * _FLOAT_BYTES * shape.width * shape.depth * local * rows


def window_bytes(shape: Shape) -> int:
    """Bytes of a window on its way to a device: five states, an action, 7 scalars."""
    return _FLOAT_BYTES * (5 * shape.observation_dim + shape.action_dim + 7)


def arithmetic_s(shape: Shape, accelerator: Accelerator, *, chips: int) -> float:
    """Seconds of an update by arithmetic at its peak: ``flops / (n peak)``."""
    return update_flops(shape) / (chips * accelerator.default_peak)


@dataclass(frozen=True)
class TrainScale:
    """What training at some width on some chips takes, one seed.

    Attributes:
        chips: n.
        whole_bytes: Memory of a chip that holds all of the state.
        split_bytes: Memory of a chip that holds its share of the state.
        all_reduce_bytes: What a chip sends in an update when every chip holds the
            state whole: the gradients' all-reduce.
        split_link_bytes: The same when the state is split.
        least_s: Seconds an update takes at least, by arithmetic or links alone.
        link_bound: Whether that is the links', state whole.
        input_bytes: What the hosts send to all chips in an update, rows gathered
            there.
    """

    chips: int
    whole_bytes: int
    split_bytes: int
    all_reduce_bytes: int
    split_link_bytes: int
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
        With P parameters in 4 bytes each and ``f = (n - 1) / n``: a chip sends
        ``2 f 4P`` for a ring all-reduce of the gradients; with the state split
        ``3 f 4P``, gathering parameters forward and backward and scattering gradients.
        Memory is state and gradients (by n if split) and activations. The least time
        is the larger of ``flops / (n peak)`` and bytes by half the link's two-way
        rate.
    """
    gradient = _FLOAT_BYTES * parameters(shape)
    kept = activation_bytes(shape, chips=chips)
    held = state_bytes(shape) + gradient
    all_reduce = 2 * (chips - 1) * gradient // chips
    compute_s = arithmetic_s(shape, accelerator, chips=chips)
    link_s = 0.0
    if accelerator.link_bytes_per_s is not None:
        link_s = all_reduce / (accelerator.link_bytes_per_s / 2)
    return TrainScale(
        chips=chips,
        whole_bytes=held + kept,
        split_bytes=-(-held // chips) + kept,
        all_reduce_bytes=all_reduce,
        split_link_bytes=3 * (chips - 1) * gradient // chips,
        least_s=max(compute_s, link_s),
        link_bound=link_s > compute_s,
        input_bytes=shape.batch_size * window_bytes(shape),
    )
