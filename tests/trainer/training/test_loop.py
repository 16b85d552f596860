"""The loop and its checkpoints, in this process: exact, as configured, logged."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.store.reader import Store
from tests.small_runs import QUIET, everything, fresh, make_run
from trainer.agents.vast_config import VASTConfig
from trainer.data.table import RowTable
from trainer.runs.checkpoints import CheckpointReader, CheckpointWriter
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.retention import Retention
from trainer.runs.run import Run
from trainer.training import loop, session


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
    agent = VASTConfig(width=8, depth=1, flow_steps=2, max_horizon=6, ema_decay=0.9)
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
    to_mesh = session._send_to_mesh

    def note(values: Any, *places: Any) -> Any:
        sent.append(values)
        return to_mesh(values, *places)

    monkeypatch.setattr(session, "_send_to_mesh", note)

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
    monkeypatch.setattr(session, "_send_to_mesh", lambda values, *_: values)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"
    ):
        loop.train(
            make_run(store, table), table, RunFolder.open(tmp_path), console=QUIET
        )
    with (
        loop._forbid_implicit_transfers(),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"),
    ):
        float(jax.device_put(np.ones(2))[0])  # Its index would be sent.


def test_the_call_and_what_is_kept_are_as_configured(
    store: Store, table: RowTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class EnoughError(Exception):
        pass

    def keep(folder: RunFolder, retention: Retention) -> CheckpointWriter:
        asked["retention"] = retention
        return CheckpointWriter(folder, retention)

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
        "retention": Retention(keep=2, keep_every=40, every=20),
        "seeds": 2,
        "microbatches": 4,
    }
