"""A chain that passes through its goal. No agent is known here.

```
0 -> 1 -> ... -> goal -> ... -> wall (stays there for ever)
   before       solved   after
```

Every step costs 1 but those from solved states, and nobody stops at the goal: episodes
go on to a wall, from where it is never reached again. As in the tasks of a benchmark,
reaching it ends the task all the same, so the value one step before it is -1, whatever
follows. An agent that lets some of its estimates go on there takes over what they cost.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.table import RowTable
from trainer.toy import recording
from trainer.toy.tabular import FiniteData, Float64, Int64


@dataclass(frozen=True)
class Chain:
    """States in the order they are passed, numbered from 0.

    Attributes:
        before: States before the goal.
        solved: States that are solved, one after another.
        after: States after them; the last one is the wall.
        still: Rows that are recorded at the wall beyond the first.
        discount: In (0, 1).
    """

    before: int
    solved: int
    after: int
    still: int
    discount: float

    @property
    def state_count(self) -> int:
        """Z, number of states."""
        return self.before + self.solved + self.after

    @property
    def truth(self) -> Float64:
        """Value of each state where the goal is an end: ``f64[Z]``.

        ``-(1 - discount ** d) / (1 - discount)``, with ``d`` steps to the goal, without
        end after it.
        """
        steps = self.before - np.arange(self.state_count, dtype=float)
        steps[self.before : self.before + self.solved] = 0
        steps[self.before + self.solved :] = np.inf
        return np.asarray((self.discount**steps - 1) / (1 - self.discount))

    def recorded(self) -> FiniteData:
        """The one episode there is, for exact solvers."""
        wall = self.state_count - 1
        states = np.concatenate(
            [np.arange(self.state_count), np.full(self.still, wall, np.int64)]
        )
        passed = states - self.before
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
        """What an agent sees: the way turns off at the goal, one unit a step.

        Args:
            states: ``i64[...]``.

        Returns:
            ``f32[..., 2]``, steps before the goal, not above 0, and after it.
        """
        passed = states - self.before
        seen = np.stack([np.minimum(passed, 0), np.maximum(passed, 0)], axis=-1)
        return seen.astype(np.float32)

    def table(self, *, recordings: int, noise: float) -> RowTable:
        """The episode as agents train on it.

        Args:
            recordings: Times it was recorded, always the same.
            noise: Standard deviation of the position that was observed, in steps.

        Returns:
            Rows of all recordings.
        """
        data = self.recorded()
        return recording.table(
            data,
            self.observe(data.states),
            # There is nothing to choose.
            np.zeros((len(data.states), 1), np.float32),
            recordings=recordings,
            noise=noise,
            fingerprint=f"{self}/{recordings}/{noise}",
        )
