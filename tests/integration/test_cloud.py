"""The path from raw trajectories to a report on Cloud Storage writes a disk's bytes.

It runs on a server on loopback, once directly, and once behind a proxy that refuses
some requests and cuts off some answers.
"""

import dataclasses
import functools
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from pipeline.assembly import commit
from pipeline.assembly.commit import commit_store
from pipeline.assembly.plan import describe_inputs
from pipeline.cli import main as pipeline_main
from pipeline.commands.execution import plan_relabelled
from pipeline.domains import goals
from pipeline.domains.datasets import parse_dataset
from pipeline.sources.detection import find_sources
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import DATASET_MANIFEST
from pipeline.store.reader import Store
from tests.fake_gcs import failing, forget_clients, serve
from tests.parts import write_alone
from tests.trainer.evaluation.test_watch import steps_of, train_past, training, watched
from trainer.agents.iql_config import IQLConfig
from trainer.cli import main as trainer_main
from trainer.config import Config, TrainerConfig
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, make_feed, open_rows
from trainer.data.feed_config import FeedConfig
from trainer.evaluation.watch import Patience, watch_run
from trainer.report.report import write_report
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import (
    Evaluation,
    EvaluationSettings,
    append_evaluation,
    read_evaluations,
)
from trainer.runs.folder import (
    CHECKPOINTS,
    METRICS_FILE,
    RunFolder,
    find_runs,
    open_folder,
)
from trainer.runs.history import read_history
from trainer.runs.run import Run, describe_run, read_run
from trainer.runs.subgoal_files import SUBGOALS
from trainer.training import loop
from trainer.training.session import check_folder

