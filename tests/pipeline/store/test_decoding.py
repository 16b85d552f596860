from dataclasses import dataclass, field

import pydantic
import pytest

from pipeline.store.decoding import FirstError, read_first_error


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: expected at least 1, got {self.size}")


@dataclass(frozen=True)
class Outer:
    name: str
    parts: list[Inner] = field(default_factory=list)


def first(value: object) -> FirstError:
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(Outer).validate_python(value)
    return read_first_error(caught.value)


def test_the_first_of_several() -> None:
    found = first({"parts": [{"size": 1}, {"size": "x"}]})
    assert (found.place, found.kind) == ("name", "missing")
    found = first({"name": "a", "parts": [{"size": 1}, {"size": "x"}]})
    assert found.place == "parts.1.size"
    assert found.given == "x"
    assert "valid integer" in found.message


def test_a_check_of_ours_says_it_in_its_own_words() -> None:
    found = first({"name": "a", "parts": [{"size": 0}]})
    assert found.message == "size: expected at least 1, got 0"
    assert (found.place, found.kind) == ("parts.0", "value_error")
