"""Builds the wheel, installs it apart from any checkout, and runs its programs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.store.reader import Store
from tests.own_data_page import OTHERS, read_page

ROOT = Path(__file__).parents[2]
WHERE = "from trainer.shipped import CONFIGS; print(CONFIGS)"
COLLECT = (
    *("vast-pipeline", "collect", "cube-single-v0", "--dataset-type", "play"),
    *("--episodes", "1", "--out", "store"),
)
SHARD = ("vast-pipeline", "shard", "own.npz", "--dataset", "own", "--out", "store")
# `make setup` installs uv beside Python, in a folder that PATH may lack.
UV = str(Path(sysconfig.get_path("scripts"), "uv"))
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git tracks."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "pipeline", "trainer", "infra", "configs"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split("\0")[:-1]  # fmt: skip
    for name in (*listed, "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    subprocess.run(
        [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", out],
        cwd=copy, check=True, env=os.environ | {"VIRTUAL_ENV": sys.prefix},
    )  # fmt: skip
    (file,) = out.glob("vast_rl-*.whl")
    return file


def make_environment(folder: Path, python: str = sys.executable) -> Run:
    """Makes an empty virtual environment; returns a function that runs its programs."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    cwd = folder / "empty"
    cwd.mkdir()

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(folder / "venv/bin"), os.environ["PATH"]))
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [shutil.which(str(words[0]), path=path) or words[0], *words[1:]],
            cwd=cwd, capture_output=True, text=True,
            env=kept | {"PATH": path, "VIRTUAL_ENV": str(folder / "venv")},
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs programs of the wheel, beside the packages that are installed here."""
    folder = tmp_path_factory.mktemp("installed")
    run = make_environment(folder)
    succeed(run, UV, "pip", "install", "--offline", "--no-deps", wheel)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    # Python reads no .pth file of the folder that is added here, so the checkout is not
    # importable.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return run


def test_all_that_is_read_is_in_the_wheel(run: Run) -> None:
    script = (
        "import infra, pipeline, trainer.shipped, trainer.report.paper as paper;"
        "print(trainer.shipped.CONFIGS, pipeline.__file__, infra.__file__);"
        "print(len(paper.read_paper_results()))"
    )
    places, results = succeed(run, "python", "-c", script).splitlines()
    configs, *packages = map(Path, places.split())
    assert all("site-packages" in path.parts for path in (configs, *packages))
    assert int(results) > 100
    shipped = {path.relative_to(configs) for path in configs.rglob("*.toml")}
    here = ROOT / "configs"
    assert shipped == {path.relative_to(here) for path in here.rglob("*.toml")}
    assert Path("baselines/iql.toml") in shipped


def test_the_programs_run_from_an_empty_folder(run: Run) -> None:
    for name in ("vast-pipeline", "vast-train", "vast-infra"):
        assert f"  {name} " in succeed(run, name, "--help")
    described = succeed(run, "vast-train", "describe", "cube-single-play", "--json")
    assert json.loads(described)["config"]["dataset"] == "cube-single-play"


@pytest.mark.slow
def test_a_package_that_is_missing_is_named_with_its_pip_line(
    wheel: Path, tmp_path: Path
) -> None:
    """The wheel is installed without extras."""
    run = make_environment(tmp_path)
    succeed(run, UV, "pip", "install", wheel)
    make_data(tmp_path / "empty/own.npz")
    config = succeed(run, "python", "-c", WHERE).strip() + "/cube-single-play.toml"
    launch = (
        *("vast-infra", "launch", "train", config, "--target", "sky", "--dry-run"),
        *("--accelerator", "h100", "--chips", "8", "--region", "gcp/europe-west4"),
        *("--store", "gs://bucket/store", "--task", "1", "--out", "gs://bucket/run"),
    )
    for extra, words in (
        ("pipeline", SHARD),
        ("pipeline", COLLECT),
        ("trainer", ("vast-train", "toy", "--out", "toy")),
        ("launch", launch),
    ):
        done = run(*words)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert f"pip install 'vast-rl[{extra}]'" in line


@pytest.mark.slow
# Not 3.13, for which labmaze has no wheel; OGBench's dm-control needs labmaze.
@pytest.mark.parametrize(("version", "others"), [("3.11", OTHERS), ("3.12", ())])
def test_what_is_shown_of_own_data_in_an_installation_with_its_dependencies(
    wheel: Path, tmp_path: Path, version: str, others: tuple[str, ...]
) -> None:
    run = make_environment(tmp_path, find_python(version))
    extras = f"{wheel}[pipeline,trainer,eval,report]"
    constraints = ROOT / "infra/constraints.txt"
    succeed(run, UV, "pip", "install", "--constraint", constraints, extras)
    assert "1,000,000,000" in succeed(run, "vast-infra", "scale")
    shown, here = read_page(), tmp_path / "empty"
    for name, program in shown.files.items():
        (here / name).write_text(program)
    programs = {command[0] for command in shown.commands}
    assert programs == {"python", "vast-pipeline", "vast-train"}
    said = [succeed(run, *command) for command in shown.commands]
    assert said[-1].startswith("LoadedPolicy(iql on walk task 1, step 2000, seed 0)")
    check_results(here, "walk")
    stored = read_rows(here / "stores/walk")
    for other in others:
        for command in shown.commands_for(other):
            succeed(run, *command)
        check_results(here, f"walk-{other}")
        # The files of other kinds hold the same episodes.
        for name, rows in read_rows(here / f"stores/walk-{other}").items():
            np.testing.assert_array_equal(rows, stored[name], err_msg=name)


def check_results(folder: Path, name: str) -> None:
    """Checks that a run acts far better than its data, which score about 0."""
    (line,) = (folder / "runs" / name / "evaluations.jsonl").read_text().splitlines()
    evaluation = json.loads(line)
    assert (evaluation["environment_id"], evaluation["episodes"]) == ("Walk-v0", 20)
    assert evaluation["successes"] is None
    assert evaluation["normalised_score"] > 50
    report = (folder / "reports" / name / "report.md").read_text()
    assert f"{evaluation['return_mean']:.2f}" in report
    card = (folder / "runs" / name / "README.md").read_text()
    assert "policy.stablehlo" in card
    assert (folder / "runs" / name / "policy.stablehlo").stat().st_size > 10_000


def read_rows(store: Path) -> dict[str, np.ndarray]:
    """Reads the rows that are trained on."""
    opened = Store(str(store))
    assert opened.rows() == 200 * 21
    return {name: opened.read(name) for name in ("observations", "actions", "rewards")}


def find_python(version: str) -> str:
    """Finds an interpreter of a version, and runs it, as a shim may lead to none."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    installed = sorted(root.glob(f"versions/{version}.*/bin/python"))
    for candidate in (sys.executable, f"python{version}", *map(str, installed)):
        script = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
        with contextlib.suppress(FileNotFoundError):
            told = subprocess.run(
                [candidate, "-c", script], capture_output=True, text=True
            )
            if told.returncode == 0 and told.stdout.split()[0] == version:
                return told.stdout.split(maxsplit=1)[1].strip()
    pytest.skip(f"no Python {version} runs here, from PATH or pyenv's versions")


def make_data(file: Path) -> None:
    """Writes four episodes of fifteen rows, of a made-up task."""
    random = np.random.default_rng(0)
    ends = np.arange(60) % 15 == 14
    np.savez(
        file,
        observations=random.normal(size=(60, 6)).astype(np.float32),
        actions=random.uniform(-1, 1, (60, 3)).astype(np.float32),
        rewards=-np.ones(60, np.float32),
        masks=np.ones(60, np.float32),
        terminals=ends.astype(np.float32),
    )


def succeed(run: Run, *words: str | Path) -> str:
    """Runs a program that must succeed; returns its standard output."""
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout
