"""Fields of a configuration are listed with the texts of their docstrings."""

import json
from pathlib import Path

import pytest

from tests.stores import write_store
from trainer import config
from trainer.agents.registry import AGENTS
from trainer.cli import main
from trainer.commands.fields import list_fields


@pytest.mark.parametrize("agent", AGENTS)
def test_every_field_has_a_meaning(agent: str) -> None:
    resolved = config.resolve(None, dataset="own", agent=agent, prog="test")
    fields = {
        name: (value, meaning) for name, value, meaning in list_fields(resolved.config)
    }
    assert not [name for name, (_, meaning) in fields.items() if not meaning]
    assert fields["agent.name"][0] == agent
    assert fields["trainer.batch_size"][0] == resolved.config.trainer.batch_size
    assert fields["trainer.seeds"][1].startswith("Runs trained side by side in one")
    # No table is missing: every field is an option of the command line.
    assert {name.partition(".")[0] for name in fields} >= {
        *("dataset", "agent", "trainer", "feed", "mesh")
    }


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert not stop.value.code
    return " ".join(capsys.readouterr().out.split())


def test_help_of_training_shows_the_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = helped(capsys, "train", "cube-triple-play", "--agent", "iql")
    assert "fields of cube-triple-play, agent iql" in shown
    assert "agent.expectile │ 0.9 │ Expectile τ of the value loss." in shown
    assert "agent.discount │ 0.995" in shown  # The data set has its own discount.
    shown = helped(capsys, "train", "--agent", "vast")
    assert "agent.max_horizon │ 25 │ " in shown
    assert "Give a configuration before --help" in helped(capsys, "train")
    assert "agent.expectile │ 0.9" in helped(capsys, "compile", "scene-play")
    assert main(["train", "scene-pley", "--help"]) == 2
    assert "nearest: scene-play" in capsys.readouterr().err


def test_a_store_is_described_by_its_own_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    store = str(write_store(tmp_path / "store", dataset="own", S=7, A=3, tasks=1))
    assert main(["describe", "--store", store, "--agent", "iql"]) == 0
    shown, said = capsys.readouterr()
    assert said.startswith("iql has no settings for own: its defaults are used")
    assert "data: observations of 7, actions of 3" in shown
    assert "largest weight of a sample" in shown.lower()
    assert main(["describe", "--store", store, "--agent", "iql", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["config"]["dataset"] == "own"
    assert main(["describe"]) == 2
    assert "expected a configuration, its name, or --store" in capsys.readouterr().err
