"""What the hyperparameters of every agent have in common, and that they are checked.

A setting that is a number says its range where it is declared::

    width: Count = 512
    expectile: Share = 0.9
"""

from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from trainer.errors import ConfigError
from trainer.nn.choices import Precision


@dataclass(frozen=True)
class Range:
    """Numbers a setting may be.

    Attributes:
        least: Smallest, or None.
        above: What it must exceed, or None.
        most: Largest, or None.
        below: What it must stay under, or None.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number is in the range; not-a-number is in none."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
            and value == value
        )

    def __str__(self) -> str:
        """As in ``"at least 1"``, ``"above 0"`` or ``"a value in (0, 1]"``."""
        start = f"({self.above:g}" if self.least is None else f"[{self.least:g}"
        if self.most is not None:
            return f"a value in {start}, {self.most:g}]"
        if self.below is not None:
            return f"a value in {start}, {self.below:g})"
        if self.least is not None:
            return f"at least {self.least:g}"
        return f"above {self.above:g}"


Count = Annotated[int, Range(least=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
# Strictly between none and all of something.
Share = Annotated[float, Range(above=0, below=1)]
# All of it included, such as a discount of 1.
Fraction = Annotated[float, Range(above=0, most=1)]
# None of it included as well.
Probability = Annotated[float, Range(least=0, most=1)]


class AgentSettings:
    """Base of every agent's hyperparameters, which are frozen dataclasses.

    This is no dataclass itself: each agent declares all of its settings, in an order of
    its own. The annotations say what every agent has.
    """

    name: str
    discount: float
    width: int
    depth: int
    learning_rate: float
    target_rate: float
    precision: Precision
    rematerialise: bool

    def __post_init__(self) -> None:
        """Refuses what is outside of its range.

        Raises:
            ConfigError: Naming the setting, what was expected, and what came.
        """
        for name, allowed in ranges(type(self)).items():
            value = getattr(self, name)
            if not allowed.holds(value):
                raise ConfigError(f"agent.{name}: expected {allowed}, got {value}")


def ranges(settings: type[Any]) -> dict[str, Range]:
    """Ranges by name of the settings that have one."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        name: part
        for name, hint in hints.items()
        for part in getattr(hint, "__metadata__", ())
        if isinstance(part, Range)
    }
