"""A trained policy as a library: observations in, actions out.

Loads JAX once a policy is loaded, and no simulator.

Dimensions: B environments side by side, C actions a call, S observation, A action.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.observations import flatten
from pipeline.store.errors import UsageError

if TYPE_CHECKING:
    from trainer.nn.networks import Params
    from trainer.runs.run import Run

Float32 = npt.NDArray[np.float32]


class LoadedPolicy:
    """Acts as one checkpoint of a run does when it is evaluated.

    What is done at step k of episode e depends on the parameters, ``seed``, e, k and
    the observation, and on nothing else: repeated, the actions are equal, bit by bit on
    one machine and batch size, up to rounding on others. ``evaluate`` with the same
    ``seed`` plays the same episodes.

    Attributes:
        run: What was trained, on what.
        step: Updates of the checkpoint.
        training_seed: Which of the run's seeds the parameters are of.
        seed: Of what acting draws.
    """

    def __init__(
        self, run: "Run", params: "Params", *, step: int, training_seed: int, seed: int
    ) -> None:
        from trainer.evaluation.rollouts import ActingRows, AgentActor

        self.run = run
        self.step = step
        self.training_seed = training_seed
        self.seed = seed
        self._agent = run.agent()
        self._params = params
        self._plan = AgentActor(self._agent).policy(params, seed)
        self._rows: ActingRows | None = None
        self._episodes = np.zeros(0, np.int64)

    def __repr__(self) -> str:
        return (
            f"LoadedPolicy({self.run.config.agent.name} on {self.run.dataset} task "
            f"{self.run.task.task}, step {self.step}, seed {self.training_seed})"
        )

    @property
    def observation_dim(self) -> int:
        """S."""
        return self.run.facts.observation_dim

    @property
    def action_dim(self) -> int:
        """A."""
        return self.run.facts.action_dim

    @property
    def chunk(self) -> int:
        """C: actions planned at once, and taken one after another."""
        return self._agent.chunk

    def reset(self, episodes: int | Sequence[int] = 0) -> None:
        """Begins an episode, or one in each of several environments.

        Args:
            episodes: Number of the episode, or ``[B]`` of them, from 0. Episodes of
                other numbers draw other noise.

        Raises:
            UsageError: If a number is negative.
        """
        from trainer.evaluation.rollouts import ActingRows

        self._episodes = np.atleast_1d(np.asarray(episodes, np.int64))
        if self._episodes.ndim != 1 or self._episodes.min(initial=0) < 0:
            raise UsageError(
                f"episodes: expected a number from 0, or a list of them, got {episodes}"
            )
        self._rows = ActingRows(len(self._episodes), self.observation_dim)

    def act(self, observation: Any) -> Float32:
        """Chooses the next action of each environment.

        The first call begins episode 0 in each, unless ``reset`` has begun others.

        Args:
            observation: ``[S]``, or ``[B, S]`` of B environments side by side, in the
                units of the data; of an environment that observes dictionaries, one
                such dictionary.

        Returns:
            ``f32[A]``, or ``f32[B, A]``, in the units of the data, which are the
            environment's.

        Raises:
            UsageError: If observations have another shape, or are another number of
                them than episodes were begun.
            EvaluationError: If the actions are not finite.
        """
        one = isinstance(observation, Mapping) or np.ndim(observation) == 1
        batch = self._check(flatten(observation) if one else observation)
        if self._rows is None:
            self.reset(range(len(batch)))
        assert self._rows is not None
        if len(batch) != len(self._episodes):
            raise UsageError(
                f"observation: expected {len(self._episodes)} of them, one for each "
                f"episode that was begun, got {len(batch)}; begin others with reset()"
            )
        slots = np.arange(len(batch))
        self._rows.update(slots, batch, self._episodes.tolist())
        actions = self._scaled(self._rows.next_actions(self._plan))
        return actions[0] if one else actions

    def plan(
        self, observations: npt.ArrayLike, *, episodes: Any = 0, steps: Any = 0
    ) -> Float32:
        """Plans the next C actions; a pure function, beside which ``act`` keeps count.

        Args:
            observations: ``[B, S]``, in the units of the data.
            episodes: ``i64[B]``, or one for all.
            steps: ``i64[B]``, steps taken in each episode, or one for all.

        Returns:
            ``f32[B, C, A]``, in the units of the data.

        Raises:
            UsageError: If observations have another shape.
        """
        batch = self._check(observations)
        counts = (
            np.broadcast_to(np.asarray(n, np.int64), len(batch))
            for n in (episodes, steps)
        )
        return self._scaled(np.asarray(self._plan(batch, *counts)))

    def export(self) -> bytes:
        """Makes acting a program that needs nothing of this package.

        Returns:
            StableHLO with the parameters inside, for CPUs, NVIDIA's GPUs and TPUs, as
            ``jax.export.deserialize`` reads it. It is called with observations
            ``f32[B, S]``, a seed ``u32[]``, episodes ``u32[B]`` and steps ``u32[B]``,
            and returns what ``plan`` does with that seed.
        """
        from trainer.evaluation.program import export_acting

        return export_acting(
            self._agent,
            self._params,
            observation_dim=self.observation_dim,
            action_scale=self.run.action_scale,
        )

    def _check(self, observations: Any) -> Float32:
        batch = np.atleast_2d(np.asarray(observations, np.float32))
        if batch.ndim != 2 or batch.shape[1] != self.observation_dim or not len(batch):
            S = self.observation_dim
            raise UsageError(
                f"observation: expected shape [{S}] or [B, {S}], as in the data of "
                f"{self.run.dataset}, got {list(np.shape(observations))}"
            )
        return batch

    def _scaled(self, actions: Float32) -> Float32:
        """Actions in [-1, 1] in the units of the data."""
        scale = self.run.action_scale
        return actions if scale is None else scale.from_unit(actions)


def load_policy(
    run: str,
    step: int | None = None,
    *,
    training_seed: int | None = None,
    seed: int = 0,
) -> LoadedPolicy:
    """Loads the policy of a checkpoint, on the first device there is.

    Args:
        run: Folder of the run, a local path or ``gs://bucket/path``.
        step: Updates done; the last checkpoint by default.
        training_seed: Which of the seeds trained side by side; the first by default.
        seed: Of what acting draws, 0 to 2**32 - 1; what it fixes, see ``LoadedPolicy``.

    Returns:
        The policy.

    Raises:
        DataFormatError: If the folder holds no run, no such step or no such seed.
        StorageError: If the checkpoint cannot be read, or its bytes have changed.
        UsageError: If ``seed`` is out of range.
    """
    import jax

    from trainer.runs.checkpoints import CheckpointReader
    from trainer.runs.choice import choose_seed, choose_step
    from trainer.runs.folder import RunFolder

    if not 0 <= seed < 2**32:
        raise UsageError(f"seed: expected 0 to 2**32 - 1, got {seed}")
    with CheckpointReader(RunFolder.open(run)) as checkpoints:
        chosen = choose_step(checkpoints, step)
        trained = checkpoints.read_run(chosen)
        seeds = trained.config.trainer.seed_range
        which = choose_seed(checkpoints, seeds, training_seed)
        params = checkpoints.restore_params(chosen, trained.agent(), seeds=len(seeds))
    index = seeds.index(which)
    return LoadedPolicy(
        trained,
        jax.tree.map(lambda leaf: leaf[index], params),
        step=chosen,
        training_seed=which,
        seed=seed,
    )
