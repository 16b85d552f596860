import ast
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from trainer.agents.registry import AGENTS, DEFAULT_AGENT, AgentConfig
from trainer.cli import main
from trainer.commands.train import Train
from trainer.shipped import BASELINES, find_baseline

GIVEN = ["configs/demo.toml", "--store", "s", "--task", "1", "--out", "o"]


def test_names_of_agents() -> None:
    assert list(AGENTS) == [
        *("vast", "iql", "fql", "fql-n", "ifql", "ifql-n", "qc", "value-flows", "floq")
    ]
    assert DEFAULT_AGENT in AGENTS
    for name, kind in AGENTS.items():
        assert name in kind.names
        assert kind.agent.__annotations__["config"] is kind.config
    assert set(AgentConfig.__args__) == {kind.config for kind in AGENTS.values()}


@pytest.mark.parametrize("name", AGENTS)
def test_the_command_line_takes_every_agent(name: str) -> None:
    parsed = tyro.cli(Train, args=[*GIVEN, "--agent", name])
    assert parsed.agent == name


def test_no_other_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *GIVEN, "--agent", "sac"]) == 2
    said = capsys.readouterr().err
    assert f"--agent: expected one of {', '.join(AGENTS)}, got 'sac'" in said


def test_every_baseline_has_its_file_and_every_file_its_agent() -> None:
    files = {find_baseline("configs/demo.toml", name) for name in AGENTS}
    files.remove(find_baseline("configs/demo.toml", DEFAULT_AGENT))
    assert files == set(Path("configs", BASELINES).glob("*.toml"))


def test_names_are_listed_nowhere_else() -> None:
    """An agent is two files and one line: no module but its own and that list names it.

    What knows an agent apart from others does so on purpose: the toy, the operations
    that are counted, sub-goals.
    """
    allowed = ("trainer/agents/", "trainer/toy/")
    naming = {
        path.as_posix()
        for path in Path("trainer").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and node.value in ("value-flows", "floq", "ifql-n")
    }
    assert [path for path in naming if not path.startswith(allowed)] == []


def test_configurations_are_read_without_jax_or_grain() -> None:
    program = (
        "import sys; from trainer import config;"
        "config.load('configs/demo.toml', task=1, agent='floq');"
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "trainer.agents.floq_config" in loaded
    assert not {"jax", "flax", "grain", "optax", "trainer.agents.floq"} & loaded
