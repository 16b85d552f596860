"""Scale on paper: what data and training of a given size would take.

Every figure is a formula over measured rates (`infra.estimates.measured`), the makers'
figures of a chip (`trainer.costs.accelerators`) and the shapes and calls of VAST's
networks (`trainer.costs`). A formula leaves out what it does not name: start-up,
stragglers, quota, overlap.
"""

from dataclasses import dataclass

from infra.estimates.measured import Measured
from trainer.agents.vast_config import VASTConfig
from trainer.costs import flops
from trainer.costs.accelerators import Accelerator
from trainer.costs.network_shapes import Network, optimised_layers, vast_networks

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


def update_flops(shape: Shape) -> int:
    """Operations of an update of one seed, see ``trainer.costs.flops``."""
    return flops.update_flops(
        flops.vast_calls(shape.config, shape.batch_size),
        optimised_layers(shape.networks),
    )


def activation_bytes(shape: Shape, *, chips: int) -> int:
    """Bytes kept for the backward pass on a chip: ``12 w depth (B / n) rows``.

    Three float32 arrays a hidden layer (before and after the activation, after
    LayerNorm), on the rows trained on. An upper estimate: XLA recomputes some.
    """
    local = -(-shape.batch_size // chips)
    layers = optimised_layers(shape.networks)
    rows = sum(
        call.rows * call.times * layers[call.network][1]
        for call in flops.vast_calls(shape.config, local)
        if call.trained
    )
    return 3 * _FLOAT_BYTES * shape.config.width * shape.config.depth * rows


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
