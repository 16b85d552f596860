"""A sweep of two methods, and cells with made-up checkpoints and evaluations."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.store import files
from pipeline.store.manifest import Task
from tests.stores import make_facts, make_table
from trainer.runs.evaluations import Evaluation, append_evaluation
from trainer.runs.folder import (
    CHECKPOINTS,
)
from trainer.runs.run import Run, write_run
from trainer.sweep.cells import Cell, make_cells, read_sweep

BASE = """
dataset = "pointmaze-medium-navigate"
[agent]
name = "vast"
max_horizon = 6
width = 8
depth = 1
flow_steps = 2
[trainer]
steps = 20
batch_size = 8
updates_per_call = 5
log_every = 10
checkpoint_every = 10
"""


FQL = """
[agent]
name = "fql"
depth = 1
[trainer]
batch_size = 16
[datasets.pointmaze-medium-navigate.agent]
alpha = 3.0
"""


SWEEP = """
out = "{root}/out"
datasets = ["pointmaze-medium-navigate"]
config = "{root}/tiny.toml"
store = "{root}/{{dataset}}"
tasks = [1, 3]
seeds = 3
seeds_per_run = 2
overrides.agent.width = 4
[evaluation]
episodes = 2
checkpoints = 2
environments = 2
workers = 1
[methods.vast]
overrides.agent = {{composed_gradient = false, temperature = 0.5}}
[methods.fql]
"""


TABLE = make_table([20, 20], S=2, A=2)


def cells_of(sweep: Path, only: str = "*") -> list[Cell]:
    return make_cells(read_sweep(sweep), only=only)


def commit(cell: Cell, *steps: int, store: str | None = None) -> None:
    task = Task(cell.task, "made-up", "pointmaze-medium-v0", "maze", {}, {})
    write_run(
        cell.folder,
        Run(
            config=cell.config,
            dataset=cell.config.dataset,
            task=task,
            facts=make_facts(TABLE),
            fingerprint="made-up",
            store=cell.store if store is None else store,
            versions={},
        ),
    )
    for step in steps:
        folder = f"{cell.folder}/{CHECKPOINTS}/{step}"
        files.write(folder, "commit_success.txt", b"")


def evaluate(cell: Cell, steps: Sequence[int], *, episodes: int = 2) -> None:
    for step in steps:
        for seed in cell.seeds:
            append_evaluation(
                cell.folder,
                made_up_evaluation(step, seed, (0,) * episodes, task=cell.task),
            )


def made_up_evaluation(
    step: int, seed: int, successes: tuple[int, ...], *, task: int = 1
) -> Evaluation:
    episodes = len(successes)
    return Evaluation(
        step=step,
        seed=seed,
        evaluation_seed=0,
        task=task,
        environment_id="pointmaze-medium-v0",
        episodes=episodes,
        successes=successes,
        returns=(-9.0,) * episodes,
        lengths=(9,) * episodes,
        success_timing="pre",
        store_success_timing="pre",
        environments=1,
        ogbench="0",
        mujoco="0",
        duration_s=1.0,
    )
