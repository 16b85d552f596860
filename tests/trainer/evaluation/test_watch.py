"""Evaluating while a run is trained: every checkpoint once, and an end to waiting."""

import errno
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
import pytest
from etils import epath
from rich.console import Console

from tests.runs import FakeTrainer
from trainer.errors import PreemptedError, StalledError, StorageError
from trainer.evaluation import rollouts, watch
from trainer.evaluation.evaluate import evaluate_run
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.watch import Patience, watch_run
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import Evaluation, EvaluationSettings, read_evaluations
from trainer.runs.folder import CHECKPOINTS, RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose two checkpoints, of 10 and of 20 updates, are there."""
    folder = tmp_path_factory.mktemp("watch") / "run"
    trainer = FakeTrainer(folder)
    trainer.commit(10)
    trainer.commit(20)
    trainer.close()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def watched(
    folder: Path, shown: io.StringIO | None = None, *, seed: int = 0, **options: Any
) -> list[Evaluation]:
    merged = {"patience": Patience(poll_s=0.05, timeout_s=300)} | options
    console = Console(file=shown or io.StringIO(), width=200)
    settings = EvaluationSettings(episodes=1, seed=seed, environments=1, workers=1)
    return watch_run(RunFolder.open(folder), settings, console=console, **merged)


def steps_of(evaluations: list[Evaluation]) -> list[tuple[int, int]]:
    return [(each.step, each.seed) for each in evaluations]


@contextmanager
def training(work: Callable[[], None]) -> Iterator[None]:
    """Something that happens meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def wait_until(shown: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 300
    while text not in shown.getvalue():
        assert time.monotonic() < deadline, shown.getvalue()
        time.sleep(0.02)


def train_past(folder: Any, shown: io.StringIO) -> None:
    """Commits a step, and once it is evaluated another, which deletes the first."""
    trainer = FakeTrainer(folder, keep=1)
    trainer.commit(10)
    wait_until(shown, "step 10, seed 4: ")
    trainer.commit(20)
    trainer.close()


def test_checkpoints_of_a_run_that_does_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shown = tmp_path / "run", io.StringIO()
    entered = []
    enter = rollouts.RolloutPool.__enter__
    monkeypatch.setattr(
        rollouts.RolloutPool,
        "__enter__",
        lambda pool: entered.append(pool) or enter(pool),
    )

    def train() -> None:
        wait_until(shown, "there is no run yet")
        train_past(folder, shown)

    with training(train):
        evaluations = watched(folder, shown)
    assert steps_of(evaluations) == [(10, 3), (10, 4), (20, 3), (20, 4)]
    assert read_evaluations(RunFolder.open(folder)) == evaluations
    assert len(entered) == 1  # The same environments for all.
    lines = shown.getvalue().splitlines()
    assert lines[0] == f"waiting for {folder}: there is no run yet"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        *("step 10, seed 3", "step 10, seed 4", "step 20, seed 3", "step 20, seed 4")
    ]


