"""Which checkpoints of a run are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Retention:
    """A preservation policy of Orbax: which steps stay when another one is saved.

    A run that is preempted saves a step that is not a multiple of ``every``. Such a
    step never takes the place of a multiple: the steps that are evaluated at the end do
    not depend on preemptions.

    Attributes:
        keep: Number of latest multiples of ``every`` that are kept, and as long as
            there are fewer, of latest other steps; None keeps all steps.
        keep_every: Multiples of this number are kept for good.
        every: Updates between two checkpoints of a run that is not preempted.
    """

    keep: int | None = None
    keep_every: int | None = None
    every: int = 1

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: object
    ) -> list[bool]:
        """Says for each checkpoint, ascending by ``step``, whether it is kept."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        if self.keep is None:
            return [True] * len(steps)
        # Other steps fill what is free: before the first multiples, and after ``every``
        # was changed, there are no others to go back to.
        ranked = sorted(steps, key=lambda step: (step % self.every == 0, step))
        kept = {*ranked[-self.keep :], *steps[-1:]}
        if self.keep_every is not None:
            kept |= {step for step in steps if step % self.keep_every == 0}
        return [step in kept for step in steps]


KEEP_ALL = Retention()
