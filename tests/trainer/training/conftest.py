"""A small store, and a run on it from start to end, which no test may change."""

from pathlib import Path

import pytest

from pipeline.store.reader import Store
from tests.small_runs import QUIET, make_run
from tests.stores import write_store
from trainer.data.table import RowTable, load_table
from trainer.runs.folder import RunFolder
from trainer.training import loop


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(write_store(tmp_path_factory.mktemp("data") / "store")))


@pytest.fixture(scope="package")
def table(store: Store) -> RowTable:
    return load_table(store, task=1, discount=0.99)


@pytest.fixture(scope="package")
def whole(
    store: Store, table: RowTable, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run from start to end, without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    profile = str(folder.parent / f"{folder.name}-profile")
    run = make_run(store, table)
    assert (
        loop.train(run, table, RunFolder.open(folder), console=QUIET, profile=profile)
        == 40
    )
    return folder
