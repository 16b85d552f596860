"""A chain of states that passes through its goal. This module knows no agent.

```
0 -> 1 -> ... -> goal -> ... -> wall (stays there for ever)
   before       solved   after
```

Every step costs 1, except steps from solved states. The recorded episode does not stop
at the goal: it continues to a wall, from which the goal is never reached again. As in
the tasks of OGBench, reaching the goal still ends the task, so the value one step
before the goal is -1, whatever follows. An agent that bootstraps some of its estimates
beyond the goal adds the cost of the later steps to them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.table import RowTable
from trainer.toy import recording
from trainer.toy.tabular import FiniteData, Float64, Int64


@dataclass(frozen=True)
class Chain:
    """States in the order in which the episode passes them, numbered from 0.

    Attributes:
        before: Number of states before the goal.
        solved: Number of consecutive solved states.
        after: Number of states after the solved ones; the last one is the wall.
        still: Rows that are recorded at the wall after the first.
        discount: Discount of rewards, in (0, 1).
    """

    before: int
    solved: int
    after: int
    still: int
    discount: float

    @property
    def state_count(self) -> int:
        """Number Z of states."""
        return self.before + self.solved + self.after

    @property
    def truth(self) -> Float64:
        """True value of each state, if the goal ends the task: ``f64[Z]``.

        The value is ``-(1 - discount ** d) / (1 - discount)`` with ``d`` steps to the
        goal, where ``d`` is infinite after the goal.
        """
        steps = self.before - np.arange(self.state_count, dtype=float)
        steps[self.before : self.before + self.solved] = 0
        # The goal is behind: every further step costs 1, for ever.
        steps[self.before + self.solved :] = np.inf
        return np.asarray((self.discount**steps - 1) / (1 - self.discount))

    def make_episodes(self) -> FiniteData:
        """Builds the one recorded episode, for exact solvers."""
        wall = self.state_count - 1
        states = np.concatenate(
            [np.arange(self.state_count), np.full(self.still, wall, np.int64)]
        )
        passed = states - self.before
        # A mask of 0 marks a solved state, yet the episode continues after it. Data of
        # play are like this: nobody stops at a goal that a task sets later.
        masks = np.where((passed >= 0) & (passed < self.solved), 0.0, 1.0)
        return FiniteData(
            states=states,
            moves=np.zeros(len(states), np.int64),
            rewards=-masks,
            masks=masks,
            lengths=np.array([len(states)]),
            state_count=self.state_count,
            discount=self.discount,
        )

    def observe(self, states: Int64) -> npt.NDArray[np.float32]:
        """Places states on a path in the plane that turns by 90 degrees at the goal.

        Args:
            states: ``i64[...]``, states in [0, Z).

        Returns:
            ``f32[..., 2]``, the observations, in steps: the signed distance to the goal
            before it, at most 0, and the distance after it, at least 0.
        """
        passed = states - self.before
        # The true value jumps from 0 to -1 / (1 - discount) one step after the goal. On
        # a straight line, networks would have to fit the jump between two points that
        # are close together; the turn gives them a direction for either side.
        corner = np.stack([np.minimum(passed, 0), np.maximum(passed, 0)], axis=-1)
        return corner.astype(np.float32)

    def make_table(self, *, recordings: int, noise: float) -> RowTable:
        """Builds the table of rows that agents train on.

        Args:
            recordings: Number of copies of the episode.
            noise: Standard deviation of the noise on observed positions, in steps.

        Returns:
            Rows of all recordings.
        """
        data = self.make_episodes()
        return recording.make_table(
            data,
            self.observe(data.states),
            # A chain has one move only, so all actions are the same.
            np.zeros((len(data.states), 1), np.float32),
            recordings=recordings,
            noise=noise,
            fingerprint=f"{self}/{recordings}/{noise}",
        )
