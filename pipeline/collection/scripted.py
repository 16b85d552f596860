"""Collects episodes with OGBench's scripted policies in MuJoCo.

The module repeats the loop by which OGBench made its published data: which policy acts,
when it gets a new target, and how noise is added to its actions. It knows nothing of
stores or Beam. An episode is a function of its seed alone, so that a data set does not
depend on which worker made which episode.
"""

import copy
import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.domains.datasets import Domain, Family, cube_place
from pipeline.domains.environments import (
    episode_seed,
    make_environment,
    seed_numpy,
)
from pipeline.store.errors import BadEpisodeError, UsageError

Episode = dict[str, NDArray[Any]]

# An unhealthy episode is drawn again from another seed. After 20 of them in a row the
# cause is more likely a wrong version of the simulator than chance.
MAX_ATTEMPTS = 20

_DTYPES = {
    "observations": np.float32,
    "actions": np.float32,
    "terminals": np.bool_,
    "qpos": np.float32,
    "qvel": np.float32,
    "button_states": np.int64,
}

# Objects that the policies of a family handle.
_TARGETS: dict[Family, tuple[str, ...]] = {
    "cube": ("cube",),
    "puzzle": ("button",),
    "scene": ("cube", "button", "drawer", "window"),
}
# Range from which the probability of stacking cubes is drawn once per episode, as in
# OGBench's generation scripts.
_STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
    "cube-octuple": (0.0, 0.35),
}
_ARM_NOISE = 0.1
_ARM_NOISE_SCALES = np.array([1.0, 1.0, 1.0, 3.0, 10.0])  # xyz, yaw, gripper
_POINT_NOISE = 0.5
# Probability of a random action in ``noisy`` data.
_RANDOM_ACTIONS: dict[Family, float] = {"cube": 0.1, "scene": 0.1, "puzzle": 0.2}


class EpisodeCollector:
    """Collects episodes of one data set in one environment.

    Args:
        domain: The data set: any ``play`` or ``noisy``, or ``navigate`` of a point
            mass.
        rows: Rows of an episode, one more than its transitions; None takes the number
            of the published data.

    Attributes:
        redraws: Number of unhealthy episodes so far, which were drawn again.

    Raises:
        UsageError: If no scripted policy makes such data.
        ValueError: If ``rows`` is below 2.
        MissingPackageError: If the simulator is not installed.
    """

    def __init__(self, domain: Domain, *, rows: int | None = None) -> None:
        self._domain = domain
        self._rows = domain.episode_rows if rows is None else rows
        if self._rows < 2:
            raise ValueError(f"expected at least 2 rows an episode, got {rows}")
        check_scripted(domain)
        options = {} if domain.family == "maze" else {"mode": "data_collection"}
        # Making an environment may draw from NumPy's global generator. The lock of
        # `seed_numpy` keeps that from disturbing an episode in another thread.
        with seed_numpy(0):
            self._environment = make_environment(
                domain.environment_id, terminate_at_goal=False, **options
            )
            self._policy: _Policy = (
                _ScriptedPoint(self._environment)
                if domain.family == "maze"
                else _ScriptedArm(self._environment, domain)
            )
        self.redraws = 0

    def collect(self, seed: int) -> Episode:
        """Collects the episode of a seed.

        Args:
            seed: Any non-negative integer, such as from ``episode_seed``.

        Returns:
            Arrays by name, one row for each step:

            - ``observations``: ``float32[rows, S]``;
            - ``actions``: ``float32[rows, A]`` in [-1, 1];
            - ``terminals``: ``bool[rows]``, true in the last row only;
            - ``qpos``, ``qvel``: ``float32[rows, Q]``, ``float32[rows, V]``,
              physics state before the step, in metres, radians and seconds;
            - ``button_states``: ``int64[rows, buttons]``, before the step, if the
              environment has buttons.

            All arrays of a row describe the same moment, except in a row that a
            teleport leads to: there the observation is from before the teleport and
            ``qpos`` from after it, as in the published data.

        Raises:
            BadEpisodeError: If many attempts in a row give no healthy episode.
        """
        attempt_seed = seed
        for attempt in range(1, MAX_ATTEMPTS + 1):
            episode = self._run(attempt_seed)
            if self._is_healthy(episode):
                return episode
            self.redraws += 1
            attempt_seed = episode_seed(seed, attempt)
        raise BadEpisodeError(
            f"{self._domain.dataset}, seed {seed}: no healthy episode in "
            f"{MAX_ATTEMPTS} attempts; check the versions of ogbench and mujoco",
            reason="unhealthy",
        )

    def _run(self, seed: int) -> Episode:
        """Collects one episode, healthy or not."""
        steps: dict[str, list[Any]] = {name: [] for name in _DTYPES}
        with seed_numpy(seed):
            observation, info = self._policy.start(seed)
            for _ in range(self._rows):
                action = np.clip(self._policy.act(observation, info), -1.0, 1.0)
                steps["observations"].append(observation)
                steps["actions"].append(action)
                observation, _, _, _, info = self._environment.step(action)
                for name in ("qpos", "qvel", "button_states"):
                    if (before := info.get(f"prev_{name}")) is not None:
                        steps[name].append(before)
                self._policy.retarget(info)
        steps["terminals"] = [False] * (self._rows - 1) + [True]
        return {
            name: np.array(values, _DTYPES[name])
            for name, values in steps.items()
            if values
        }

    def _is_healthy(self, episode: Episode) -> bool:
        """Tells whether the simulation was stable and a scene's cube stayed near."""
        import mujoco

        # After one of these warnings MuJoCo has reset itself to its initial state in
        # the middle of the episode, a jump that no action explains.
        diverged = (
            mujoco.mjtWarning.mjWARN_BADQPOS,
            mujoco.mjtWarning.mjWARN_BADQVEL,
            mujoco.mjtWarning.mjWARN_BADQACC,
        )
        if any(self._environment.data.warning[kind].number for kind in diverged):
            return False
        if self._domain.family != "scene":
            return True
        _, y, z = episode["qpos"][:, cube_place(0)].T
        beyond_right = y >= 0.29
        beyond_left = (y <= -0.3) & ((z < 0.06) | (z > 0.08))  # not in the drawer
        return not np.any(beyond_right | beyond_left)


