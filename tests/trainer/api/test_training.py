"""``train`` as a function: it makes the same run as the command."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from tests.runs import final_params
from tests.small_runs import CONFIG
from tests.stores import write_store
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
