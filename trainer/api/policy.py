"""A trained policy as an object: observations in, actions out.

JAX is imported when a policy is loaded; a simulator never is.

Dimensions: B environments acted in at once, C actions of a plan, S observation,
A action.
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
    """The policy of one checkpoint, which acts as ``evaluate`` does.

    The action at step k of episode e is a function of the parameters, ``seed``, e, k
    and the observation alone. A repetition gives the same actions: to the bit on the
    same machine with the same batch size, else up to rounding. ``evaluate`` with the
    same ``seed`` plays the same episodes.

    Attributes:
        run: The run, with its configuration and its data.
        step: Number of updates that the checkpoint was saved after.
        training_seed: Training seed of the parameters, one of the run's.
        seed: Seed of the policy's noise.
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
        # The function that evaluations compile, so that both act alike.
        self._plan = AgentActor(self._agent).make_policy(params, seed)
        self._rows: ActingRows | None = None
        self._episodes = np.zeros(0, np.int64)

    def __repr__(self) -> str:
        return (
            f"LoadedPolicy({self.run.config.agent.name} on {self.run.dataset} task "
            f"{self.run.task.task}, step {self.step}, seed {self.training_seed})"
        )

    @property
    def observation_dim(self) -> int:
        """Number S of components of an observation."""
        return self.run.facts.observation_dim

    @property
    def action_dim(self) -> int:
        """Number A of components of an action."""
        return self.run.facts.action_dim

    @property
    def chunk(self) -> int:
        """Number C of actions that are planned at once and taken one by one."""
        return self._agent.chunk

    def reset(self, episodes: int | Sequence[int] = 0) -> None:
        """Begins an episode in one environment, or in each of several.

        Args:
            episodes: Number of the episode, or ``[B]`` numbers, from 0. The policy's
                noise depends on the number.

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

        Without a ``reset`` before it, the first call begins episode b in environment b.

        Args:
            observation: ``[S]`` of one environment or ``[B, S]`` of several, in the
                units of the data. If the environment's observations are dictionaries,
                one such dictionary.

        Returns:
            ``f32[A]`` or ``f32[B, A]``, in the units of the data, which are those of
            the environment.

        Raises:
            UsageError: If the observation has another shape, or its number of rows is
                not the number of episodes that were begun.
            EvaluationError: If the actions are not finite.
        """
        single = isinstance(observation, Mapping) or np.ndim(observation) == 1
        batch = self._check(flatten(observation) if single else observation)
        if self._rows is None:
            self.reset(range(len(batch)))
        assert self._rows is not None
        # Steps and planned actions are kept by row: a row must stay the same episode.
        if len(batch) != len(self._episodes):
            raise UsageError(
                f"observation: expected {len(self._episodes)} of them, one for each "
                f"episode that was begun, got {len(batch)}; begin others with reset()"
            )
        # The update counts a step in every row; the step is part of the noise's key.
        slots = np.arange(len(batch))
        self._rows.update(slots, batch, self._episodes.tolist())
        actions = self._to_data_units(self._rows.next_actions(self._plan))
        return actions[0] if single else actions

    def plan(
        self, observations: npt.ArrayLike, *, episodes: Any = 0, steps: Any = 0
    ) -> Float32:
        """Plans the next C actions of each row.

        This method is a pure function, for programs that count episodes and steps
        themselves; ``act`` counts them for its caller.

        Args:
            observations: ``[B, S]``, in the units of the data.
            episodes: ``i64[B]``, or one number for all rows.
            steps: ``i64[B]``, steps taken in each episode, or one number for all rows.

        Returns:
            ``f32[B, C, A]``, in the units of the data.

        Raises:
            UsageError: If the observations have another shape.
        """
        batch = self._check(observations)
        counts = (
            np.broadcast_to(np.asarray(n, np.int64), len(batch))
            for n in (episodes, steps)
        )
        return self._to_data_units(np.asarray(self._plan(batch, *counts)))

    def export(self) -> bytes:
        """Exports the policy as a program that runs without this package.

        Returns:
            StableHLO with the parameters inside, for CPUs, NVIDIA's GPUs and TPUs, as
            ``jax.export.deserialize`` reads it. The program takes observations
            ``f32[B, S]``, a seed ``u32[]``, episodes ``u32[B]`` and steps ``u32[B]``,
            and returns what ``plan`` returns with that seed.
        """
        from trainer.evaluation.program import export_acting

        return export_acting(
            self._agent,
            self._params,
            observation_dim=self.observation_dim,
            action_scale=self.run.action_scale,
        )

    def _check(self, observations: Any) -> Float32:
        """Returns observations as ``f32[B, S]``, or refuses their shape."""
        batch = np.atleast_2d(np.asarray(observations, np.float32))
        if batch.ndim != 2 or batch.shape[1] != self.observation_dim or not len(batch):
            S = self.observation_dim
            raise UsageError(
                f"observation: expected shape [{S}] or [B, {S}], as in the data of "
                f"{self.run.dataset}, got {list(np.shape(observations))}"
            )
        return batch

    def _to_data_units(self, actions: Float32) -> Float32:
        """Scales actions from [-1, 1] to the units of the data."""
        scale = self.run.action_scale
        return actions if scale is None else scale.from_unit(actions)


def load_policy(
    run: str,
    step: int | None = None,
    *,
    training_seed: int | None = None,
    seed: int = 0,
) -> LoadedPolicy:
    """Loads the policy of a checkpoint onto the first device.

    Args:
        run: Folder of the run, a local path or ``gs://bucket/path``.
        step: Step of the checkpoint; None takes the last one.
        training_seed: Training seed, one of the run's; None takes the first one.
        seed: Seed of the policy's noise, 0 to 2**32 - 1; ``LoadedPolicy`` says what
            depends on it.

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

    # A key is made of 32 bits: a larger seed would act as another one.
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed: expected 0 to 2**32 - 1, got {seed}")
    with CheckpointReader(RunFolder.open(run)) as checkpoints:
        chosen_step = choose_step(checkpoints, step)
        trained = checkpoints.read_run(chosen_step)
        seeds = trained.config.trainer.seed_range
        # Refused before the arrays are read, which takes a while from a bucket.
        chosen_seed = choose_seed(checkpoints, seeds, training_seed)
        params = checkpoints.restore_params(
            chosen_step, trained.agent(), seeds=len(seeds)
        )
    # A checkpoint holds the parameters of all seeds on a leading axis.
    index = seeds.index(chosen_seed)
    return LoadedPolicy(
        trained,
        jax.tree.map(lambda leaf: leaf[index], params),
        step=chosen_step,
        training_seed=chosen_seed,
        seed=seed,
    )
