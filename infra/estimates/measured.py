"""Measured rates that estimates are computed from, each with its source.

A rate that is measured again has to be changed here and nowhere else.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateRate:
    """The measured rate of one run.

    Attributes:
        platform: Name of an accelerator, or ``"cpu"``.
        chips: Number of chips, or of cores of a CPU.
        width: Width of the hidden layers.
        batch_size: Rows B of each seed's batch.
        seeds: Number of seeds that were trained side by side.
        updates_per_s: Updates per second; an update of all seeds counts once.
        source: Document that has the measurement.
    """

    platform: str
    chips: int
    width: int
    batch_size: int
    seeds: int
    updates_per_s: float
    source: str


@dataclass(frozen=True)
class Measured:
    """Measured rates and sizes.

    Attributes:
        shard_rows_per_s: Rows per second from npz to store, including the start.
        shard_cores: Cores that the sharding used.
        collect_rows_per_s: Rows per second of one collecting process on one core.
        npz_share: Size of an npz file divided by the size of its arrays.
        store_share: Size of a store with labels of five tasks, divided by the size of
            its npz files.
        row_floats: Numbers in a row of the data with these sizes: observations,
            actions, qpos and qvel.
        part_rows: Rows of a part of a store, which one worker writes.
        update_rates: Rates of training.
    """

    # tests/benchmarks/README.md: 3,003,000 rows in 19.6 s, one command on two virtual
    # cores of an idle AMD EPYC, whose threads keep about two cores busy.
    shard_rows_per_s: float = 153_119.0
    shard_cores: int = 2
    # tests/benchmarks/README.md: cube-triple, one episode by one worker, one core.
    collect_rows_per_s: float = 290.0
    # tests/benchmarks/README.md: files grown from 24 real cube-triple episodes.
    npz_share: float = 0.566
    # tests/benchmarks/README.md: store against npz, with labels of five tasks.
    store_share: float = 1.15
    # cube-triple: 46 observed, 5 of the action, 35 of qpos, 32 of qvel.
    row_floats: int = 46 + 5 + 35 + 32
    # pipeline.sources.episodes.PART_ROWS, rounded.
    part_rows: int = 1_000_000
    update_rates: tuple[UpdateRate, ...] = (
        UpdateRate(
            platform="cpu",
            chips=2,
            width=64,
            batch_size=256,
            seeds=1,
            updates_per_s=70.1,
            source="tests/benchmarks/README.md, `python -m trainer bench step --widths "
            "64 ...` on two idle cores of an AMD EPYC",
        ),
    )


MEASURED = Measured()


def find_update_rate(
    measured: Measured,
    *,
    platform: str,
    chips: int | None,
    width: int,
    batch_size: int,
    seeds: int,
) -> UpdateRate | None:
    """Finds the measured rate of a setting.

    Args:
        measured: Measured rates.
        platform: Name of an accelerator, or ``"cpu"``.
        chips: Number of chips; None for any number, as of the cores of this machine.
        width: Width of the hidden layers.
        batch_size: Rows B of each seed's batch.
        seeds: Number of seeds that are trained side by side.

    Returns:
        The rate with its source, or None if none was measured.
    """
    # Only equal settings count: rates do not scale with width, batch or seeds in a way
    # that could be trusted.
    for rate in measured.update_rates:
        setting = (rate.platform, rate.width, rate.batch_size, rate.seeds)
        same = setting == (platform, width, batch_size, seeds)
        if same and chips in (None, rate.chips):
            return rate
    return None
