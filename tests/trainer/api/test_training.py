"""``train`` as a function: it makes the same run as the command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.output import Output
from pipeline.store.errors import DataFormatError
from tests import stores
from tests.runs import final_params
from tests.small_runs import CONFIG
from tests.stores import Arrays, make_rows, write_store
from trainer.api import open_store, train
from trainer.cli import main
from trainer.errors import ConfigError
from trainer.runs.folder import RunFolder
from trainer.runs.run import read_run

FILE = f"""dataset = "{CONFIG.dataset}"
[agent]
name = "iql"
width = 8
depth = 1
[trainer]
steps = 40
batch_size = 8
updates_per_call = 5
log_every = 10
checkpoint_every = 20
"""


def test_a_call_trains_what_the_command_does(tmp_path: Path) -> None:
    store = str(write_store(tmp_path / "store"))
    file = tmp_path / "own.toml"
    file.write_text(FILE)
    changed = {"trainer": {"steps": 20, "seeds": 1}}
    called = str(tmp_path / "called")
    assert train(CONFIG, open_store(store), called, task=1, overrides=changed) == 20
    assert read_run(RunFolder.open(called)).config.trainer.steps == 20
    arguments = ["--store", store, "--task", "1", "--out", str(tmp_path / "command")]
    command = ["train", str(file), *arguments, "--trainer.steps", "20"]
    assert main(command) == 0
    both = [final_params(tmp_path / name, 20) for name in ("called", "command")]
    assert len(both[0]) > 4
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("first", [1, 2])
def test_success_that_nothing_reads_is_told(
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def solve_ends(lengths: Sequence[int], **given: Any) -> Arrays:
        """Solves the last ``first`` rows of each episode, and no others."""
        rows = make_rows(lengths, **given | {"share": 0.0})
        last = np.cumsum(lengths) - 1
        for back in range(first):
            rows["rewards"][last - back] = rows["masks"][last - back] = 0
        return rows

    monkeypatch.setattr(stores, "make_rows", solve_ends)
    store = str(write_store(tmp_path / "store", ((40, 30), (50,))))
    changed = {"trainer": {"steps": 20, "seeds": 1}}
    train(
        CONFIG,
        store,
        str(tmp_path / "run"),
        task=1,
        overrides=changed,
        output=Output.standard(),
    )
    said = "warning: 3 of the 3 episodes of" in capsys.readouterr().err
    assert said == (first == 1)


def test_mistakes_come_before_training(tmp_path: Path) -> None:
    store = str(write_store(tmp_path / "store"))
    out = str(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"overrides: unknown key 'trainer\.step'; d"):
        train(CONFIG, store, out, task=1, overrides={"trainer": {"step": 2}})
    with pytest.raises(ConfigError, match=r"that has its own \('iql'\), got 'fql'"):
        train(CONFIG, store, out, task=1, agent="fql")
    with pytest.raises(ConfigError, match=r"nothing\.toml: no such configuration"):
        train(tmp_path / "nothing.toml", store, out, task=1)
    with pytest.raises(DataFormatError, match="task 9 is not in this store"):
        train(CONFIG, store, out, task=9)
    assert not Path(out).exists()
