"""Figures of this repository that estimates are made from, each with its source.

This is the one place to bring up to date when a figure is measured again.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateRate:
    """Updates a second of one run.

    Attributes:
        platform: Name of an accelerator, or ``"cpu"``.
        chips: Chips it ran on; cores for a CPU.
        width: Of the hidden layers.
        batch_size: B, of each seed.
        seeds: Trained side by side.
        updates_per_s: Of all seeds together in one program, counted once.
        source: Where the figure stands.
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
    """What was measured, and on what.

    Attributes:
        shard_rows_per_s: Rows a second from npz to store, start-up included.
        shard_cores: Cores that took.
        collect_rows_per_s: Rows a second of one collecting process, one core.
        npz_share: Bytes of an npz by those of its arrays.
        store_share: Bytes of a store, five tasks' labels included, by those of its
            npz.
        row_floats: Components of a row that the two shares are of: observations,
            actions, qpos and qvel.
        part_rows: Rows of a part, which has one writer.
        update_rates: Updates a second, by what they ran on.
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
    """Finds the rate of exactly this setting; nothing is carried over from others.

    Args:
        measured: Where to look.
        platform: Name of an accelerator, or ``"cpu"``.
        chips: How many; None where it was not asked, as of the cores of this machine.
        width: Of the hidden layers.
        batch_size: B, of each seed.
        seeds: Trained side by side.

    Returns:
        The rate with its source, or None if there is none.
    """
    for rate in measured.update_rates:
        setting = (rate.platform, rate.width, rate.batch_size, rate.seeds)
        same = setting == (platform, width, batch_size, seeds)
        if same and chips in (None, rate.chips):
            return rate
    return None
