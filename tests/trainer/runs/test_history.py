"""What a run logged, read back by seed and step."""

from pathlib import Path

import numpy as np
import pytest

from tests.evaluated import write_evaluated_run
from trainer.runs.folder import RunFolder
from trainer.runs.history import read_history


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_evaluated_run(tmp_path)


def test_history_by_seed_and_step(run: Path) -> None:
    history = read_history(RunFolder.open(run))
    assert history.steps.tolist() == [1000, 2000, 3000, 4000]
    assert history.scalar("value_loss").shape == (2, 4)
    assert np.isnan(history.scalar("no such")).all()
    windows = history.vector("windows_by_horizon", 0)
    assert windows is not None
    assert windows.tolist() == [0, 0, 200, 200, 200, 200]
    assert history.vector("no such", 0) is None
