"""Opened stores: equal to the reader's arrays, and to the batches of training."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.store.errors import DataFormatError, UnfinishedStoreError, UsageError
from pipeline.store.reader import Store
from tests.stores import numbers_of, write_store
from trainer.agents.iql_config import IQLConfig
from trainer.api import Trajectories, open_store, store
from trainer.data.nstep_windows import NStepSampler
from trainer.data.table import load_table
from trainer.errors import ConfigError


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Trajectories:
    """Episodes of 40, 30 and 50 rows, in two parts."""
    return open_store(str(write_store(tmp_path_factory.mktemp("store"))))


def test_fields_say_what_rows_are(opened: Trajectories) -> None:
    fields = opened.fields
    assert (fields["observations"].dtype, fields["observations"].shape) == (
        "float32",
        (6,),
    )
    assert fields["rewards"].per == "row_and_task"
    assert opened.episode_count() == 3
    assert opened.episode_count("val") == 0
    assert "pointmaze-medium-navigate, 120 rows" in repr(opened)


# Blocks hold one episode, two episodes, or a whole part.
@pytest.mark.parametrize("block", [1, 70, 1 << 15])
def test_episodes_are_the_store_s(
    opened: Trajectories, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_READ_ROWS", block)
    episodes = list(opened.episodes())
    assert [len(each["rewards"]) for each in episodes] == [40, 30, 50]
    reader = Store(opened.store.root)
    for name, field in opened.fields.items():
        joined = np.concatenate([each[name] for each in episodes])
        assert joined.dtype == field.dtype
        np.testing.assert_array_equal(joined, reader.read(name))


def test_episodes_of_one_task_and_some_fields(opened: Trajectories) -> None:
    episodes = list(opened.episodes(task=2, fields=["rewards", "actions"]))
    assert [sorted(each) for each in episodes] == [["actions", "rewards"]] * 3
    rewards = np.concatenate([each["rewards"] for each in episodes])
    np.testing.assert_array_equal(rewards, opened.store.read("rewards", column=1))
    assert list(opened.episodes(split="val")) == []


def test_an_episode_that_is_kept_keeps_no_other(opened: Trajectories) -> None:
    first = next(opened.episodes(fields=["observations"]))["observations"]
    assert first.base is None


def test_batches_are_those_of_training(opened: Trajectories) -> None:
    table = load_table(opened.store, task=2, discount=0.99)
    data = opened.batches("iql", task=2, batch_size=8, seed=3, steps=4)
    batches = list(data)
    assert len(batches) == 4
    sampler = NStepSampler(steps=1, discount=0.99)
    for step, batch in enumerate(batches):
        numbers = numbers_of(table, sampler, 8, seed=3, step=step)
        index = sampler.draw(table, numbers)
        expected = sampler.gather(table.observations, table.actions, index)
        assert type(batch) is type(expected)
        for name, values in expected._asdict().items():
            np.testing.assert_array_equal(getattr(batch, name), values)
    # Grain's iterators continue from a saved state.
    iterator = iter(data)
    next(iterator)
    place = iterator.get_state()
    resumed = iter(data)
    resumed.set_state(place)
    np.testing.assert_array_equal(next(resumed)[0], batches[1][0])


def test_batches_of_settings_of_one_s_own(opened: Trajectories) -> None:
    data = opened.batches(IQLConfig(width=8), task=1, batch_size=2, steps=1)
    (batch,) = data
    assert len(batch[0]) == 2


def test_mistakes_say_what_there_is(opened: Trajectories, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"some of \['actions', .*, got 'reward'"):
        list(opened.episodes(fields=["reward"]))
    with pytest.raises(DataFormatError, match="task 9 is not in this store"):
        list(opened.episodes(task=9))
    with pytest.raises(ConfigError, match=r"agent\.name: .* did you mean 'iql'"):
        opened.batches("iqll", task=1)
    with pytest.raises(ConfigError, match=r"trainer\.steps: expected at least 1"):
        opened.batches("iql", task=1, steps=0)
    with pytest.raises(DataFormatError, match=r"sums for discount 0\.5 are not"):
        opened.batches(IQLConfig(discount=0.5), task=1)
    with pytest.raises(UnfinishedStoreError, match="manifest of a finished store"):
        open_store(str(tmp_path))
