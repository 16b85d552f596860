"""The base of every agent's hyperparameters, the check of their ranges, and its kind.

The range of a number is declared with it::

    width: Count = 512
    expectile: Share = 0.9
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from trainer.errors import ConfigError
from trainer.nn.choices import Precision


@dataclass(frozen=True)
class Range:
    """The range of a setting; a bound that is None does not apply.

    Attributes:
        least: Smallest value allowed.
        above: Number that the value must exceed.
        most: Largest value allowed.
        below: Number that the value must be less than.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Says whether a number is in the range; NaN is in none."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
            and value == value
        )

    def __str__(self) -> str:
        """Describes the range, such as ``"at least 1"`` or ``"a value in (0, 1]"``."""
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
# A share, strictly between 0 and 1.
Share = Annotated[float, Range(above=0, below=1)]
# A share that may also be 1, such as a discount.
Fraction = Annotated[float, Range(above=0, most=1)]
# A share that may also be 0.
Decay = Annotated[float, Range(least=0, below=1)]
# A share that may also be 0 or 1.
Probability = Annotated[float, Range(least=0, most=1)]


class AgentSettings:
    """Base of every agent's hyperparameters, which are frozen dataclasses.

    This class is no dataclass itself: each agent declares all of its settings, in its
    own order. The annotations here list the settings that every agent has.

    Attributes:
        dropped_options: Settings that earlier versions had, with the only value that is
            still computed; runs of that value can still be opened.
    """

    dropped_options: ClassVar[Mapping[str, Any]] = {}

    name: str
    discount: float
    width: int
    depth: int
    learning_rate: float
    target_rate: float
    # Settings of agents that were written before there was an average declare none.
    ema_decay: float = 0.0
    precision: Precision
    rematerialise: bool

    def __post_init__(self) -> None:
        """Refuses a setting that is outside of its range.

        Raises:
            ConfigError: Names the setting, what was expected, and what came.
        """
        # Here and not by the decoder: settings that are made in code are checked, too.
        for name, allowed in ranges(type(self)).items():
            value = getattr(self, name)
            if not allowed.holds(value):
                raise ConfigError(
                    f"agent.{name}: expected {allowed}, got {value}; set another value"
                )


def ranges(settings: type[Any]) -> dict[str, Range]:
    """Collects the ranges of a class of settings, by the setting's name."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        name: part
        for name, hint in hints.items()
        for part in getattr(hint, "__metadata__", ())
        if isinstance(part, Range)
    }


@dataclass(frozen=True)
class AgentKind:
    """One algorithm: its settings, and where its class is.

    Attributes:
        config: Type of the hyperparameters; the choices of its field ``name`` are the
            names of the algorithm.
        path: Module and class, as ``"module:Class"``; the class is built from a
            configuration and the facts of the data.
    """

    config: type[Any]
    path: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the algorithm, such as one for returns of several steps."""
        return get_args(get_type_hints(self.config)["name"])

    @property
    def agent(self) -> type[Any]:
        """Class of the algorithm; reading this property imports JAX."""
        module, _, name = self.path.partition(":")
        kind: type[Any] = getattr(importlib.import_module(module), name)
        return kind
