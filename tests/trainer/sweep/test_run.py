"""Running sweeps: the commands of each cell, their order, failures and signals."""

import dataclasses
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import front_door
from pipeline.output import Output
from pipeline.store import files
from tests.fake_gcs import failing, forget_clients, serve
from tests.stores import write_store
from tests.trainer.sweep.made_up_cells import cells_of, commit, evaluate
from trainer.cli import PROGRAM
from trainer.commands.report import Report
from trainer.commands.sweep import Sweep as SweepCommand
from trainer.runs.evaluations import read_evaluations
from trainer.runs.folder import (
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    find_runs,
)
from trainer.runs.run import read_run
from trainer.sweep.cells import Cell
from trainer.sweep.run import LOGS, Clock, ProcessRunner, run_sweep
from trainer.sweep.states import State, read_logged_step, read_state


class FakeRunner:
    """Writes what a command would leave in a cell's folder, or fails as it is told."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.ran: list[str] = []
        self.codes: dict[str, int] = {}
        self._cells = {str(cell.folder): cell for cell in cells}

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        (cell,) = (self._cells[each] for each in arguments if each in self._cells)
        begun = f"{arguments[0]} {cell.name}"
        self.ran.append(begun)
        tick()
        code = self.codes.get(begun, 0)
        if code:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("compiled\nerror: out of luck\n")
        elif arguments[0] == "train":
            commit(cell, 10, 20)
        else:
            evaluate(
                cell, [int(s) for s in arguments[arguments.index("--steps") + 1 :]]
            )
        return code

    def is_stopped(self) -> bool:
        return False


def run(
    cells: Sequence[Cell], runner: FakeRunner | ProcessRunner, *, jobs: int = 1
) -> tuple[int, str]:
    said = io.StringIO()
    console = Console(file=said, width=200)
    code = run_sweep(cells, runner=runner, console=console, jobs=jobs)
    return code, said.getvalue()


def test_a_sweep_does_what_is_missing_and_nothing_twice(sweep: Path) -> None:
    cells = cells_of(sweep, only="*-1-vast-*")
    runner = FakeRunner(cells)
    code, said = run(cells, runner)
    assert code == 0
    assert runner.ran == [
        f"{command} {cell.name}" for cell in cells for command in ("train", "evaluate")
    ]
    assert "about" in said

    runner = FakeRunner(cells)
    assert run(cells, runner)[0] == 0
    assert runner.ran == []

    (cells[1].folder.path / "evaluations.jsonl").unlink()
    assert run(cells, runner)[0] == 0
    assert runner.ran == [f"evaluate {cells[1].name}"]


def test_jobs_share_the_cores_that_evaluations_act_with(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.write_text(sweep.read_text().replace("workers = 1\n", ""))
    asked: list[int | None] = []

    def note(cells: Sequence[Cell], **_: Any) -> int:
        asked.append(cells[0].evaluation.workers)
        return 0

    monkeypatch.setattr("trainer.sweep.run.run_sweep", note)
    monkeypatch.setattr("trainer.commands.sweep.count_usable_cores", lambda: 6)
    monkeypatch.setattr("trainer.sweep.devices.find_gpus", list)
    for jobs in (1, 2, 4):
        assert SweepCommand(sweep, jobs=jobs).execute(Output.silent()) == 0
    assert asked == [None, 3, 1]


def test_cells_trained_on_another_store_are_told(sweep: Path) -> None:
    cells = cells_of(sweep, only="*-1-*")
    for cell, steps, store in (
        (cells[0], (10, 20), "elsewhere/store"),
        (cells[1], (10, 20), f"{cells[1].store}/"),  # The same folder.
        (cells[2], (10,), "elsewhere/store"),  # `train` will compare the data.
    ):
        commit(cell, *steps, store=store)
    code, said = run(cells, FakeRunner(cells))
    assert code == 0
    assert (
        "1 cell: trained on another store, such as "
        f"{cells[0].name} on elsewhere/store, not {cells[0].store}; if these" in said
    )


def test_a_cell_that_fails_is_listed_and_the_others_go_on(sweep: Path) -> None:
    cells = cells_of(sweep, only="*-1-*")
    runner = FakeRunner(cells)
    runner.codes = {f"train {cells[0].name}": 3, f"evaluate {cells[2].name}": -9}
    code, said = run(cells, runner)
    assert code == 1
    assert [read_state(cell).stage for cell in cells] == [
        "new",
        "finished",
        "trained",
        "finished",
    ]
    failures = said[said.index("2 of 4 cells failed") :]
    assert f"{cells[0].name}: train ended with exit code 3: error: out of" in failures
    assert f"{cells[2].name}: evaluate ended with signal 9" in failures


def test_preemption_ends_the_sweep(sweep: Path) -> None:
    cells = cells_of(sweep)
    runner = FakeRunner(cells)
    runner.codes = {f"train {cells[1].name}": 75}
    code, said = run(cells, runner)
    assert code == 75
    assert runner.ran[-1] == f"train {cells[1].name}"
    assert "stopped; to go on: " in said


class Pair(FakeRunner):
    """Begins a training only beside another one."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(cells)
        self._meeting = threading.Barrier(2, timeout=30)

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        if arguments[0] == "train":
            self._meeting.wait()
        return super().__call__(arguments, log, tick)


