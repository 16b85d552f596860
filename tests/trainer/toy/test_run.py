"""The grid from end to end: the spliced path, and values near the optimum."""

import json
from pathlib import Path

from rich.console import Console

from tests.optimised import call_optimised
from trainer.toy import grid
from trainer.toy.run import ToyResult, run_toy


def run_quietly(out: Path) -> ToyResult:
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
