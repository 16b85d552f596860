"""The loop and its checkpoints, in this process: resume, refusal, preemption."""

import copy
import dataclasses
import io
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.stores import write_store
from trainer import errors
from trainer.agents.iql_config import IQLConfig
from trainer.agents.vast_config import VASTConfig
from trainer.config import Config, TrainerConfig
from trainer.data.feed import BatchSource, make_feed
from trainer.data.table import RowTable, load_table
from trainer.errors import StorageError
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.runs.checkpoints import CheckpointReader, CheckpointWriter
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import Run, describe_run, find_action_outside
from trainer.step.state import init_state
from trainer.training import loop, session
from trainer.training.session import check_folder

QUIET = Console(quiet=True)
CONFIG = Config(
    dataset="pointmaze-medium-navigate",
    agent=IQLConfig(width=8, depth=1),  # The quickest to compile.
    trainer=TrainerConfig(
        steps=40,
        batch_size=8,
        updates_per_call=5,
        seeds=2,
        log_every=10,
        checkpoint_every=20,
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(write_store(tmp_path_factory.mktemp("data") / "store")))


@pytest.fixture(scope="module")
def table(store: Store) -> RowTable:
    return load_table(store, task=1, discount=0.99)


def make_run(store: Store, table: RowTable, **changes: Any) -> Run:
    trainer = dataclasses.replace(CONFIG.trainer, **changes)
    config = dataclasses.replace(CONFIG, trainer=trainer)
    return describe_run(config, store, 1, fingerprint=table.fingerprint)


@pytest.fixture(scope="module")
def whole(
    store: Store, table: RowTable, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run from start to end, without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    profile = str(folder.parent / f"{folder.name}-profile")
    run = make_run(store, table)
    assert (
        loop.train(run, table, RunFolder.open(folder), console=QUIET, profile=profile)
        == 40
    )
    return folder


def fresh(run: Run, table: RowTable) -> tuple[Any, Any]:
    """State and feed of a run before its first update."""
    state = init_state(
        run.agent(), make_mesh(run.config.mesh, seeds=2, batch_size=8), (0, 1)
    )
    source = BatchSource(
        table,
        run.agent().sampler,
        seeds=(0, 1),
        batch_size=8,
        steps=40,
        gather=False,
    )
    return state, make_feed(source, run.config.feed, updates_per_call=5)


def everything(folder: Path, run: Run, table: RowTable, step: int) -> list[np.ndarray]:
    """Every array a checkpoint holds."""
    like, feed = fresh(run, table)
    state = CheckpointReader(RunFolder.open(folder)).restore(
        step, like, feed, updates_per_call=5
    )
    assert feed.get_state() == {"next_index": step // 5}
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def test_metrics_are_logged_per_seed(whole: Path) -> None:
    lines = RunFolder.open(whole).read_lines(METRICS_FILE)
    assert [(line["step"], line["seed"]) for line in lines] == [
        (step, seed) for step in (10, 20, 30, 40) for seed in (0, 1)
    ]
    assert lines[0]["loss"] != lines[1]["loss"]
    assert 0 <= lines[0]["input_blocked_share"] <= 1
    assert list((whole / "tensorboard").iterdir())


def test_a_trace_is_written_if_asked_for(whole: Path) -> None:
    # Where TensorBoard's profile plugin looks for it.
    profile = whole.parent / f"{whole.name}-profile"
    (trace,) = profile.glob("plugins/profile/*/*.xplane.pb")
    assert b"call" in trace.read_bytes()  # The jitted function of an update.


def test_resume_is_bit_exact(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    assert_resumes(make_run(store, table), whole, table, tmp_path)


def test_resume_of_vast_is_bit_exact(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    agent = VASTConfig(width=8, depth=1, flow_steps=2, max_horizon=6)
    run = make_run(store, table)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, agent=agent))
    out = RunFolder.open(tmp_path / "whole")
    loop.train(run, table, out, console=QUIET)
    assert_resumes(run, tmp_path / "whole", table, tmp_path / "halves")
    lines = out.read_lines(METRICS_FILE)
    assert sum(lines[0]["windows_by_horizon"]) == 10 * 8


def assert_resumes(run: Run, whole: Path, table: RowTable, folder: Path) -> None:
    """Trains in two goes what ``whole`` was trained to in one."""
    trainer = dataclasses.replace(run.config.trainer, steps=20)
    half = dataclasses.replace(
        run, config=dataclasses.replace(run.config, trainer=trainer)
    )
    out = RunFolder.open(folder)
    loop.train(half, table, out, console=QUIET)
    assert CheckpointReader(out).steps() == [20]
    loop.train(run, table, out, console=QUIET)
    one, other = (everything(each, run, table, 40) for each in (whole, folder))
    assert len(one) > 50
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    losses = [
        [line["loss"] for line in RunFolder.open(each).read_lines(METRICS_FILE)]
        for each in (whole, folder)
    ]
    assert losses[0] == losses[1]


def test_what_is_saved_is_the_state_of_that_step(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    run = make_run(store, table)
    state, feed = fresh(run, table)
    first = [np.array(leaf) for leaf in jax.tree.leaves(state)]
    later = jax.jit(
        lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0
    )
    checkpoints = CheckpointWriter(RunFolder.open(tmp_path))
    for step in (10, 20):  # The second save uses the memory of the first.
        checkpoints.save(step, state, feed, run)
        for _ in range(3):
            state = later(state)
    checkpoints.close()
    for step in (10, 20):
        saved = CheckpointReader(RunFolder.open(tmp_path)).restore(
            step, state, feed, updates_per_call=5
        )
        for leaf, before in zip(jax.tree.leaves(saved), first, strict=True):
            calls = 3 * (step // 10 - 1)
            np.testing.assert_allclose(
                leaf, before + np.asarray(calls, before.dtype), rtol=1e-6
            )


def test_calls_of_another_size_go_on_with_the_same_batches(
    store: Store, table: RowTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    to_mesh = session._to_mesh

    def note(values: Any, placed: Any) -> Any:
        sent.append(values)
        return to_mesh(values, placed)

    monkeypatch.setattr(session, "_to_mesh", note)

    def train(folder: str, **changes: int) -> None:
        run = make_run(store, table, **changes)
        loop.train(run, table, RunFolder.open(tmp_path / folder), console=QUIET)

    def batches() -> list[np.ndarray]:
        """Every batch since the last time: ``[updates, Q, B, ...]`` each."""
        joined = jax.tree.map(lambda *calls: np.concatenate(calls), *sent)
        sent.clear()
        return jax.tree.leaves(joined)

    train("unbroken")
    unbroken = batches()
    train("changed", steps=20)
    assert len(sent) == 4
    train("changed", updates_per_call=10)
    assert len(sent) == 4 + 2
    changed = batches()
    assert len(changed) == len(unbroken) > 3
    for ours, theirs in zip(changed, unbroken, strict=True):
        assert len(ours) == 40
        np.testing.assert_array_equal(ours, theirs)
    params = []
    for folder in ("unbroken", "changed"):
        checkpoints = CheckpointReader(RunFolder.open(tmp_path / folder))
        agent = make_run(store, table).agent()
        params.append(checkpoints.restore_params(40, agent, seeds=2))
        checkpoints.close()
    # Two programs: the compiler may round differently.
    for a, b in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_what_is_not_sent_on_purpose_is_refused(
    store: Store, table: RowTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor can a later call be traced anew: the loop calls what it has compiled, which
    # refuses other shapes and types. All other tests here pass under the guard.
    monkeypatch.setattr(session, "_to_mesh", lambda values, placed: values)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"
    ):
        loop.train(
            make_run(store, table), table, RunFolder.open(tmp_path), console=QUIET
        )
    with (
        loop._only_sent_on_purpose(),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"),
    ):
        float(jax.device_put(np.ones(2))[0])  # Its index would be sent.


def test_the_call_and_what_is_kept_are_as_configured(
    store: Store, table: RowTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class EnoughError(Exception):
        pass

    def keep(folder: RunFolder, **given: Any) -> CheckpointWriter:
        asked.update(given)
        return CheckpointWriter(folder, **given)

    def make(agent: Any, mesh: Any, **given: Any) -> Any:
        asked.update(given)
        raise EnoughError

    monkeypatch.setattr(session, "CheckpointWriter", keep)
    monkeypatch.setattr(session, "make_train_call", make)
    run = make_run(
        store,
        table,
        batch_size=32,
        microbatches=4,
        keep_checkpoints=2,
        keep_every=40,
    )
    with pytest.raises(EnoughError):
        loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)
    assert asked == {
        "keep": 2,
        "keep_every": 40,
        "seeds": 2,
        "microbatches": 4,
    }


def test_a_finished_run_started_again_changes_nothing(
    whole: Path, store: Store, table: RowTable
) -> None:
    before = (whole / METRICS_FILE).read_text()
    said = io.StringIO()
    console = Console(file=said, width=500)
    folder = RunFolder.open(whole)
    assert loop.train(make_run(store, table), table, folder, console=console) == 40
    assert "already finished, 40 updates were asked for: there is step 40" in (
        said.getvalue()
    )
    assert "going on" not in said.getvalue()
    assert (whole / METRICS_FILE).read_text() == before


def test_a_step_within_a_call_of_another_size_is_refused(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / "40")
    run = make_run(store, table, updates_per_call=8, log_every=8, checkpoint_every=40)
    with pytest.raises(DataFormatError, match=r"step 20 lies within such a call; exp"):
        loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_stop_saves_and_says_so(
    store: Store, table: RowTable, tmp_path: Path, number: signal.Signals
) -> None:
    run = make_run(store, table, steps=1_000_000)

    def stop() -> None:
        while not RunFolder.open(tmp_path).read_lines(METRICS_FILE):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(errors.PreemptedError, match="run the same command to go on"):
        loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)
    thread.join()
    step = CheckpointReader(RunFolder.open(tmp_path)).latest()
    assert step is not None
    assert 10 <= step < 1_000_000
    assert RunFolder.open(tmp_path).read_lines(METRICS_FILE)[-1]["step"] == step


def test_a_run_goes_on_after_its_store_was_given_more_discounts(
    tmp_path: Path,
) -> None:
    root = str(write_store(tmp_path / "store", tasks=1))
    table = load_table(Store(root), task=1, discount=0.99)
    whole = RunFolder.open(tmp_path / "whole")
    run = make_run(Store(root), table)
    loop.train(run, table, whole, console=QUIET)
    out = RunFolder.open(tmp_path / "run")
    loop.train(make_run(Store(root), table, steps=20), table, out, console=QUIET)
    asked = plan_relabelling(root, discounts=(0.9,))
    assert asked is not None
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    later = load_table(Store(root), task=1, discount=0.99)
    assert later.former_fingerprint != table.former_fingerprint
    loop.train(make_run(Store(root), later), later, out, console=QUIET)
    assert CheckpointReader(out).steps() == [20, 40]
    ours, theirs = (
        everything(Path(str(each)), run, table, 40) for each in (out, whole)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    # Other rows are other data still.
    moved = str(write_store(tmp_path / "moved", tasks=1, seed=9))
    other_rows = load_table(Store(moved), task=1, discount=0.99)
    with pytest.raises(DataFormatError, match="was trained on data"):
        loop.train(make_run(Store(moved), other_rows), other_rows, out, console=QUIET)


def test_a_run_of_before_goes_on_by_what_its_data_were_called(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    former = table.former_fingerprint
    assert former is not None
    assert former != table.fingerprint
    named = table.named(former)
    before, whole = tmp_path / "before", tmp_path / "whole"
    loop.train(make_run(store, named), named, RunFolder.open(whole), console=QUIET)
    half = make_run(store, named, steps=20)
    loop.train(half, named, RunFolder.open(before), console=QUIET)
    run = make_run(store, table)
    loop.train(run, table, RunFolder.open(before), console=QUIET)
    ours, theirs = (everything(each, run, table, 40) for each in (before, whole))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert json.loads((before / "run.json").read_text())["fingerprint"] == former
    # A store that has changed since is not the one it was trained on.
    changed = dataclasses.replace(table, former_fingerprint="other")
    with pytest.raises(DataFormatError, match=f"was trained on data {former}"):
        loop.train(run, changed, RunFolder.open(before), console=QUIET)


class EndedError(Exception):
    """In place of the end of this process."""


def test_a_second_ctrl_c_stops_at_once_and_says_what_is_lost(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise EndedError

    monkeypatch.setattr("os._exit", end)
    folder = RunFolder.open(tmp_path)
    # Of a program begun in the background it may be to ignore it.
    before = signal.getsignal(signal.SIGINT)
    with loop._stop_requested(folder, 20) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGTERM)  # A launcher's, which has patience.
        assert codes == []
        with pytest.raises(EndedError):
            os.kill(os.getpid(), signal.SIGINT)
        assert f"{tmp_path} has a checkpoint of step 20" in capfd.readouterr().err
        stop.saves += [30, 40]  # The last of them is not there yet.
        with pytest.raises(EndedError):
            os.kill(os.getpid(), signal.SIGINT)
        said = capfd.readouterr().err
        assert "stopped at once; " in said
        assert "a checkpoint of step 30, what came after it may be lost" in said
    assert codes == [130, 130]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_run_is_refused_and_nothing_is_lost(
    whole: Path, store: Store, table: RowTable
) -> None:
    other = make_run(store, table, batch_size=16)
    with pytest.raises(DataFormatError, match=r"trainer\.batch_size: 8 before, 16 now"):
        loop.train(other, table, RunFolder.open(whole), console=QUIET)
    run = make_run(store, table)
    deeper = dataclasses.replace(
        run,
        config=dataclasses.replace(
            run.config, agent=dataclasses.replace(run.config.agent, depth=3)
        ),
    )
    with pytest.raises(DataFormatError, match=r"agent\.depth: 1 before, 3 now"):
        loop.train(deeper, table, RunFolder.open(whole), console=QUIET)
    moved = dataclasses.replace(run, fingerprint="other")
    with pytest.raises(DataFormatError, match="was trained on data"):
        loop.train(moved, table, RunFolder.open(whole), console=QUIET)
    assert json.loads((whole / "run.json").read_text())["fingerprint"] != "other"
    assert CheckpointReader(RunFolder.open(whole)).steps() == [20, 40]


def test_a_loss_that_is_not_finite_stops_the_run(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    run = make_run(store, table)
    loop.train(
        make_run(store, table, steps=20), table, RunFolder.open(tmp_path), console=QUIET
    )
    poisoned = dataclasses.replace(table, rewards=table.rewards * np.nan)
    with pytest.raises(
        errors.TrainingDivergedError,
        match=r"critic_loss.*between steps 20 and 30.*good checkpoint is step 20",
    ):
        loop.train(run, poisoned, RunFolder.open(tmp_path), console=QUIET)
    assert CheckpointReader(RunFolder.open(tmp_path)).steps() == [20]


def test_no_damaged_step_is_called_good(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    loop.train(
        make_run(store, table, steps=20), table, RunFolder.open(tmp_path), console=QUIET
    )
    digests = tmp_path / "checkpoints" / "20" / "digests" / "metadata"

    class Spoiling(io.StringIO):
        """Damages the step that training has just gone on from."""

        def write(self, text: str) -> int:
            if "going on from the checkpoint of step 20" in text:
                digests.write_text(digests.read_text().replace('"data"', '"dara"'))
            return len(text)

    poisoned = dataclasses.replace(table, rewards=table.rewards * np.nan)
    run, folder = make_run(store, table), RunFolder.open(tmp_path)
    with pytest.raises(errors.TrainingDivergedError, match=r"good checkpoint is none"):
        loop.train(run, poisoned, folder, console=Console(file=Spoiling(), width=200))
    assert '"dara"' in digests.read_text()
    assert CheckpointReader(folder).steps() == [20]


def test_values_above_all_returns_stop_the_run(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    loop.train(
        make_run(store, table, steps=20), table, RunFolder.open(tmp_path), console=QUIET
    )
    run = make_run(store, table, steps=200, max_over_estimation=0.0)
    assert run.facts.return_range(0.99) == pytest.approx((-100, 0))
    # Rewards that the facts know nothing of drive values up, to no end.
    risen = dataclasses.replace(table, rewards=table.rewards + 1e4)
    with pytest.raises(
        errors.TrainingDivergedError,
        match=r"critic .* far above any return, 0 at most, between steps \d+ and \d+; "
        r"the last good checkpoint is step 20 .*trainer\.max_over_estimation",
    ):
        loop.train(run, risen, RunFolder.open(tmp_path), console=QUIET)
    assert CheckpointReader(RunFolder.open(tmp_path)).steps() == [20]


def test_store_of_another_data_set_is_refused(store: Store, table: RowTable) -> None:
    config = dataclasses.replace(CONFIG, dataset="cube-single-play")
    with pytest.raises(DataFormatError, match="expected a store of cube-single-play"):
        describe_run(config, store, 1, fingerprint=table.fingerprint)


def test_a_run_knows_the_scale_of_its_actions(store: Store, table: RowTable) -> None:
    scale = ActionScale((-2.0,) * 3, (2.0,) * 3)
    other = copy.copy(store)
    other.manifest = dataclasses.replace(store.manifest, action_scale=scale)
    run = make_run(other, table)
    assert run.action_scale == scale
    plain = json.loads(json.dumps(run.to_json()))
    assert Run.from_json(plain, where="run.json") == run
    assert other.manifest.fingerprint() != store.manifest.fingerprint()
    # Runs from before there were scales have none.
    del plain["action_scale"]
    assert Run.from_json(plain, where="run.json").action_scale is None


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("observations", {"shape": (64, 64, 3), "dtype": "uint8"}),
        ("actions", {"shape": ()}),
        ("actions", {"dtype": "int32"}),
    ],
)
def test_what_no_agent_learns_from_is_refused(
    store: Store, table: RowTable, name: str, changes: dict[str, Any]
) -> None:
    fields = store.manifest.fields
    odd = {**fields, name: dataclasses.replace(fields[name], **changes)}
    other = copy.copy(store)
    other.manifest = dataclasses.replace(store.manifest, fields=odd)
    with pytest.raises(DataFormatError, match=r"continuous actions \[rows, A\]"):
        make_run(other, table)


def test_actions_outside_are_told_of_older_stores(store: Store) -> None:
    assert find_action_outside(store) is None
    known = store.manifest.statistics
    reaching = dataclasses.replace(known["actions"], minimum=(-1.0, -3.0, -1.0))
    other = copy.copy(store)
    other.manifest = dataclasses.replace(
        store.manifest, statistics={**known, "actions": reaching}
    )
    assert find_action_outside(other) == -3


def test_a_mesh_that_is_refused_makes_no_folder(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    run = make_run(store, table)
    wrong = dataclasses.replace(
        run, config=dataclasses.replace(run.config, mesh=MeshConfig(data=3))
    )
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="8 devices there are, got seed=1, data=3"):
        loop.train(wrong, table, RunFolder.open(out), console=QUIET)
    assert not out.exists()


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataFormatError, match="not empty and holds no run"):
        check_folder(RunFolder.open(tmp_path))


def test_folder_of_a_start_that_was_cut_short_is_taken(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "run.json.__lock").touch()
    check_folder(RunFolder.open(tmp_path))
    (tmp_path / "checkpoints" / "mine").touch()
    with pytest.raises(DataFormatError, match="not empty and holds no run"):
        check_folder(RunFolder.open(tmp_path))


def test_a_checkpoint_that_cannot_be_read_is_named(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    run = make_run(store, table, steps=60)
    said = r"checkpoints/40: cannot be read .*delete that folder to go on from step 20"
    for item in ("data", "run"):  # The one is read last, the other first.
        file = tmp_path / "checkpoints" / "40" / item / "metadata"
        file.write_text("")
        with pytest.raises(StorageError, match=said):
            loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)
    shutil.rmtree(tmp_path / "checkpoints" / "40")
    assert loop.train(run, table, RunFolder.open(tmp_path), console=QUIET) == 60