def test_cells_side_by_side(sweep: Path) -> None:
    cells = cells_of(sweep, only="*-1-*")
    runner = Pair(cells)
    runner.codes = {f"train {cells[1].name}": 3}
    code, said = run(cells, runner, jobs=2)
    assert code == 1
    stages = [read_state(cell).stage for cell in cells]
    assert stages == ["finished", "new", "finished", "finished"]
    assert f"{cells[0].name}: done in" in said
    assert f"{cells[1].name}: failed: train ended with exit code 3" in said
    assert "1 of 4 cells failed" in said


def test_a_stop_lets_no_further_cell_begin(sweep: Path) -> None:
    class Stopped(Pair):
        def __call__(
            self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
        ) -> int:
            self.told = True
            return super().__call__(arguments, log, tick)

        def is_stopped(self) -> bool:
            return self.told

    cells = cells_of(sweep)
    assert len(cells) == 8
    runner = Stopped(cells)
    code, said = run(cells, runner, jobs=2)
    assert code == 75
    assert sorted(runner.ran) == sorted(f"train {cell.name}" for cell in cells[:2])
    assert "stopped; to go on: " in said


def test_a_folder_of_other_settings_is_no_finished_cell(sweep: Path) -> None:
    cells = cells_of(sweep, only="*-1-fql-*")
    runner = FakeRunner(cells)
    run(cells, runner)
    sweep.write_text(sweep.read_text().replace("agent.width = 4", "agent.width = 5"))
    cells = cells_of(sweep, only="*-1-fql-*")
    runner = FakeRunner(cells)
    code, said = run(cells, runner)
    assert (code, runner.ran) == (1, [])
    assert "agent.width: 4 there, 5 asked for" in said


def test_commands_that_end_well_and_leave_nothing_are_failures(sweep: Path) -> None:
    (cell,) = cells_of(sweep, only="*-1-vast-seed-2")

    class Idle(FakeRunner):
        def __call__(
            self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
        ) -> int:
            return 0

    code, said = run([cell], Idle([cell]))
    assert code == 1
    assert "its commands ended well, and yet it is new" in said


def test_the_clock_tells_methods_apart(sweep: Path) -> None:
    vast, _, fql, _ = cells_of(sweep)[:4]
    clock = Clock()
    assert clock.estimate_left_s([(vast, 10)]) is None
    clock.add(vast, 10, 20.0)
    assert clock.estimate_left_s([(vast, 5), (fql, 5)]) == pytest.approx(20.0)
    clock.add(fql, 10, 60.0)
    assert clock.estimate_left_s([(vast, 5), (fql, 5)]) == pytest.approx(10.0 + 30.0)


