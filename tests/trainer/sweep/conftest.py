"""A fixture with the file of a sweep."""

from pathlib import Path

import pytest

from tests.trainer.sweep.made_up_cells import BASE, FQL, SWEEP


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "tiny.toml").write_text(BASE)
    (tmp_path / "baselines/fql.toml").write_text(FQL)
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(root=tmp_path))
    return path
