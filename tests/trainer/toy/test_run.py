"""The grid from end to end: the spliced path, and values near the optimum."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.optimised import call_optimised
from trainer.cli import main
from trainer.toy import chain_values, grid
from trainer.toy.run import ToyResult, run_toy


def test_a_file_as_its_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["toy", "--out", str(tmp_path / "file")]) == 2
    assert "expected a folder, but" in capsys.readouterr().err


def run_quietly(out: Path) -> ToyResult:
    # The chain's values are another test's.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_values, "PHASES", ((250, 1e-3),))
        return run_toy(out, seed=0, console=Console(quiet=True))


def test_the_networks_find_the_spliced_path_and_its_values(tmp_path: Path) -> None:
    result = call_optimised(run_quietly, tmp_path)
    backups, chunks, table, networks = result.maps
    assert networks.path == table.path == grid.SPLICED_PATH
    assert result.error < 0.1
    for fixed in (backups, chunks):
        assert fixed.path != grid.SPLICED_PATH
        assert fixed.values[1, 0] < 0
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "toy.json").read_text())
    assert [one["title"] for one in written["maps"]] == [
        one.title for one in result.maps
    ]
    assert (tmp_path / "chain.png").read_bytes().startswith(b"\x89PNG")
    chain = written["chain"]
    assert chain["value_error"] == result.chain.value_error > 0
    assert chain["compared"] == [0, 1, 2, 5, 10]
    states = chain_values.CHAIN.state_count
    for values in (chain["truth"], chain["networks"], *chain["exact"].values()):
        assert len(values) == states
