"""A run on disk with checkpoints of made-up networks, for tests without training."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.store.manifest import Task
from tests.stores import make_facts, make_table
from trainer.agents.vast_config import VASTConfig
from trainer.config import Config, TrainerConfig
from trainer.data.feed import BatchSource, make_feed
from trainer.runs.checkpoints import CheckpointReader, CheckpointWriter
from trainer.runs.folder import RunFolder
from trainer.runs.retention import Retention
from trainer.runs.run import Run, read_run, write_run
from trainer.step.state import TrainState

LIMIT = 60
CONFIG = Config(
    dataset="pointmaze-medium-navigate",
    agent=VASTConfig(width=8, depth=1, flow_steps=2, max_horizon=6),
    trainer=TrainerConfig(
        steps=20,
        batch_size=8,
        updates_per_call=5,
        seed=3,
        seeds=2,
        log_every=10,
        checkpoint_every=10,
    ),
)
GOAL = {"xy": [20.0, 20.0], "tolerance": 1.0}
TABLE = make_table([20, 20], S=2, A=2)


def make_run() -> Run:
    """A run of two seeds of a tiny agent in the point maze, with short episodes."""
    kwargs = {
        "reward_task_id": 1,
        "add_noise_to_goal": False,
        "success_timing": "pre",
        "max_episode_steps": LIMIT,
    }
    return Run(
        config=CONFIG,
        dataset=CONFIG.dataset,
        task=Task(1, "task1", "pointmaze-medium-v0", "maze", GOAL, kwargs),
        facts=make_facts(TABLE),
        fingerprint=TABLE.fingerprint,
        store="made-up",
        versions={},
    )


class FakeTrainer:
    """Commits checkpoints of untrained networks, as training commits its own.

    Args:
        folder: Folder of the run; ``run.json`` is written at once.
        keep: Number of latest steps to keep; None keeps all.
        run: Run to write; by default that of ``make_run``.
        between: Smallest and largest value of a parameter.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int | None = None,
        run: Run | None = None,
        between: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self._between = between
        self._run = run or make_run()
        write_run(RunFolder.open(folder), self._run)
        agent = self._run.agent()
        source = BatchSource(
            TABLE, agent.sampler, seeds=(3, 4), batch_size=8, steps=20, gather=False
        )
        self._feed = make_feed(source, CONFIG.feed, updates_per_call=5)
        self._checkpoints = CheckpointWriter(RunFolder.open(folder), Retention(keep))
        self._rng = np.random.default_rng(0)
        self._shapes = TrainState(
            jax.eval_shape(
                jax.vmap(agent.init), jax.random.split(jax.random.key(0), 2)
            ),
            jax.ShapeDtypeStruct((2, 2), jnp.uint32),
        )

    def commit(self, step: int) -> None:
        """Saves a step and waits for it."""
        state = jax.tree.map(
            # Not drawn by `init`, because compiling it would take most of the time.
            lambda leaf: jnp.asarray(
                self._rng.uniform(*self._between, leaf.shape).astype(leaf.dtype)
            ),
            self._shapes,
        )
        self._checkpoints.save(step, state, self._feed, self._run)
        self._checkpoints.wait()

    def close(self) -> None:
        self._checkpoints.close()


def final_params(out: Path, step: int) -> list[np.ndarray]:
    """Reads all parameters of the last checkpoint, which must be of this step.

    Args:
        out: Folder of a run of one seed.
        step: Step of its last checkpoint.
    """
    checkpoints = CheckpointReader(RunFolder.open(out))
    try:
        assert checkpoints.latest() == step
        params = checkpoints.restore_params(
            step, read_run(RunFolder.open(out)).agent(), seeds=1
        )
        return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    finally:
        checkpoints.close()
