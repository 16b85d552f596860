"""Bits of a run that flip: noticed in one line, or nothing that is read has changed."""

import dataclasses
import gc
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from tests.fuzz import flip_bits
from tests.runs import CONFIG, TABLE, FakeTrainer, make_run
from trainer.cli import ignore_abandoned
from trainer.data.feed import BatchSource, make_feed
from trainer.errors import StorageError
from trainer.runs.checkpoints import CheckpointReader, CheckpointWriter
from trainer.runs.export import inspect
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, read_run
from trainer.step.state import TrainState, abstract_state

SEEDS = 2


def wide_run() -> Run:
    """Of arrays large enough to lie in files of their own: small ones are inlined."""
    agent: Any = dataclasses.replace(CONFIG.agent, width=32)  # type: ignore[arg-type]
    config = dataclasses.replace(CONFIG, agent=agent)
    return dataclasses.replace(make_run(), config=config)


RUN = wide_run()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    trainer = FakeTrainer(tmp_path / "run", run=RUN)
    trainer.commit(10)
    trainer.commit(20)
    trainer.close()
    return RunFolder.open(tmp_path / "run")


@pytest.fixture(autouse=True)
def _ignore_abandoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silences what Orbax abandons after the first error, as the commands do."""
    monkeypatch.setattr(sys, "unraisablehook", ignore_abandoned)
    yield
    gc.collect()  # While it still is.


def state_like() -> TrainState:
    shapes = abstract_state(RUN.agent(), seeds=SEEDS)
    zeros: TrainState = jax.tree.map(
        lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes
    )
    return zeros


def feed_of() -> Any:
    source = BatchSource(
        TABLE, RUN.agent().sampler, seeds=(3, 4), batch_size=8, steps=40, gather=False
    )
    return make_feed(source, CONFIG.feed, updates_per_call=5)


def read_state(
    checkpoints: CheckpointReader, step: int, feed: Any = None
) -> TrainState:
    feed = feed or feed_of()
    return checkpoints.restore(step, state_like(), feed, updates_per_call=5)


def read_all(folder: RunFolder) -> Any:
    """Everything that commands read of a run's last step, as values to compare."""
    feed = feed_of()
    with CheckpointReader(folder) as checkpoints:
        step = checkpoints.latest()
        assert step is not None
        run = checkpoints.read_run(step)
        state = read_state(checkpoints, step, feed)
        params = checkpoints.restore_params(step, run.agent(), seeds=SEEDS)
    arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state, params))]
    return step, run, read_run(folder), feed.get_state(), inspect(folder), arrays


@pytest.mark.parametrize(
    "noticed", [2, pytest.param(100, marks=pytest.mark.slow)], ids=str
)
def test_no_flipped_bit_is_restored_as_another_value(
    folder: RunFolder, noticed: int
) -> None:
    shutil.rmtree(folder.checkpoints / "10")
    expected = read_all(folder)
    assert expected[0] == 20
    refused: list[str] = []
    # Orbax names its files at random, so which bits are drawn differs from run to
    # run, and more than half may be of files that it leaves beside what it reads.
    for flipped in flip_bits(Path(str(folder)), count=20 * noticed):
        try:
            assert read_all(folder) == expected, flipped
        except (DataFormatError, StorageError) as error:
            refused.append(str(error))
        if len(refused) == noticed:
            break
    assert len(refused) == noticed
    assert all(len(said.splitlines()) == 1 for said in refused)


def spoil_array(folder: RunFolder, step: int, item: str) -> None:
    """Flips a bit of the largest array of an item, wherever Orbax has put it."""
    with CheckpointReader(folder) as checkpoints:
        saved = read_state(checkpoints, step, feed_of())
    tree = saved.agent.params if item == "params" else saved.agent.targets
    data = max((np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)), key=len)
    found = []
    for path in Path(folder.checkpoints, str(step), item).rglob("d/*"):
        place = path.read_bytes().find(data)
        if place >= 0:
            spoilt = bytearray(path.read_bytes())
            spoilt[place + len(data) // 2] ^= 16
            path.write_bytes(spoilt)
            found.append(path)
    assert found


@pytest.mark.parametrize("item", ["params", "train"])
def test_the_array_is_named(folder: RunFolder, item: str) -> None:
    spoil_array(folder, 20, item)
    with pytest.raises(StorageError) as caught:
        read_all(folder)
    said = str(caught.value)
    assert f"checkpoints/20: cannot be read ({item}/" in said
    assert "bytes have changed). Try again; if it is damaged, delete" in said
    assert "go on from step 10" in said


@pytest.mark.parametrize("item", ["data", "run", "digests"])
def test_the_item_is_named(folder: RunFolder, item: str) -> None:
    path = Path(folder.checkpoints, "20", item, "metadata")
    text = path.read_text()
    place = max(text.rfind(digit) for digit in "24680")
    path.write_text(f"{text[:place]}{int(text[place]) ^ 1}{text[place + 1 :]}")
    with pytest.raises(StorageError, match=rf"20: cannot be read \({item}: bytes have"):
        read_all(folder)


def test_run_json_is_sealed(folder: RunFolder) -> None:
    assert read_run(folder) == RUN
    path = Path(str(folder), "run.json")
    text = path.read_text()
    path.write_text(text.replace('"width": 32', '"width": 33'))
    assert path.read_text() != text
    with pytest.raises(
        DataFormatError, match=r"run\.json: .* bytes have changed; .*copy"
    ):
        read_run(folder)
    # As the message says.
    shutil.copy(Path(folder.checkpoints, "20", "run", "metadata"), path)
    assert read_run(folder) == RUN


def test_steps_and_runs_of_before_have_no_digests(folder: RunFolder) -> None:
    expected = read_all(folder)
    shutil.rmtree(folder.checkpoints / "20" / "digests")
    path = folder.checkpoints / "20" / "run" / "metadata"
    shutil.copy(path, folder.path / "run.json")
    assert read_all(folder) == expected
    spoil_array(folder, 20, "params")
    assert read_all(folder)[-1] != expected[-1]  # Nobody can notice it.


def test_the_last_good_step_is_one_that_is_read_as_it_was_saved(
    folder: RunFolder,
) -> None:
    checkpoints = CheckpointWriter(folder)
    checkpoints.prepare(state_like())
    spoil_array(folder, 20, "train")
    assert checkpoints.latest() == 20
    assert checkpoints.last_good() == 10
    checkpoints.close()