@pytest.fixture
def bucket() -> Iterator[str]:
    forget_clients()
    with serve() as client:
        client.create_bucket("vast-sweep")
        yield "gs://vast-sweep"
    forget_clients()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_sweep_on_a_bucket(sweep: Path, bucket: str) -> None:
    local = f"{sweep.parent}/out"
    sweep.write_text(sweep.read_text().replace(local, f"{bucket}/out"))
    cell, other = cells = cells_of(sweep, only="*-1-vast-*")
    assert str(read_state(cell)) == "new"
    assert read_logged_step(cell) == 0
    commit(cell, 10)
    files.write(f"{cell.folder}/{CHECKPOINTS}/20", "params/a", b"not yet whole")
    files.write(str(cell.folder), METRICS_FILE, b'{"step": 10}\n{"step": 15')
    assert str(read_state(cell)) == "at step 10"
    assert read_logged_step(cell) == 10
    runner = FakeRunner(cells)
    runner.codes = {f"evaluate {other.name}": 1}
    code, said = run(cells, runner)
    assert code == 1
    assert [read_state(each).stage for each in cells] == ["finished", "trained"]
    log = f"{other.name}.log"
    assert f"error: out of luck (see {bucket}/out/{LOGS}/{log})" in said
    assert b"out of luck" in (files.read(f"{bucket}/out/{LOGS}", log).data or b"")
    with failing(refused=1.0):
        code, said = run(cells, FakeRunner(cells))
    assert code == 1
    assert f"{other.name}: {other.folder}: cannot be read (" in said
    # The printed pattern for `report` matches the cells and nothing else.
    found = find_runs(f"{bucket}/out/*")
    assert found == sorted((each.folder for each in cells), key=str)


