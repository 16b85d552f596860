"""Launching a sweep submits a job for what each cell lacks, and prints totals."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.cli import main
from infra.commands import sweep as module
from tests.infra.command_lines import REGISTRY, VERSION
from trainer.sweep.cells import make_cells, read_sweep

SWEEP = """
out = "gs://vast-data/runs/grid"
datasets = ["cube-single-play"]
config = "tests/infra/run.toml"
store = "gs://vast-data/stores/{dataset}"
tasks = [1, 2]
seeds = 2
overrides.agent.width = 1024
[evaluation]
episodes = 20
checkpoints = 2
[methods.vast]
[methods.cloning]
agent = "vast"
overrides.agent = { temperature = 0.0 }
"""
NAME = "cube-single-play-{}-{}-seeds-0-1"
IMAGE = f"{REGISTRY}/vast-rl-trainer-cuda:{VERSION}"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(SWEEP)
    return path


def launch(
    sweep: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a dry run; returns its exit code, documents and standard error."""
    capsys.readouterr()
    code = main(
        [
            *("launch", "sweep", str(sweep), "--target", "gke", "--dry-run"),
            *("--accelerator", "h100", "--chips", "8", "--region", "europe-west4"),
            *("--image", IMAGE, *more),
        ]
    )
    output, said = capsys.readouterr()
    return code, list(yaml.safe_load_all(output)), said


