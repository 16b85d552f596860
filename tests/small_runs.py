"""Runs of forty updates of a small agent, and everything that a checkpoint holds."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from pipeline.store.reader import Store
from trainer.agents.iql_config import IQLConfig
from trainer.config import Config, TrainerConfig
from trainer.data.feed import BatchSource, make_feed
from trainer.data.table import RowTable
from trainer.parallel.mesh import make_mesh
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, describe_run
from trainer.step.state import init_state

QUIET = Console(quiet=True)
CONFIG = Config(
    dataset="pointmaze-medium-navigate",
    agent=IQLConfig(width=8, depth=1),  # The quickest to compile.
    trainer=TrainerConfig(
        steps=40,
        batch_size=8,
        updates_per_call=5,
        seeds=2,
        log_every=10,
        checkpoint_every=20,
    ),
)


def make_run(store: Store, table: RowTable, **changes: Any) -> Run:
    trainer = dataclasses.replace(CONFIG.trainer, **changes)
    config = dataclasses.replace(CONFIG, trainer=trainer)
    return describe_run(config, store, 1, fingerprint=table.fingerprint)


def fresh(run: Run, table: RowTable) -> tuple[Any, Any]:
    """State and feed of a run before its first update."""
    state = init_state(
        run.agent(), make_mesh(run.config.mesh, seeds=2, batch_size=8), (0, 1)
    )
    source = BatchSource(
        table,
        run.agent().sampler,
        seeds=(0, 1),
        batch_size=8,
        steps=40,
        gather=False,
    )
    return state, make_feed(source, run.config.feed, updates_per_call=5)


def everything(folder: Path, run: Run, table: RowTable, step: int) -> list[np.ndarray]:
    """Reads every array of a checkpoint."""
    like, feed = fresh(run, table)
    state = CheckpointReader(RunFolder.open(folder)).restore(
        step, like, feed, updates_per_call=5
    )
    assert feed.get_state() == {"next_index": step // 5}
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