class _Policy(Protocol):
    """A scripted policy together with its environment."""

    def start(self, seed: int) -> tuple[NDArray[Any], Mapping[str, Any]]:
        """Resets the environment and gives the policy its first target."""
        ...

    def act(
        self, observation: NDArray[Any], info: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        """Chooses the next action, not yet clipped."""
        ...

    def retarget(self, info: Mapping[str, Any]) -> None:
        """Sets a new target if the policy has met the current one or given it up."""
        ...


class _ScriptedArm:
    """Moves an arm: open-loop plans for ``play``, feedback policies for ``noisy``."""

    def __init__(self, environment: Any, domain: Domain) -> None:
        self._environment = environment
        self._noisy = domain.dataset_type == "noisy"
        self._stacking = _STACKING.get(domain.environment.name, (0.5, 0.5))
        self._random_actions = _RANDOM_ACTIONS[domain.family] if self._noisy else 0.0
        self._oracles = {
            target: self._oracle(target, domain.family)
            for target in _TARGETS[domain.family]
        }
        # A reset of the environment keeps the targets of the episode before, and the
        # policies see them. So that an episode depends on its seed alone, every episode
        # starts with the targets of this one reset.
        environment.reset(seed=0)
        self._targets = {
            name: copy.deepcopy(value)
            for name, value in vars(environment).items()
            if name.startswith("_target_")
        }
        self._sites = environment.model.site_pos.copy()

    def _oracle(self, target: str, family: Family) -> Any:
        """Makes OGBench's policy for one kind of target."""
        options: dict[str, Any]
        if self._noisy:
            kind, options = "markov", {"min_norm": 0.4}
        else:
            kind, options = "plan", {"noise": _ARM_NOISE, "noise_smoothing": 0.5}
        if family == "puzzle":
            options["gripper_always_closed"] = True
        if family == "scene" and self._noisy and target == "cube":
            options["max_step"] = 100
        module = importlib.import_module(
            f"ogbench.manipspace.oracles.{kind}.{target}_{kind}"
        )
        oracle = getattr(module, f"{target.capitalize()}{kind.capitalize()}Oracle")
        return oracle(env=self._environment, **options)

    def start(self, seed: int) -> tuple[NDArray[Any], Mapping[str, Any]]:
        # The environment itself draws from default_rng(seed). The policy needs a stream
        # of its own, or its noise would correlate with the environment's draws.
        self._random = np.random.default_rng((seed, 1))
        self._p_stack = self._random.uniform(*self._stacking)
        self._noise = self._random.uniform(0.0, _ARM_NOISE)
        vars(self._environment).update(copy.deepcopy(self._targets))
        self._environment.model.site_pos[:] = self._sites
        observation, info = self._environment.reset(seed=seed)
        self._hand_over(observation, info)
        return observation, info

    def act(
        self, observation: NDArray[Any], info: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        if self._random.random() < self._random_actions:
            return self._random.uniform(-1.0, 1.0, len(_ARM_NOISE_SCALES))
        action: NDArray[np.float64] = self._acting.select_action(observation, info)
        if self._noisy:
            action = action + self._random.normal(0.0, self._noise * _ARM_NOISE_SCALES)
        return action

    def retarget(self, info: Mapping[str, Any]) -> None:
        if self._acting.done:
            # The new policy is reset with the observation of the new target, but its
            # first action still sees the observation of the last step. OGBench's data
            # were made this way.
            self._hand_over(*self._environment.set_new_target(p_stack=self._p_stack))

    def _hand_over(self, observation: NDArray[Any], info: Mapping[str, Any]) -> None:
        """Makes the policy for the environment's current target the acting one."""
        self._acting = self._oracles[info["privileged/target_task"]]
        self._acting.reset(observation, info)


class _ScriptedPoint:
    """Moves a point mass along the shortest path of a maze, from goal to goal."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        walls = environment.maze_map == 1
        self._free = [tuple(map(int, cell)) for cell in np.argwhere(~walls)]
        self._goals = [cell for cell in self._free if not _is_corridor(walls, cell)]
        self._way: dict[tuple[Any, Any], NDArray[np.float64]] = {}

    def start(self, seed: int) -> tuple[NDArray[Any], Mapping[str, Any]]:
        self._random = np.random.default_rng((seed, 1))
        task = {"init_ij": self._draw(self._free), "goal_ij": self._draw(self._goals)}
        # Only settling steps, which the reset undoes before the episode starts, draw
        # from the action space.
        self._environment.action_space.seed(seed % 2**32)
        observation, info = self._environment.reset(
            seed=seed, options={"task_info": task}
        )
        return observation, info

    def act(
        self, observation: NDArray[Any], info: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        maze = self._environment
        at, goal = maze.get_xy(), maze.cur_goal_xy
        cells = maze.xy_to_ij(at), maze.xy_to_ij(goal)
        if cells not in self._way:
            # The next sub-goal takes a search of the whole maze and depends on the two
            # cells only, so it is computed once for each pair.
            self._way[cells], _ = maze.get_oracle_subgoal(at, goal)
        ahead = self._way[cells] - at
        direction = ahead / (np.linalg.norm(ahead) + 1e-6)
        noisy: NDArray[np.float64] = direction + self._random.normal(
            0.0, _POINT_NOISE, len(direction)
        )
        return noisy

    def retarget(self, info: Mapping[str, Any]) -> None:
        if info["success"]:
            maze = self._environment
            place = maze.add_noise(maze.ij_to_xy(self._draw(self._goals)))
            maze.set_goal(goal_xy=place)

    def _draw(self, cells: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Draws one of some cells uniformly."""
        return cells[self._random.integers(len(cells))]


def check_scripted(domain: Domain) -> None:
    """Refuses data that no scripted policy makes.

    Args:
        domain: The data set.

    Raises:
        UsageError: If no scripted policy makes such data; the message says what to do
            instead.
    """
    name = domain.environment.name
    if name.startswith("antmaze"):
        raise UsageError(
            f"{domain.dataset} cannot be collected: the ant walks by a trained policy "
            "that no package ships; build the store from OGBench's hosted files "
            f"{domain.dataset}-v0.npz and {domain.dataset}-v0-val.npz"
        )
    collected = ("navigate",) if domain.family == "maze" else ("play", "noisy")
    if domain.dataset_type not in collected:
        raise UsageError(
            f"{domain.dataset} cannot be collected, only "
            f"{' and '.join(f'{name}-{kind}' for kind in collected)}; build the store "
            f"from OGBench's hosted files, such as {domain.dataset}-v0.npz"
        )


def _is_corridor(walls: NDArray[np.bool_], cell: tuple[int, ...]) -> bool:
    """Tells whether a free cell has exactly two open sides, opposite each other."""
    i, j = cell
    across = bool(walls[i - 1, j]), bool(walls[i + 1, j])
    along = bool(walls[i, j - 1]), bool(walls[i, j + 1])
    return {across, along} == {(True, True), (False, False)}
