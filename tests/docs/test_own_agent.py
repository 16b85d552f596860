"""The agent of the documentation is built from the page's blocks, and trained."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.stores import write_store
from tests.trainer.agents.baseline_cases import FACTS, TINY, make_batch
from trainer import cli
from trainer.errors import ConfigError
from trainer.runs.folder import RUN_FILE
from trainer.step.update import make_update

PAGE = Path(__file__).parents[2] / "docs/how-to/own-agent.md"
SMALL = ("--agent.width=8", "--agent.depth=1", "--trainer.batch-size=8")
FEW = tuple(
    f"--trainer.{name}=10"
    for name in ("steps", "log-every", "checkpoint-every", "updates-per-call")
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the page's files, as an installer builds it."""
    blocks = re.findall(
        r"^```(?:python|toml)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M
    )
    folder = tmp_path_factory.mktemp("source")
    for block in blocks:
        name = re.match(r"# (\w+\.\w+)\n", block)
        assert name is not None
        (folder / name[1]).write_text(block)
    build = "import setuptools.build_meta as b; print(b.build_wheel('.'))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=folder, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.splitlines()[-1]


@pytest.fixture
def package(wheel: Path, tmp_path: Path) -> Path:
    """A folder with the installed package."""
    folder = tmp_path / "package"
    # What an installer does with a wheel of Python files.
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def write_entry_points(package: Path, agents: dict[str, str]) -> None:
    lines = [f"{name} = {value}" for name, value in agents.items()]
    (package / "clone_agent-0.1.dist-info" / "entry_points.txt").write_text(
        "\n".join(["[vast_rl.agents]", *lines, ""])
    )


def run_trainer(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer", *words],
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_agent_is_trained(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = tmp_path / "store", tmp_path / "run"
    write_store(store, dataset="own", S=2, A=2, tasks=1)
    train = ("train", "--store", str(store), "--out", str(out), "--agent", "clone")
    done = run_trainer(package, *train, *SMALL, *FEW, "--agent.clone-weight=2")
    assert done.returncode == 0, done.stderr
    assert "clone has no settings for own" in done.stderr
    assert '"clone_weight":2.0' in (out / RUN_FILE).read_text().replace(" ", "")
    # Where the package is not installed, the run's agent is not known.
    assert cli.main(["evaluate", str(out)]) == 2
    assert "Input tag 'clone'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ({"clone": "absent:CLONE"}, "No module named 'absent'"),
        ({"clone": "clone_config:CloneConfig"}, "expected an AgentKind"),
        ({"a": "clone_config:CLONE", "b": "clone_config:CLONE"}, "agent 'clone'"),
    ],
)
def test_an_agent_that_cannot_be_added_is_one_line(
    package: Path, agents: dict[str, str], expected: str
) -> None:
    write_entry_points(package, agents)
    done = run_trainer(package, "describe", "configs/demo.toml")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_the_shown_agent_learns_to_clone(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package)
    from clone import Clone
    from clone_config import CloneConfig

    with pytest.raises(ConfigError, match=r"agent.clone_weight: expected above 0"):
        CloneConfig(clone_weight=0)
    agent = Clone(CloneConfig(**TINY, learning_rate=1e-2), FACTS)
    state, batch = agent.init(jax.random.key(0)), make_batch(agent)
    update = jax.jit(make_update(agent))
    losses = []
    for step in range(60):
        state, metrics = update(state, batch, jax.random.key(step))
        losses.append(float(metrics.mean["clone_loss"]))
    assert losses[-1] < 0.6 * losses[0]
    acted = agent.act(state.params, batch.observations[0], jax.random.key(0))
    assert acted.shape == (agent.chunk, FACTS.action_dim)
    assert np.abs(acted).max() <= 1
    assert agent.action_values(state.params, batch, jax.random.key(0)).shape == (8,)
