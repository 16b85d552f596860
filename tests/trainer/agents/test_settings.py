import dataclasses
import math
from typing import Any, get_type_hints

import pytest

from trainer.agents.registry import AGENTS
from trainer.agents.settings import Range, ranges
from trainer.config import load
from trainer.errors import ConfigError

SETTINGS = sorted({kind.config for kind in AGENTS.values()}, key=lambda kind: kind.name)
NUMBERS = [
    (settings, name, allowed)
    for settings in SETTINGS
    for name, allowed in ranges(settings).items()
]


def outside(allowed: Range) -> list[float]:
    """Numbers at the edge of a range, and beyond it."""
    found: list[float] = [math.nan]
    if allowed.least is not None:
        found += [allowed.least - 1, -math.inf]
    if allowed.above is not None:
        found += [allowed.above, allowed.above - 1]
    if allowed.most is not None:
        found += [allowed.most + 0.5, math.inf]
    if allowed.below is not None:
        found += [allowed.below, allowed.below + 0.5]
    return found


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_number_has_a_range(settings: Any) -> None:
    numbers = {
        name
        for name, kind in get_type_hints(settings).items()
        if kind in (int, float, int | None, float | None)
    }
    assert numbers == ranges(settings).keys()
    assert {"width", "learning_rate", "discount"} <= numbers
    settings()  # The defaults are in them.


@pytest.mark.parametrize(("settings", "name", "allowed"), NUMBERS)
def test_numbers_outside_of_their_range_are_refused(
    settings: Any, name: str, allowed: Range
) -> None:
    for number in outside(allowed):
        assert not allowed.holds(number)
        with pytest.raises(ConfigError, match=f"agent.{name}: expected .*, got "):
            settings(**{name: number})


def test_how_a_range_reads() -> None:
    assert str(Range(least=1)) == "at least 1"
    assert str(Range(above=0)) == "above 0"
    assert str(Range(above=0, below=1)) == "a value in (0, 1)"
    assert str(Range(above=0, most=1)) == "a value in (0, 1]"
    assert str(Range(least=0, most=1)) == "a value in [0, 1]"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("learning_rate", -1.0, "agent.learning_rate: expected above 0, got -1.0"),
        ("discount", 1.5, r"agent.discount: expected a value in \(0, 1\], got 1.5"),
        ("goal_random", 0.5, "goal_future and goal_random: expected probabilities tha"),
    ],
)
def test_what_vast_accepted_is_refused(field: str, value: float, expected: str) -> None:
    vast = load("configs/demo.toml", task=1).agent
    with pytest.raises(ConfigError, match=expected):
        dataclasses.replace(vast, **{field: value})


def test_vast_may_discount_nothing() -> None:
    vast = load("configs/demo.toml", task=1).agent
    assert dataclasses.replace(vast, discount=1.0).discount == 1.0