pytestmark = [
    # Google's client causes these warnings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
BUCKET = "vast-cloud"
QUIET = Console(quiet=True)
DATASET = "pointmaze-medium-navigate"
CONFIG = Config(
    dataset=DATASET,
    agent=IQLConfig(width=8, depth=1),
    trainer=TrainerConfig(
        steps=20,
        batch_size=8,
        updates_per_call=5,
        seeds=2,
        log_every=5,
        checkpoint_every=10,
    ),
)
# The limit allows at most half of the rows in memory.
WINDOWED = FeedConfig(
    prefetch_calls=1, memory_limit_bytes=4_000, block_rows=25, reuse=8.0
)


@dataclass(frozen=True)
class Local:
    """The store, run and report of the same commands on a disk."""

    folder: Path
    run: Run

    @property
    def out(self) -> Path:
        return self.folder / "runs" / "one"


@pytest.fixture(scope="module", autouse=True)
def _tasks_read_once() -> Iterator[None]:
    """Reads tasks only once, because that starts the simulator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(goals, "read_tasks", functools.cache(goals.read_tasks))
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    folder = tmp_path_factory.mktemp("local")
    write_npz(folder / f"{DATASET}-v0.npz", episodes=8, seed=0)
    write_npz(folder / f"{DATASET}-v0-val.npz", episodes=2, seed=1)
    assert shard(folder / f"{DATASET}-v0.npz", folder / "store") == 0
    out = folder / "runs" / "one"
    run = train(str(folder / "store"), str(out), steps=20)
    assess(folder / "runs", folder / "report")
    return Local(folder, run)


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket, with credentials that must not be sent to the server."""
    credentials = tmp_path / "credentials.json"
    secret = {"client_id": "me", "client_secret": "secret", "refresh_token": "secret"}
    credentials.write_text(json.dumps({"type": "authorized_user", **secret}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    forget_clients()
    with serve() as client:
        yield client.create_bucket(BUCKET)
    forget_clients()


@pytest.fixture
def conditional(gcs: Any) -> Iterator[Any]:
    """The bucket behind a proxy, with which all preconditions are checked."""
    with failing(refused=0, cut=0):
        forget_clients()
        yield gcs
    forget_clients()


def write_npz(path: Path, *, episodes: int, seed: int, length: int = 25) -> None:
    """Writes made-up walks in OGBench's format."""
    rng = np.random.default_rng(seed)
    rows = episodes * length
    at = np.cumsum(rng.normal(scale=0.5, size=(rows, 2)), axis=0).astype(np.float32)
    actions = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    terminals = np.arange(1, rows + 1) % length == 0
    np.savez(
        path,
        observations=at,
        actions=actions,
        qpos=at,
        qvel=np.zeros_like(at),
        terminals=terminals,
    )


def shard(source: object, out: object) -> int:
    arguments = ["shard", str(source), "--dataset", DATASET, "--out", str(out)]
    return pipeline_main([*arguments, "--discounts", "0.99", "--part-rows", "60"])


def train(store: str, out: str, *, steps: int) -> Run:
    """Does what ``trainer train`` does, without parsing arguments."""
    trainer = dataclasses.replace(CONFIG.trainer, steps=steps)
    config = dataclasses.replace(CONFIG, trainer=trainer)
    rows = rows_of(store, FeedConfig())
    run = describe_run(config, Store(store), 1, fingerprint=rows.fingerprint)
    check_folder(RunFolder.open(out))
    assert loop.train(run, rows, RunFolder.open(out), console=QUIET) == steps
    return run


def rows_of(store: str, feed: FeedConfig) -> Any:
    return open_rows(
        Store(store),
        feed,
        task=1,
        discount=0.99,
        batch_size=8,
        updates_per_call=5,
        seed=0,
    )


def assess(runs: Any, report: Any) -> list[str]:
    """Does what ``evaluate --watch`` and ``report`` do; returns the report's files."""
    evaluations = watch_run(
        RunFolder.open(f"{runs}/one"),
        EvaluationSettings(episodes=1, environments=1, workers=1),
        patience=Patience(poll_s=0.05, timeout_s=300),
    )
    assert [(each.step, each.seed) for each in evaluations] == [
        *((10, 0), (10, 1), (20, 0), (20, 1))
    ]
    written = write_report(find_runs(f"{runs}/*"), open_folder(report))
    return [os.path.relpath(path, report) for path in written]


def evaluated(out: Any) -> list[Evaluation]:
    """Reads the evaluations, without their durations."""
    return [
        dataclasses.replace(each, duration_s=0.0)
        for each in read_evaluations(RunFolder.open(out))
    ]


def windowed_batches(store: str) -> list[np.ndarray]:
    """Draws batches from a window of a store; returns all their arrays."""
    rows = rows_of(store, WINDOWED)
    assert isinstance(rows, ResidentRows)
    sampler = describe_run(CONFIG, Store(store), 1, fingerprint="").agent().sampler
    source = BatchSource(
        rows, sampler, seeds=(0, 1), batch_size=8, steps=40, gather=True
    )
    feed = make_feed(source, WINDOWED, updates_per_call=5)
    return [leaf for call in feed for leaf in jax.tree.leaves(call)]


def tree_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_equal(one: Any, other: Any) -> None:
    leaves = jax.tree.leaves(one)
    assert len(leaves) > 3
    for a, b in zip(leaves, jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def learned(out: str, run: Run) -> Any:
    with CheckpointReader(RunFolder.open(out)) as checkpoints:
        assert checkpoints.steps() == [10, 20]
        return checkpoints.restore_params(20, run.agent(), seeds=2)


def losses(out: str) -> list[tuple[int, int, float]]:
    return [
        (line["step"], line["seed"], line["loss"])
        for line in RunFolder.open(f"{out}").read_lines(METRICS_FILE)
    ]


def demo(bucket: Any, local: Local) -> None:
    """Goes the whole path on a bucket, and compares its bytes with the disk's."""
    for path in local.folder.glob("*.npz"):
        bucket.blob(f"raw/{path.name}").upload_from_filename(str(path))
    store, out = f"gs://{BUCKET}/store", f"gs://{BUCKET}/runs/one"
    assert shard(f"gs://{BUCKET}/raw/{DATASET}-v0.npz", store) == 0
    names = files.list_names(store)
    there = {name: files.read(store, name).data for name in names}
    assert there == tree_of(local.folder / "store")
    assert pipeline_main(["verify", store, "--deep"]) == 0
    local_store = str(local.folder / "store")
    assert_equal(windowed_batches(store), windowed_batches(local_store))
    # The run stops once and is resumed, as after a preemption.
    train(store, out, steps=10)
    run = train(store, out, steps=20)
    assert dataclasses.replace(run, store=local.run.store) == local.run
    assert read_run(RunFolder.open(out)) == run
    assert losses(out) == losses(str(local.out))
    assert len(losses(out)) == 8
    assert_equal(learned(out, run), learned(str(local.out), run))
    assert (
        read_history(RunFolder.open(local.out)).names()
        == read_history(RunFolder.open(open_folder(out))).names()
    )
    events = files.list_names(out, "tensorboard")
    # There is one file for each seed, of the resumed run.
    assert [name.split("/")[0] for name in events] == ["seed-0", "seed-1"]
    report = f"gs://{BUCKET}/report"
    written = assess(f"gs://{BUCKET}/runs", report)
    assert evaluated(out) == evaluated(local.out)
    assert files.list_names(report) == sorted(written)
    pictures = [name for name in written if name.endswith(".svg")]
    assert len(pictures) == 5
    for name in (*pictures, "results.csv"):
        drawn = files.read(report, name).data
        assert drawn == (local.folder / "report" / name).read_bytes(), name


def test_the_whole_way_on_a_bucket(gcs: Any, local: Local) -> None:
    demo(gcs, local)


def test_the_whole_way_behind_a_server_that_fails(gcs: Any, local: Local) -> None:
    with failing(refused=0.05, cut=0.01) as proxy:
        forget_clients()
        demo(gcs, local)
    assert proxy.counts["503"] > 0
    assert proxy.counts["429"] > 0
    assert proxy.counts["cut"] > 0
    assert proxy.credentials == {None, "Bearer emulator"}


def test_a_run_that_is_not_there_is_named(gcs: Any) -> None:
    with pytest.raises(DataFormatError, match=r"^gs://vast-cloud/no/run\.json: exp"):
        read_run(RunFolder.open(f"gs://{BUCKET}/no"))
    with pytest.raises(DataFormatError, match=r"^gs://vast-cloud/no/checkpoints: exp"):
        CheckpointReader(RunFolder.open(f"gs://{BUCKET}/no"))
    gcs.blob("thesis/thesis.tex").upload_from_string("years of work")
    with pytest.raises(DataFormatError, match="not empty and holds no run"):
        check_folder(RunFolder.open(f"gs://{BUCKET}/thesis"))


def test_a_run_that_is_copied_to_a_bucket_and_a_step_that_is_not_whole(
    gcs: Any, local: Local
) -> None:
    out, last = f"gs://{BUCKET}/copied", f"{CHECKPOINTS}/20/commit_success.txt"
    copied = tree_of(local.out)
    for name, data in copied.items():
        if name != last:
            files.write(out, name, data)
    with CheckpointReader(RunFolder.open(out)) as checkpoints:
        assert checkpoints.steps() == [10]
    files.write(out, last, copied[last])
    assert_equal(learned(out, local.run), learned(str(local.out), local.run))


def test_a_run_on_a_bucket_is_watched_inspected_and_found(
    conditional: Any, local: Local
) -> None:
    folder, shown = f"gs://{BUCKET}/runs/watched", io.StringIO()
    with training(functools.partial(train_past, folder, shown)):
        evaluations = watched(folder, shown)
    assert steps_of(evaluations) == [(10, 3), (10, 4), (20, 3), (20, 4)]
    assert read_evaluations(RunFolder.open(folder)) == evaluations
    run = ("evaluate", folder, "--watch", "--episodes", "1", "--environments", "1")
    assert trainer_main([*run, "--workers", "1"]) == 0
    assert len(read_evaluations(RunFolder.open(folder))) == 4  # None was missing.
    # Several evaluators that append at once lose no line.
    more = [
        dataclasses.replace(evaluations[0], evaluation_seed=seed) for seed in (1, 2, 3)
    ]
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(functools.partial(append_evaluation, RunFolder.open(folder)), more)
        )
    assert len(read_evaluations(RunFolder.open(folder))) == 7
    store = ("--store", str(local.folder / "store"))
    drawn = ("--episodes", "1", "--frames", "1")
    assert trainer_main(["subgoals", f"{folder}/", *store, *drawn]) == 0
    there = files.list_names(folder, SUBGOALS)
    assert {"subgoals.json", "subgoals.npz", "subgoal_errors.svg"} <= set(there)
    # A folder of runs may hold other files, too.
    files.write(f"gs://{BUCKET}/runs", "notes/first.txt", b"try wider nets")
    runs, report = f"gs://{BUCKET}/runs/*", f"gs://{BUCKET}/report"
    assert trainer_main(["report", runs, "--out", report]) == 0
    names = files.list_names(report)
    assert "watched/subgoal_errors.svg" in names
    assert {name.split("/")[0] for name in names if "/" in name} == {"watched"}
    with pytest.raises(DataFormatError, match=r"x\*: matches no folder of a run"):
        write_report(find_runs(f"gs://{BUCKET}/runs/x*"), open_folder(report))


def test_of_two_pipelines_racing_for_one_store_one_wins(
    conditional: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = f"gs://{BUCKET}/raced"
    sources = [tmp_path / name / f"{DATASET}-v0.npz" for name in ("one", "two")]
    for seed, path in enumerate(sources):
        path.parent.mkdir()
        write_npz(path, episodes=3, seed=seed)
        assert shard(path, path.parent / "store") == 0
    capfd.readouterr()
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(functools.partial(shard, out=store), sources))
    assert sorted(codes) == [0, 2]
    winner = sources[codes.index(0)].parent / "store"
    names = files.list_names(store)
    assert {name: files.read(store, name).data for name in names} == tree_of(winner)
    errors = capfd.readouterr().err
    assert "another store has been begun here" in errors or "already holds" in errors


def test_a_store_committed_at_the_last_moment_is_not_replaced(
    conditional: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{DATASET}-v0.npz"
    write_npz(path, episodes=3, seed=0)
    store = f"gs://{BUCKET}/late"
    plan = plan_relabelled(
        parse_dataset(DATASET),
        store,
        describe_inputs(find_sources(str(path), dataset=DATASET)[1]),
        discounts=(0.99,),
    )
    parts = write_alone(*plan.parts)

    def look_then_lose(*asked: Any, **of: Any) -> None:
        files.write(store, DATASET_MANIFEST, b"of somebody else")

    # The other store appears after the check, so only the precondition can notice it.
    monkeypatch.setattr(commit, "_find", look_then_lose)
    with pytest.raises(DataFormatError, match="another run has committed"):
        commit_store(plan, parts)
    assert files.read(store, DATASET_MANIFEST).data == b"of somebody else"
