"""How a run ends: asked to stop, diverged, or finished before."""

import dataclasses
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pipeline.store.reader import Store
from tests.small_runs import QUIET, make_run
from trainer import errors
from trainer.data.table import RowTable
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.training import loop


def test_a_finished_run_started_again_changes_nothing(
    whole: Path, store: Store, table: RowTable
) -> None:
    before = (whole / METRICS_FILE).read_text()
    said = io.StringIO()
    console = Console(file=said, width=500)
    folder = RunFolder.open(whole)
    assert loop.train(make_run(store, table), table, folder, console=console) == 40
    expected = "40 updates were asked for, and the latest checkpoint is of step 40"
    assert f"already finished: {expected}" in said.getvalue()
    assert "going on" not in said.getvalue()
    assert (whole / METRICS_FILE).read_text() == before


@pytest.fixture
def set_hangup() -> Iterator[Callable[[signal.Handlers], None]]:
    """Sets the handler of SIGHUP, which tests that `nohup` runs would ignore."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_stop_saves_and_says_so(
    store: Store, table: RowTable, tmp_path: Path, number: signal.Signals, set_hangup
) -> None:
    set_hangup(signal.SIG_DFL)
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


def test_a_hangup_stops_training_except_under_nohup(tmp_path: Path, set_hangup) -> None:
    folder = RunFolder.open(tmp_path)
    for handler, stops in ((signal.SIG_IGN, False), (signal.SIG_DFL, True)):
        set_hangup(handler)
        with loop._collect_signals(folder, 20) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested is stops
        assert signal.getsignal(signal.SIGHUP) is handler


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
    with loop._collect_signals(folder, 20) as stop:
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
