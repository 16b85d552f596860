"""Episodes made by OGBench's scripted policies in MuJoCo.

Owns the loop by which OGBench made its published data: which policy acts, when it
gets a new target and how its actions are disturbed. Knows nothing of stores or
Beam. An episode is a function of its seed alone, so a data set does not depend on
which worker made which of its episodes.
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
    numpy_seeded,
)
from pipeline.store.errors import BadEpisodeError, UsageError

Episode = dict[str, NDArray[Any]]

# An unhealthy episode is drawn again this often before something must be wrong.
MAX_ATTEMPTS = 20

_DTYPES = {
    "observations": np.float32,
    "actions": np.float32,
    "terminals": np.bool_,
    "qpos": np.float32,
    "qvel": np.float32,
    "button_states": np.int64,
}

# What a policy can be told to handle.
_TARGETS: dict[Family, tuple[str, ...]] = {
    "cube": ("cube",),
    "puzzle": ("button",),
    "scene": ("cube", "button", "drawer", "window"),
}
# The probability of stacking cubes is drawn between these, once an episode.
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
# How often ``noisy`` data take an action at random.
_RANDOM_ACTIONS: dict[Family, float] = {"cube": 0.1, "scene": 0.1, "puzzle": 0.2}


class EpisodeCollector:
    """Makes episodes of one data set, one environment for all of them.

    Args:
        domain: The data set: any ``play`` or ``noisy``, or ``navigate`` of a point
            mass.
        rows: Rows of an episode, one more than its transitions; as many as the
            published data have by default.

    Attributes:
        redraws: Unhealthy episodes thrown away and drawn again so far.

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
        # Making one may draw from NumPy's generator, which an episode that another
        # thread collects may hold.
        with numpy_seeded(0):
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
        """Makes the episode of a seed.

        Args:
            seed: Any non-negative integer, such as from ``episode_seed``.

        Returns:
            By name, one row a step:

            - ``observations``: ``float32[rows, S]``;
            - ``actions``: ``float32[rows, A]`` in [-1, 1];
            - ``terminals``: ``bool[rows]``, true in the last row only;
            - ``qpos``, ``qvel``: ``float32[rows, Q]``, ``float32[rows, V]``,
              physics state before the step, in metres, radians and seconds;
            - ``button_states``: ``int64[rows, buttons]``, likewise, where the
              environment has buttons.

            All of a row are of one moment, but for a row entered by teleport: there
            the observation is from before it and ``qpos`` from after, as published.

        Raises:
            BadEpisodeError: If no healthy episode came of many attempts.
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
        """Makes an episode, healthy or not."""
        steps: dict[str, list[Any]] = {name: [] for name in _DTYPES}
        with numpy_seeded(seed):
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
        """Whether the simulation held, and the cube of a scene stayed in view."""
        import mujoco

        # MuJoCo resets itself to its initial state, mid-episode, after these.
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
    """A scripted policy and its environment, through one episode after another."""

    def start(self, seed: int) -> tuple[NDArray[Any], Mapping[str, Any]]:
        """Resets the environment and gives the policy its first target."""
        ...

    def act(
        self, observation: NDArray[Any], info: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        """The next action, not yet clipped."""
        ...

    def retarget(self, info: Mapping[str, Any]) -> None:
        """Sets a new target if the last step met, or gave up, the present one."""
        ...


class _ScriptedArm:
    """Picks, places, presses and slides: ``play`` by plans, ``noisy`` by feedback."""

    def __init__(self, environment: Any, domain: Domain) -> None:
        self._environment = environment
        self._noisy = domain.dataset_type == "noisy"
        self._stacking = _STACKING.get(domain.environment.name, (0.5, 0.5))
        self._random_actions = _RANDOM_ACTIONS[domain.family] if self._noisy else 0.0
        self._oracles = {
            target: self._oracle(target, domain.family)
            for target in _TARGETS[domain.family]
        }
        # A reset leaves the targets of the last episode where the policies can see
        # them; episodes start from those of one fixed reset instead.
        environment.reset(seed=0)
        self._targets = {
            name: copy.deepcopy(value)
            for name, value in vars(environment).items()
            if name.startswith("_target_")
        }
        self._sites = environment.model.site_pos.copy()

    def _oracle(self, target: str, family: Family) -> Any:
        """OGBench's policy for one kind of target."""
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
        # The environment draws from default_rng(seed): these must not be the same.
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
            # The new policy is reset with what is known of the new target, yet its
            # first action sees the last step's: so OGBench's data were made.
            self._hand_over(*self._environment.set_new_target(p_stack=self._p_stack))

    def _hand_over(self, observation: NDArray[Any], info: Mapping[str, Any]) -> None:
        """Lets the policy for the environment's present target act."""
        self._acting = self._oracles[info["privileged/target_task"]]
        self._acting.reset(observation, info)


class _ScriptedPoint:
    """Follows the shortest way through a maze, from goal to goal."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        walls = environment.maze_map == 1
        self._free = [tuple(map(int, cell)) for cell in np.argwhere(~walls)]
        self._goals = [cell for cell in self._free if not _is_corridor(walls, cell)]
        self._way: dict[tuple[Any, Any], NDArray[np.float64]] = {}

    def start(self, seed: int) -> tuple[NDArray[Any], Mapping[str, Any]]:
        self._random = np.random.default_rng((seed, 1))
        task = {"init_ij": self._draw(self._free), "goal_ij": self._draw(self._goals)}
        # Only settling steps, undone before the episode starts, draw from this.
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
            # A search of the whole maze, yet it depends on the two cells only.
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
        """One of some cells, uniformly."""
        return cells[self._random.integers(len(cells))]


def check_scripted(domain: Domain) -> None:
    """Refuses data that no scripted policy makes.

    Args:
        domain: The data set.

    Raises:
        UsageError: If no scripted policy makes such data; says what to do instead.
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
            f"{' and '.join(f'{name}-{each}' for each in collected)}; build the store "
            f"from OGBench's hosted files, such as {domain.dataset}-v0.npz"
        )


def _is_corridor(walls: NDArray[np.bool_], cell: tuple[int, ...]) -> bool:
    """Whether a way leads straight through a free cell and nowhere else."""
    i, j = cell
    across = bool(walls[i - 1, j]), bool(walls[i + 1, j])
    along = bool(walls[i, j - 1]), bool(walls[i, j + 1])
    return {across, along} == {(True, True), (False, False)}
