"""VAST's networks on the grid: the spliced path, and values near the optimum."""

import json
from pathlib import Path

from rich.console import Console

from trainer.toy import grid
from trainer.toy.run import run_toy


def test_the_networks_find_the_spliced_path_and_its_values(tmp_path: Path) -> None:
    result = run_toy(tmp_path, seed=0, console=Console(quiet=True))
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