def test_nothing_is_evaluated_twice(run: Path) -> None:
    evaluations = watched(run)
    lines = (run / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluations.jsonl").write_text(lines[0])  # As if it was killed between.
    assert steps_of(evaluations) == [(10, 3), (10, 4), (20, 3), (20, 4)]
    assert steps_of(watched(run)) == [(10, 4), (20, 3), (20, 4)]
    assert watched(run) == []
    # Other episodes are another evaluation.
    assert steps_of(watched(run, steps=[20], seed=1)) == [(20, 3), (20, 4)]


def test_checkpoints_deleted_while_it_was_busy(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    restore = CheckpointReader.restore_params

    def too_late(
        checkpoints: CheckpointReader, step: int, *args: Any, **kwargs: Any
    ) -> Any:
        if step == 10:
            shutil.rmtree(run / CHECKPOINTS / "10")
        return restore(checkpoints, step, *args, **kwargs)

    monkeypatch.setattr(CheckpointReader, "restore_params", too_late)
    assert steps_of(watched(run, shown)) == [(20, 3), (20, 4)]
    assert "step 10: was deleted before it could be evaluated" in shown.getvalue()
    # And one that was gone before it was looked for.
    shown = io.StringIO()
    assert watched(run, shown, steps=[10, 20]) == []
    assert "step 10: has no checkpoint any more, left out" in shown.getvalue()


def test_a_step_deleted_between_being_listed_and_looked_at(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Orbax lists steps, then asks each folder for its time: in a file, or its own.
    local = type(epath.Path(run))
    exists, looks = local.exists, []

    def delete_and_look(path: epath.Path) -> bool:
        if path.parent.parent.name == CHECKPOINTS:
            looks.append(path.parent.name)
            if path.parent.name == "10":
                shutil.rmtree(path.parent, ignore_errors=True)
        return exists(path)

    monkeypatch.setattr(local, "exists", delete_and_look)
    with CheckpointReader(RunFolder.open(run)) as checkpoints:
        assert checkpoints.steps() == [20]
    assert "10" in looks
    # Its first look may have been called off.
    assert looks.count("20") >= 1


def test_a_checkpoint_that_is_there_and_cannot_be_read_is_an_error(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_DELETION_S", 0.01)
    shutil.rmtree(run / CHECKPOINTS / "10" / "params")
    with pytest.raises(Exception, match="params"):
        watched(run, steps=[10])


def test_sigterm_while_a_checkpoint_is_restored(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return restore(*args, **kwargs)

    restore = CheckpointReader.restore_params
    monkeypatch.setattr(CheckpointReader, "restore_params", stopped)
    with pytest.raises(PreemptedError, match="run the same command to go on"):
        watched(run)
    assert read_evaluations(RunFolder.open(run)) == []


def test_evaluating_all_passes_over_what_is_deleted_meanwhile(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Evaluator.evaluate

    def play_and_delete(evaluator: Evaluator, step: int, *args: Any) -> Any:
        (last,) = {10, 20} - {step}
        shutil.rmtree(run / CHECKPOINTS / str(last))
        return play(evaluator, step, *args)

    monkeypatch.setattr(Evaluator, "evaluate", play_and_delete)
    shown = io.StringIO()
    evaluations = evaluate_run(
        RunFolder.open(run),
        EvaluationSettings(episodes=1, environments=1, workers=1),
        steps="all",
        console=Console(file=shown, width=200),
    )
    assert steps_of(evaluations) == [(10, 3), (10, 4)]
    assert "step 20: was deleted before it could be evaluated" in shown.getvalue()


def test_what_a_killed_save_left_is_cleared_away(run: Path) -> None:
    rest = run / CHECKPOINTS / "15.orbax-checkpoint-tmp"
    shutil.copytree(run / CHECKPOINTS / "10", rest)
    with CheckpointReader(RunFolder.open(run)) as checkpoints:
        assert checkpoints.steps() == [10, 20]
    assert rest.exists()  # A reader leaves it: it may be a save going on.
    trainer = FakeTrainer(run)
    trainer.commit(30)
    trainer.close()
    assert not rest.exists()


def test_a_step_that_is_being_deleted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # As if killed before a file of it is gone.
        patched.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        trainer = FakeTrainer(tmp_path, keep=1)
        trainer.commit(10)
        trainer.commit(20)
        trainer.close()
    with CheckpointReader(RunFolder.open(tmp_path)) as checkpoints:
        assert checkpoints.steps() == [20]
    rests = tmp_path / CHECKPOINTS / "deleted"
    assert [each.name for each in rests.iterdir()] == ["10"]
    trainer = FakeTrainer(tmp_path, keep=1)
    trainer.commit(30)
    trainer.close()
    assert [each.name for each in rests.parent.iterdir()] == ["30"]


def test_the_last_good_step_outlives_the_save_that_would_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(tmp_path, keep=1)
    trainer.commit(10)

    class Failed:
        """What a save in the background ends with."""

        def result(self, timeout: float | None = None) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def full(*args: Any, **kwargs: Any) -> list[Failed]:
        return [Failed()]

    with monkeypatch.context() as patched:
        patched.setattr(ocp.JsonCheckpointHandler, "async_save", full)
        with pytest.raises(StorageError, match="the last one written is step 10"):
            trainer.commit(20)
    trainer.close()
    with CheckpointReader(RunFolder.open(tmp_path)) as checkpoints:
        assert checkpoints.steps() == [10]


def test_waiting_ends(run: Path, tmp_path: Path) -> None:
    soon = Patience(poll_s=0.05, timeout_s=0.3)
    with pytest.raises(StalledError, match=r"nowhere: no checkpoint at all within 0.0"):
        watched(tmp_path / "nowhere", patience=soon)
    shutil.rmtree(run / CHECKPOINTS / "20")
    with pytest.raises(StalledError, match=r"no checkpoint after step 10 within"):
        watched(run, patience=soon)
    assert steps_of(read_evaluations(RunFolder.open(run))) == [(10, 3), (10, 4)]


def test_sigterm_ends_it_and_its_environments(tmp_path: Path) -> None:
    shown = io.StringIO()
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        wait_until(shown, "there is no run yet")
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        training(stop),
        pytest.raises(PreemptedError, match="run the same command to go on"),
    ):
        watched(tmp_path / "run", shown)
    assert signal.getsignal(signal.SIGTERM) is before


def test_numbers_out_of_range(run: Path) -> None:
    with pytest.raises(
        ValueError, match=r"steps: expected some of 1 to 20, .* got \[3"
    ):
        watched(run, steps=[30])
    with pytest.raises(
        ValueError, match="--poll: expected more than 0, got 0 seconds; raise it"
    ):
        Patience(poll_s=0)
    # Every comparison with NaN is False: `time.sleep` would raise later.
    with pytest.raises(ValueError, match="--timeout: expected more than 0, got nan"):
        Patience(timeout_s=float("nan"))
