"""Pins values that stores, runs and launchers depend on, against moves and renames.

A pinned value changes only on purpose, with an entry of its own in CHANGELOG.md.
"""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

import infra.cli
import pipeline.cli
import trainer.cli
from infra.commands.doctor import Doctor
from infra.errors import LaunchError
from pipeline.assembly.plan import PartPlan
from pipeline.commands.verify import Verify
from pipeline.sources.episodes import EpisodeRange
from pipeline.store.errors import (
    BadEpisodeError,
    DataFormatError,
    FormatVersionError,
    MissingPackageError,
    UnfinishedStoreError,
    UsageError,
    WorkerError,
)
from pipeline.store.manifest import FieldSpec, Origin, Task
from pipeline.store.reader import Store
from tests.stores import version_1, write_store
from trainer.commands.toy import Toy
from trainer.data.block_window import Schedule
from trainer.data.horizon_windows import EndingHorizonSampler, HorizonSampler
from trainer.data.nstep_windows import NStepSampler
from trainer.data.table import load_table
from trainer.errors import (
    ConfigError,
    EvaluationError,
    HostsError,
    OutOfMemoryError,
    PreemptedError,
    StalledError,
    StorageError,
    TrainingDivergedError,
)


def test_what_keys_the_random_streams() -> None:
    """The repr of a sampler enters the key of batches, a schedule's that of blocks."""
    assert repr(HorizonSampler(max_horizon=25, discount=0.99)) == (
        "HorizonSampler(max_horizon=25, discount=0.99, min_horizon=2, "
        "goal_shares=(0.1, 0.8, 0.1), goal_rule='uniform')"
    )
    assert repr(EndingHorizonSampler(max_horizon=25, discount=0.99)) == (
        "EndingHorizonSampler(max_horizon=25, discount=0.99, min_horizon=2, "
        "goal_shares=(0.1, 0.8, 0.1), goal_rule='uniform')"
    )
    assert repr(NStepSampler(steps=5, discount=0.99)) == (
        "NStepSampler(steps=5, discount=0.99, rule='exact')"
    )
    schedule = Schedule(blocks=8, resident=2, swap_every=10, seed=3)
    assert repr(schedule) == "Schedule(blocks=8, resident=2, swap_every=10, seed=3)"
    assert [schedule.block(place) for place in range(12)] == [
        0,
        6,
        2,
        5,
        3,
        1,
        7,
        4,
        2,
        0,
        7,
        3,
    ]


def test_the_digest_of_a_part() -> None:
    """A repeated command recognises finished parts by their digest."""
    plan = PartPlan(
        root="/anywhere",
        index=0,
        split="train",
        source=None,  # type: ignore[arg-type]
        origin=Origin("ogbench_npz", "cube.npz", "sha256:00", 0),
        episodes=EpisodeRange(0, 0, (3, 4)),
        fields={"observations": FieldSpec("float32", (2,))},
        tasks=(Task(1, "task1", "cube-single-singletask-task1-v0", "cube"),),
        discounts=(0.99,),
        on_bad_episode="refuse",
    )
    assert plan.digest() == (
        "sha256:7c4d4958685a5ec2d30385e5323a1db28d3c39b919ccb7d2e9ca9152cdfd3215"
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, "fbe1ba893aede2ddc2442add90aff4fca4fd84cde3793a223c6174adcd32370f"),
        (2, "eb4a2c48dcbcccb974a6e46252d883b41c3ac39417885b70628051aa9540031e"),
    ],
)
def test_the_bytes_of_a_store(tmp_path: Path, version: int, expected: str) -> None:
    digest = hashlib.sha256()
    names = []
    with version_1() if version == 1 else nullcontext():
        write_store(tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            names.append(path.relative_to(tmp_path).as_posix())
            digest.update(names[-1].encode())
            digest.update(path.read_bytes())
    assert "parts/00001/returns/0.99/zarr.json" in names
    assert digest.hexdigest() == expected
    store = Store(str(tmp_path))
    assert store.manifest.format_version == version
    # Runs recognise their data by the fingerprint, in either version of the format.
    assert store.manifest.fingerprint() == (
        "8d428dcc3e69d192d0290bd290570d8a41e3993ea9d42a2c25b37ea5ae1c3316"
    )


def test_what_a_run_calls_its_data(tmp_path: Path) -> None:
    """The fingerprint of a table enters the key of every random stream."""
    store = Store(str(write_store(tmp_path)))
    table = load_table(store, task=2, discount=0.99)
    assert table.fingerprint == (
        "e9a55e7a61d6fa412aa4553a3e3a5bf805f9c77885d684951853234cd9481501/train/2"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadEpisodeError("", reason="nonfinite"), 2),
        (ConfigError(), 2),
        (DataFormatError(), 2),
        (EvaluationError(), 1),
        (FormatVersionError(), 2),
        (HostsError(), 1),
        (KeyboardInterrupt(), 130),
        (LaunchError(), 2),
        (MissingPackageError(), 2),
        (OSError(), 1),
        (OutOfMemoryError(), 1),
        (PreemptedError(), 75),
        (StalledError(), 4),
        (StorageError(), 1),
        (TrainingDivergedError(), 3),
        (UnfinishedStoreError(), 2),
        (UsageError(), 2),
        (WorkerError(), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes_that_launchers_act_on(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit codes are the same in all three programs."""
    for run in fail_with(error, monkeypatch):
        assert run() == code


@pytest.mark.parametrize("kind", [ImportError, KeyError, TypeError, ValueError])
def test_a_bug_is_not_called_wrong_use(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in fail_with(kind("a bug"), monkeypatch):
        with pytest.raises(kind, match="a bug"):
            run()


def fail_with(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> list[Callable[[], int]]:
    """Calls of one command of each program, patched to raise the error."""

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(Toy, "execute", fail)
    monkeypatch.setattr(Verify, "execute", fail)
    monkeypatch.setattr(Doctor, "execute", fail)
    return [
        lambda: trainer.cli.main(["toy", "--out", "toy"]),
        lambda: pipeline.cli.main(["verify", "store"]),
        lambda: infra.cli.main(["doctor", "gs://bucket"]),
    ]
