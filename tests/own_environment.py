"""An environment such as a user may bring: a point on a line.

Importing this module registers the environment.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict


class Line(gymnasium.Env[Any, Any]):
    """The reward is minus the distance to a goal; `info` reports no success.

    Args:
        size: Distance from 0 to both ends of the line.
        flat: Whether an observation is an array rather than a dictionary.
        reach: Largest action.
    """

    def __init__(
        self, size: float = 10.0, flat: bool = False, reach: float = 1.0
    ) -> None:
        self.size = size
        inner = Box(-size, size, (1,), np.float32)
        # The order differs from that of sorted names, which stores use.
        self.observation_space: Any = Dict({"place": inner, "goal": inner})
        if flat:
            self.observation_space = Box(-size, size, (2,), np.float32)
        self.action_space = Box(-reach, reach, (1,), np.float32)

    def _observe(self) -> Any:
        place, goal = (np.array([x], np.float32) for x in (self.place, self.goal))
        if isinstance(self.observation_space, Dict):
            return {"place": place, "goal": goal}
        return np.concatenate([goal, place])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.place = float(np.clip(self.place + action[0], -self.size, self.size))
        return self._observe(), -abs(self.place - self.goal), False, False, {}


class Bare(gymnasium.Env[Any, Any]):
    """An environment without spaces."""


class Broken(gymnasium.Env[Any, Any]):
    """An environment that cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


if "Line-v0" not in gymnasium.registry:
    gymnasium.register("Line-v0", Line, max_episode_steps=20)
    gymnasium.register("Endless-v0", Line)
    gymnasium.register("Bare-v0", Bare, max_episode_steps=20)
    gymnasium.register("Broken-v0", Broken, max_episode_steps=20)
