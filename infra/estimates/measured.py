"""Measured rates that estimates are computed from, each with its source.

A rate that is measured again has to be changed here and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.domains.datasets import parse_dataset
from pipeline.store.errors import UsageError

# Agents import NumPy, which takes too long for a program that only prints its help.
if TYPE_CHECKING:
    from trainer.agents.settings import AgentSettings


@dataclass(frozen=True)
class UpdateRate:
    """The measured rate of one run.

    Attributes:
        platform: Name of an accelerator, or ``"cpu"``.
        chips: Number of chips, or of cores of a CPU.
        agent: Settings of the agent that decide how long its update takes, besides the
            batch: name, width, depth, precision, whether it rematerialises, and what
            not all agents have, the steps of flows and the windows of V.
        batch_size: Rows B of each seed's batch.
        seeds: Number of seeds that were trained side by side.
        updates_per_s: Updates per second; an update of all seeds counts once.
        source: Document that has the measurement.
    """

    platform: str
    chips: int
    agent: Mapping[str, Any]
    batch_size: int
    seeds: int
    updates_per_s: float
    source: str


@dataclass(frozen=True)
class CollectRate:
    """Measured rate and size of one collected data set.

    Attributes:
        dataset: Name of the data set.
        rows_per_s: Rows per second of one collecting process on one core.
        store_row_bytes: Bytes of a row in the store, with labels of five tasks and
            return sums of one discount.
    """

    dataset: str
    rows_per_s: float
    store_row_bytes: float


@dataclass(frozen=True)
class Measured:
    """Measured rates and sizes.

    Attributes:
        shard_rows_per_s: Rows per second from npz to store, including the start.
        shard_cores: Cores that the sharding used, and that the writer of a part keeps
            busy.
        shard_dataset: Data set whose layout the sharded rows had.
        store_share: Size of a store with labels of five tasks, divided by the size of
            its npz files.
        part_rows: Rows of a part of a store, which one worker writes.
        collect_rates: Rates and sizes of collected data sets.
        update_rates: Rates of training.
    """

    # tests/benchmarks/README.md: 20,020,000 rows in twenty files, by two processes on
    # two virtual cores of an idle AMD EPYC. The rate of a single file there is older
    # and half as high, and large inputs of clusters are many files.
    shard_rows_per_s: float = 366_195.0
    shard_cores: int = 2
    shard_dataset: str = "cube-triple-play"
    # tests/benchmarks/README.md: store against npz, with labels of five tasks.
    store_share: float = 1.15
    # pipeline.sources.episodes.PART_ROWS, rounded.
    part_rows: int = 1_000_000
    # tests/benchmarks/README.md: rows per second of one episode by one worker on one
    # core, and bytes a row of eight episodes.
    collect_rates: tuple[CollectRate, ...] = (
        CollectRate("cube-single-play", 393.0, 269.0),
        CollectRate("cube-double-play", 409.0, 338.0),
        CollectRate("cube-triple-play", 290.0, 400.0),
        CollectRate("cube-quadruple-play", 385.0, 447.0),
        CollectRate("scene-play", 293.0, 362.0),
        CollectRate("puzzle-3x3-play", 490.0, 365.0),
        CollectRate("puzzle-4x4-play", 291.0, 445.0),
        CollectRate("pointmaze-medium-navigate", 12_318.0, 27.0),
    )
    update_rates: tuple[UpdateRate, ...] = (
        UpdateRate(
            platform="cpu",
            chips=2,
            agent={
                "name": "vast",
                "width": 64,
                "depth": 4,
                "flow_steps": 10,
                "precision": "float32",
                "rematerialise": False,
                # "recorded" samples two flows for each window in place of five.
                "value_windows": "drawn",
            },
            batch_size=256,
            seeds=1,
            updates_per_s=70.1,
            source="tests/benchmarks/README.md, `python -m trainer bench step --widths "
            "64 ...` on two idle cores of an AMD EPYC",
        ),
    )


MEASURED = Measured()


def find_collect_rate(measured: Measured, dataset: str) -> CollectRate | None:
    """Finds the measured rate and size of a data set.

    Args:
        measured: Measured rates.
        dataset: Name of the data set, with or without version.

    Returns:
        Those of the data set itself, or of another type of data of its environment;
        None if neither was measured, as for a name that is no known data set.
    """
    try:
        domain = parse_dataset(dataset)
    except UsageError:
        return None  # Users may shard data of their own.
    # Another type has the same simulator and the same fields, unlike another
    # environment, where rates differ by a factor of up to 40.
    same = [
        rate
        for rate in measured.collect_rates
        if parse_dataset(rate.dataset).environment == domain.environment
    ]
    own = (rate for rate in same if rate.dataset == domain.dataset)
    return next(own, same[0] if same else None)


def find_update_rate(
    measured: Measured,
    *,
    platform: str,
    chips: int | None,
    agent: "AgentSettings",
    batch_size: int,
    seeds: int,
) -> UpdateRate | None:
    """Finds the measured rate of a setting.

    Args:
        measured: Measured rates.
        platform: Name of an accelerator, or ``"cpu"``.
        chips: Number of chips; None for any number, as of the cores of this machine.
        agent: Settings of the agent to train.
        batch_size: Rows B of each seed's batch.
        seeds: Number of seeds that are trained side by side.

    Returns:
        The rate with its source, or None if none was measured.
    """
    # Only equal settings count: rates do not scale with networks, batch or seeds in a
    # way that could be trusted.
    for rate in measured.update_rates:
        setting = (rate.platform, rate.batch_size, rate.seeds)
        same = setting == (platform, batch_size, seeds) and all(
            getattr(agent, name, None) == trained
            for name, trained in rate.agent.items()
        )
        if same and chips in (None, rate.chips):
            return rate
    return None