def test_a_process_leaves_its_words_and_its_code(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "cell.log"
    assert ProcessRunner()(["trian"], log, lambda: None) == 2
    assert "unknown command 'trian'" in log.read_text()


def test_a_process_whose_progress_fails_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    begun: list[subprocess.Popen[bytes]] = []

    def start(_: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        begun.append(popen(program, **options))
        return begun[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("trainer.sweep.run._POLL_S", 0.05)

    def fail() -> None:
        raise OSError("stale file handle")

    with pytest.raises(OSError, match="stale"):
        ProcessRunner()(["train"], tmp_path / "log", fail)
    assert begun[0].returncode == -signal.SIGTERM


def test_a_cell_whose_state_cannot_be_read_ends_no_other(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cells_of(sweep, only="*-1-vast-*")
    assert len(cells) == 2
    runner = FakeRunner(cells)

    def read(cell: Cell) -> State:
        if cell is cells[0] and runner.ran:
            raise OSError("stale file handle")
        return read_state(cell)

    monkeypatch.setattr("trainer.sweep.run.read_state", read)
    code, said = run(cells, runner)
    assert code == 1
    assert f"{cells[0].name}: stale file handle" in said
    assert read_state(cells[1]).stage == "finished"


def test_a_damaged_cell_keeps_no_other_from_beginning(sweep: Path) -> None:
    damaged, done, other = cells_of(sweep, only="*-1-*")[:3]
    assert run([damaged, done], FakeRunner([damaged, done]))[0] == 0
    (damaged.folder.path / EVALUATIONS_FILE).write_text("{}\n")
    runner = FakeRunner([other])
    code, said = run([damaged, done, other], runner)
    assert code == 1
    assert runner.ran == [f"train {other.name}", f"evaluate {other.name}"]
    assert "3 cells, 1 of them finished" in said
    # At once, and at the end.
    assert said.count(f"{EVALUATIONS_FILE}, line 1: ") == 2
    assert "1 of 3 cells failed" in said


def test_progress_that_cannot_be_read_is_not_shown(sweep: Path) -> None:
    (cell, *_) = cells_of(sweep)
    (Path(str(cell.folder)) / METRICS_FILE).mkdir(parents=True)
    assert read_logged_step(cell) == 0


class FakeProcesses:
    """A fake runner where a sweep starts processes."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner

    def __call__(
        self, arguments: Sequence[str], log: Path, tick: Callable[[], None]
    ) -> int:
        return self._runner(arguments, log, tick)

    def is_stopped(self) -> bool:
        return False

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        yield


def test_what_a_sweep_prints_can_be_pasted(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "it's mine; $HOME"
    home.mkdir()
    path = home / "my sweep.toml"
    path.write_text(sweep.read_text().replace(f"{sweep.parent}/out", f"{home}/o u t"))
    cells = cells_of(path, only="*-1-*")
    runner = FakeRunner(cells)
    runner.codes = {f"evaluate {cells[1].name}": 75}
    monkeypatch.setattr(
        "trainer.sweep.run.ProcessRunner", lambda _: FakeProcesses(runner)
    )
    (home / "o u t" / "begun-and-no-run-yet").mkdir(parents=True)
    command = SweepCommand(
        *(path, "*-1-*"),
        jobs=2,
        environment="tests.own_environment:Line-v0",
        environment_arguments=("size=3",),
    )
    said = io.StringIO()
    output = dataclasses.replace(
        Output.silent(), progress=Console(file=said, width=1000)
    )
    assert command.execute(output) == 75
    shim = tmp_path / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    shim.chmod(0o755)

    def paste(start: str) -> object:
        """Parses a printed command line as a shell and the program would."""
        (line,) = (
            line.removeprefix(start)
            for line in said.getvalue().splitlines()
            if line.startswith(start)
        )
        done = subprocess.run(
            ["bash", "-c", line],
            env={"PATH": f"{shim.parent}:/usr/bin:/bin", "HOME": "/nowhere"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        module, name, *arguments = done.stdout.split("\0")[:-1]
        assert (module, name) == ("-m", "trainer")
        return front_door.parse(PROGRAM, arguments)[0]

    assert paste("stopped; to go on: ") == command
    report = paste("to report: ")
    assert isinstance(report, Report)
    begun = sorted((cell.folder for cell in cells if cell.folder.exists()), key=str)
    assert begun
    assert [find_runs(pattern) for pattern in report.runs] == [begun]


def test_a_signal_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"
    script = tmp_path / "child"
    script.write_text(
        f"#!/bin/bash\ntrap 'exit 75' TERM\ntouch {ready}\n"
        "while true; do sleep 0.05; done\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    def stop() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    processes = ProcessRunner()
    thread = threading.Thread(target=stop)
    with processes.forward_signals():
        thread.start()
        assert processes(["train"], tmp_path / "log", lambda: None) == 75
    thread.join()
    assert processes.is_stopped()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_dry_run_lists_and_takes_no_device(sweep: Path) -> None:
    listing = (
        "import sys, jax, trainer.commands.sweep as c\n"
        "from pathlib import Path\n"
        "from pipeline.output import Output\n"
        "jax.config.update('jax_platforms', 'nonexistent')\n"
        "code = c.Sweep(Path(sys.argv[1]), dry_run=True)"
        ".execute(Output.standard())\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing, str(sweep)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count(": new\n") == 8
    assert not (sweep.parent / "out").exists()


@pytest.mark.slow
def test_a_real_cell(sweep: Path) -> None:
    write_store(sweep.parent / "pointmaze-medium-navigate", S=2, A=2)
    command = SweepCommand(sweep, only="*-3-fql-seed-2")
    output = Output.silent()
    assert command.execute(output) == 0
    (cell,) = cells_of(sweep, only=command.only)
    assert read_state(cell).stage == "finished"
    # The run has the configuration that the cell was planned with.
    assert read_run(cell.folder).config == cell.config
    assert [each.step for each in read_evaluations(cell.folder)] == [
        10,
        20,
    ]
    log = cell.folder.path.parent / LOGS / f"{cell.name}.log"
    said = log.read_text()
    assert "trained to step 20" in said
    assert command.execute(output) == 0
    assert log.read_text() == said


def test_a_sweep_is_continued_in_the_same_folders():
    sweep = SweepCommand(Path("table-1"), out="a b", store="s/{dataset}", jobs=2)
    line = sweep.format_command()
    assert line == (
        "python -m trainer sweep table-1 --out 'a b' --store 's/{dataset}' --jobs 2"
    )