def test_each_cell_is_a_job_of_what_it_lacks(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {
        NAME.format(1, "vast"): {"stage": "finished"},
        NAME.format(1, "cloning"): {"stage": "trained", "missing": [900_000, 10**6]},
        NAME.format(2, "vast"): {"stage": "begun", "step": 100},
        NAME.format(2, "cloning"): {"stage": "new"},
    }
    sweep.write_text(
        'environment = "walk:Walk-v0"\nenvironment_arguments.size = 3\n'
        + SWEEP.replace("checkpoints", "reference_scores = [-5, 5]\ncheckpoints")
    )
    monkeypatch.setattr(module, "ask_states", lambda *_: states)
    code, documents, said = launch(sweep, capsys, "--updates-per-s", "100")
    assert code == 0
    (evaluation,) = (each for each in documents if each["kind"] == "Job")
    (container,) = evaluation["spec"]["template"]["spec"]["containers"]
    given = " ".join(container["args"])
    assert NAME.format(1, "cloning") in given
    assert "--episodes 20 " in given
    own = "--environment walk:Walk-v0 --environment-arguments size=3 "
    assert given.endswith(f"--reference-scores -5.0 5.0 {own}--steps 900000 1000000")
    trained = [each for each in documents if each["kind"] == "JobSet"]
    names = [each["metadata"]["name"] for each in trained]
    assert names == [NAME.format(2, "vast"), NAME.format(2, "cloning")]
    job = trained[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    given = " ".join(job["spec"]["containers"][0]["args"])
    assert f"{own}--agent.width 1024 --agent.temperature 0.0" in given
    assert f"--out gs://vast-data/runs/grid/{NAME.format(2, 'cloning')}" in given
    # Two cells train, each with a million updates at 100 a second on 8 chips.
    assert (
        "# 4 cells with 8 training seeds: 1 finished, 2 to train, 1 to evaluate\n"
        "# 16 h100 chips at once; 5.6 h of training one after another, 44.4 chip hours"
    ) in said


def test_hours_that_were_not_measured_are_not_made_up(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda *_: {})
    code, documents, said = launch(sweep, capsys, "--only", "*-1-*")
    assert code == 0
    assert sum(each["kind"] == "JobSet" for each in documents) == 2
    assert "# 16 h100 chips at once\n" in said
    assert (
        "no rate was measured (1 of vast, 1 of cloning); give --updates-per-s" in said
    )


def test_without_states_only_a_dry_run_goes_on(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "error: no credentials\n")

    monkeypatch.setattr("subprocess.run", end)
    code, documents, said = launch(sweep, capsys)
    assert code == 0
    assert sum(each["kind"] == "JobSet" for each in documents) == 4
    assert "exit code 1: error: no credentials; all cells are taken for new" in said
    command = ["launch", "sweep", str(sweep), "--target", "gke", "--chips", "8"]
    assert main([*command, "--accelerator", "h100"]) == 2
    said = capsys.readouterr().err
    assert "ended with exit code 1: error: no credentials" in said
    assert len(said.splitlines()) == 1


def test_states_are_what_a_dry_run_of_the_trainer_s_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "local.toml"
    path.write_text(SWEEP.replace("gs://vast-data/runs", str(tmp_path)))
    states = module.ask_states(path, "*-1-*", None)
    assert set(states) == {NAME.format(1, "vast"), NAME.format(1, "cloning")}
    assert {state["stage"] for state in states.values()} == {"new"}
    # The file's own folder of runs is in a bucket, which nobody can read here.
    path.write_text(SWEEP)
    assert module.ask_states(path, "*-1-*", str(tmp_path / "grid")) == states


@pytest.fixture
def documented() -> str:
    """The command line that the documentation shows."""
    page = Path("docs/how-to/sweeps.md").read_text().replace("\\\n", " ")
    (line,) = (each for each in page.splitlines() if "infra launch sweep" in each)
    return line.removeprefix("python -m ").replace("0.2.0", VERSION)


@pytest.mark.parametrize(
    ("target", "chips"), [("gke", "h100"), ("tpu", "v6e"), ("sky", "h100")]
)
def test_the_documented_sweep_is_launched(
    documented: str,
    target: str,
    chips: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All 450 cells would take a minute; these have the longest names.
    only = "antmaze-*"
    sweep = read_sweep(Path("table-1"), out="gs://vast-data/runs/table-1")
    cells = {cell.name for cell in make_cells(sweep, only=only)}
    assert len(cells) == 90
    assert max(map(len, cells)) > 45  # The longest name of a JobSet.
    states = {name: {"stage": "new"} for name in cells}
    long = "antmaze-giant-navigate-5-value-flows-seeds-0-7"
    states[long] = {"stage": "trained", "missing": [10**6]}
    monkeypatch.setattr(module, "ask_states", lambda *_: states)
    line = documented.replace("--target gke", f"--target {target}")
    line = line.replace("h100", chips)
    if target == "sky":
        line = line.replace("europe-west4", "gcp/europe-west4")
    capsys.readouterr()
    _, *arguments = shlex.split(line)
    assert main([*arguments, "--only", only]) == 0
    jobs = list(yaml.load_all(capsys.readouterr().out, Loader=yaml.CSafeLoader))
    if target == "sky":
        made = {job["name"]: job["run"] for job in jobs}
    else:
        kinds = ("JobSet", "Job")
        jobs = [job for job in jobs if job["kind"] in kinds]
        made = {job["metadata"]["name"]: str(job) for job in jobs}
    assert len(jobs) == len(made) == len(cells)
    # Folders have the cells' names, whatever the jobs are called.
    for name, text in made.items():
        (folder,) = set(re.findall(r"gs://vast-data/runs/table-1/([-\w]+)", text))
        cells.remove(folder)
        if len(folder) <= 45:
            assert name == folder
    assert not cells
    (evaluation,) = (name for name in made if name.endswith("-evaluate"))
    assert evaluation.startswith("antmaze-giant-navigate-5-value-flows-")
    assert "gs://vast-data/stores/antmaze-giant-navigate" in str(made)


@pytest.mark.parametrize(
    ("method", "other"), [("Walk.A", "walk.a"), ("x" * 60, "x" * 61), ("a_b", "a-b")]
)
def test_names_that_no_job_may_have_stay_apart(
    method: str,
    other: str,
    sweep: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda *_: {})
    given = SWEEP.replace("[methods.vast]", f'[methods."{method}"]\nagent = "vast"')
    sweep.write_text(given.replace("methods.cloning", f'methods."{other}"'))
    code, documents, said = launch(sweep, capsys)
    assert code == 0, said
    sets = [each for each in documents if each["kind"] == "JobSet"]
    names = [each["metadata"]["name"] for each in sets]
    assert len(set(names)) == len(sets) == 4
    # A part of the sweep has the same names as the whole.
    _, documents, _ = launch(sweep, capsys, "--only", f"*-2-{method}-*")
    (job,) = (each for each in documents if each["kind"] == "JobSet")
    assert job["metadata"]["name"] == names[2]


# Answers as SkyPilot 0.14 does, and records the names of the jobs it is given.
SKY = """#!{python}
import json, pathlib, re, sys
folder = pathlib.Path({folder!r})
if sys.argv[1:3] == ["jobs", "queue"]:
    assert sys.argv[3:] == ["--skip-finished", "--all", "--output", "json"]
    sys.stdout.write((folder / "queue").read_text())
    sys.stderr.write((folder / "error").read_text())
    sys.exit((folder / "error").stat().st_size > 0)
assert sys.argv[1:-1] == ["jobs", "launch", "--yes", "--detach-run"]
name = re.search("^name: (.*)$", pathlib.Path(sys.argv[-1]).read_text(), re.M)[1]
with (folder / "launched").open("a") as file:
    file.write(name + "\\n")
"""


class Sky:
    """A fake `sky` on PATH, with a queue of jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = folder / "sky"
        program.write_text(SKY.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)

    def queue(self, *jobs: tuple[str, str], before: str = "", error: str = "") -> None:
        records = [{"job_name": name, "status": status} for name, status in jobs]
        listed = "" if error else json.dumps(records, indent=2)
        (self._folder / "queue").write_text(before + listed)
        (self._folder / "error").write_text(error)

    def launched(self) -> list[str]:
        """Names of the jobs that were launched since the last call."""
        file = self._folder / "launched"
        names = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return names


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sky:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("infra.checks.bucket.require", lambda *_, **__: None)
    return Sky(folder)


def launch_on_sky(sweep: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    command = ["launch", "sweep", str(sweep), "--target", "sky"]
    code = main([*command, "--accelerator", "h100", "--chips", "8"])
    return code, capsys.readouterr().err


def test_jobs_that_still_run_are_not_launched_again(
    sweep: Path,
    sky: Sky,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = NAME.format(1, "vast"), NAME.format(2, "cloning")
    states = {other: {"stage": "trained", "missing": [10**6]}}
    monkeypatch.setattr(module, "ask_states", lambda *_: states)
    # The controller of jobs starts with the first job.
    sky.queue(error="sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    code, said = launch_on_sky(sweep, capsys)
    assert code == 0, said
    names = sky.launched()
    assert set(names) == {
        one,
        NAME.format(1, "cloning"),
        NAME.format(2, "vast"),
        f"{other}-evaluate",
    }
    running = ((one, "RECOVERING"), (f"{other}-evaluate", "PENDING"), ("x", "RUNNING"))
    sky.queue(*running, before="Starting the API server\n")
    code, said = launch_on_sky(sweep, capsys)
    assert code == 0, said
    assert sky.launched() == [name for name in names if name not in dict(running)]
    for name, _ in running[:2]:
        assert f"# left alone: job {name} has not ended\n" in said
    sky.queue()
    assert launch_on_sky(sweep, capsys)[0] == 0
    assert sky.launched() == names


@pytest.mark.parametrize(
    ("queue", "error"),
    [("[", ""), ("Usage: sky", "No such option: --output"), ('[\n{"x": 1}]', "")],
)
def test_nothing_is_launched_beside_jobs_that_cannot_be_listed(
    queue: str,
    error: str,
    sweep: Path,
    sky: Sky,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda *_: {})
    sky.queue(error=error)
    (sky._folder / "queue").write_text(queue)
    code, said = launch_on_sky(sweep, capsys)
    assert code == 2
    assert "expected a list of the jobs that run already" in said.splitlines()[-1]
    assert sky.launched() == []


def test_mistakes(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda *_: {})
    code, _, said = launch(sweep, capsys, "--", "--agent.width", "8")
    assert code == 2
    assert "expected nothing after --" in said
    sweep.write_text(SWEEP.replace("gs://vast-data/runs", "runs"))
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "runs/grid" in said.splitlines()[-1]
    other = {"stage": "differs", "difference": "agent.width: 4 there, 5 asked for"}
    states = {NAME.format(2, "vast"): other}
    monkeypatch.setattr(module, "ask_states", lambda *_: states)
    sweep.write_text(SWEEP)
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "agent.width: 4 there, 5 asked for); give another `out`" in said
    sweep.write_text(
        SWEEP.replace("cube-single-play", "own").replace('config = "tests', '# "tests')
    )
    monkeypatch.setattr(module, "ask_states", lambda *_: {})
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "got none for own; write one and name it" in said
