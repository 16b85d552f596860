"""How command lines are parsed."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from pipeline import parsing


@dataclass(frozen=True)
class Options:
    """Options of every kind that the commands have.

    Attributes:
        steps: Updates.
        task: Task.
        store: Path.
        rate: Rate.
        kind: Kind.
        named: Kind that may be missing.
        seeds: Seeds.
        workers: Workers.
    """

    steps: int = 3
    task: int | None = None
    store: str | None = None
    rate: float | None = 0.5
    kind: Literal["a", "b"] = "a"
    named: Literal["a", "b"] | None = None
    seeds: tuple[int, ...] = field(default=(1, 2))
    workers: Annotated[int, "at least 1"] | None = None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("200000", 200_000),
        ("200_000", 200_000),
        ("-1", -1),
        ("2e5", 200_000),
        ("1.5e6", 1_500_000),
        ("1E6", 1_000_000),
        ("8.0", 8),
        (str(2**63), 2**63),
    ],
)
def test_whole_numbers(text: str, number: int) -> None:
    read = parsing.parse(Options, ["--steps", text]).steps
    assert read == number
    assert type(read) is int


@pytest.mark.parametrize("text", ["1e-3", "1.5", "1e23", "nan", "inf", "many", ""])
@pytest.mark.parametrize("option", ["--steps", "--task", "--workers"])
def test_what_is_no_whole_number_is_refused(
    text: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parsing.parse(Options, [option, text])
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"expected a whole number, such as 200000 or 2e5, got '{text}'" in said
    assert option in said
    assert "None}" not in said


def test_options_that_may_be_missing() -> None:
    assert parsing.parse(Options, []) == Options()
    words = "--task 1e0 --store None --rate None --named b --seeds 1e1 2 --workers 4"
    given = parsing.parse(Options, words.split())
    assert given == Options(task=1, rate=None, named="b", seeds=(10, 2), workers=4)


def test_help_names_the_type_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parsing.parse(Options, ["--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    for expected in ("--task INT", "--store STR", "--rate FLOAT", "--workers INT"):
        assert expected in said
    # Of a choice, None is one.
    assert said.count("None,a,b") == 1


def test_unknown_words_are_returned() -> None:
    given, unknown = parsing.parse_known(Options, ["--steps", "1e3", "--agent.width=8"])
    assert given.steps == 1_000
    assert unknown == ["--agent.width=8"]
