"""How long a checkpoint blocks training: ``python -m tests.benchmarks.checkpoints``.

Saves a state of random numbers, with the sizes of configs/wide, as training does.
Prints how long the loop waits, how long the save takes in the background, and how long
restoring takes. Nothing is trained: a call that only rewrites its donated state stands
for an update, because a save that still uses the state's memory slows that call down.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from pipeline.store.manifest import Task
from trainer import config
from trainer.costs import published
from trainer.costs.random_data import make_random_table, make_shape_facts
from trainer.data.feed import BatchSource, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.parallel.mesh import make_mesh, replicated
from trainer.parallel.mesh_shape import MeshConfig
from trainer.runs.checkpoints import CheckpointWriter
from trainer.runs.folder import RunFolder
from trainer.runs.retention import Retention
from trainer.runs.run import Run
from trainer.step.state import abstract_state

CONFIG = Path(__file__).parents[2] / "configs" / "wide" / "cube-triple-play-4096.toml"
# Seconds between two checkpoints; the time that the loop waits is a share of them.
INTERVAL_S = 60


def random_state(agent: Any, mesh: jax.sharding.Mesh) -> Any:
    """Makes a state of random numbers, because equal numbers would compress away."""
    rng = np.random.default_rng(0)
    placed = replicated(mesh)

    def draw(leaf: jax.ShapeDtypeStruct) -> Any:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.split(jax.random.key(0), leaf.shape))
        if leaf.dtype == np.float32:
            return jax.device_put(rng.random(leaf.shape, np.float32), placed)
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), placed)

    return jax.tree.map(draw, abstract_state(agent, seeds=1))


@partial(jax.jit, donate_argnums=0)
def rewrite(state: Any) -> Any:
    """Rewrites every number, in place if no other holds their memory."""
    return jax.tree.map(
        lambda leaf: leaf * 0.5 if leaf.dtype == np.float32 else leaf, state
    )


def timed_rewrite(state: Any) -> tuple[Any, float]:
    """Makes one call; returns the state and the seconds until it is finished."""
    started = time.perf_counter()
    state = jax.block_until_ready(rewrite(state))
    return state, time.perf_counter() - started


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder on the disk to measure")
    given = parser.parse_args()

    settings = config.load(CONFIG, task=1)
    settings = dataclasses.replace(
        settings, agent=dataclasses.replace(settings.agent, width=given.width)
    )
    known = published.find_dataset(settings.dataset)
    facts = make_shape_facts(known.observation_dim, known.action_dim)
    task = Task(1, "task1", "none", "stored")
    run = Run(settings, settings.dataset, task, facts, "random", "none", {})
    agent = run.agent()
    mesh = make_mesh(MeshConfig(), seeds=1, batch_size=1, devices=jax.devices()[:1])
    state = random_state(agent, mesh)
    table = make_random_table(facts, discount=settings.agent.discount)
    source = BatchSource(
        table, agent.sampler, seeds=(0,), batch_size=1, steps=50, gather=False
    )
    feed = make_feed(
        source, FeedConfig(), updates_per_call=settings.trainer.updates_per_call
    )
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    blocked, written, processor = [], [], []
    for _ in range(3):  # The first one compiles.
        state, alone_s = timed_rewrite(state)
    with tempfile.TemporaryDirectory(dir=given.out) as folder:
        checkpoints = CheckpointWriter(
            RunFolder.open(Path(folder) / "run"), Retention(keep=1)
        )
        started = time.perf_counter()
        checkpoints.prepare(state)
        prepared_s = time.perf_counter() - started
        for step in range(given.saves):
            started, busy = time.perf_counter(), time.process_time()
            checkpoints.save(step, state, feed, run)
            saved_s = time.perf_counter() - started
            state, beside_s = timed_rewrite(state)
            blocked.append(saved_s + max(0.0, beside_s - alone_s))
            checkpoints.wait()
            written.append(time.perf_counter() - started)
            processor.append(time.process_time() - busy)
        started = time.perf_counter()
        restored = checkpoints.restore(
            step, state, feed, updates_per_call=settings.trainer.updates_per_call
        )
        jax.block_until_ready(restored)
        restore_s = time.perf_counter() - started
        checkpoints.close()

    device = f"{jax.devices()[0].device_kind} ({os.cpu_count()} cores)"
    shown = Table(
        *("width", "state, GiB", "loop blocked, s", f"share of {INTERVAL_S} s"),
        *("written in, s", "MiB/s", "processor, s", "prepared in, s", "restored in, s"),
        title=f"checkpoints of VAST on {device}, median of {given.saves}",
    )
    wait, write = statistics.median(blocked), statistics.median(written)
    shown.add_row(
        f"{given.width:,}",
        f"{size / 2**30:.2f}",
        f"{wait:.2f}",
        f"{wait / INTERVAL_S:.1%}",
        f"{write:.1f}",
        f"{size / 2**20 / write:,.0f}",
        f"{statistics.median(processor):.1f}",
        f"{prepared_s:.1f}",
        f"{restore_s:.1f}",
    )
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
