"""The front door, with a program of its own."""

import functools
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import tyro

from pipeline import front_door
from pipeline.front_door import Program
from pipeline.output import Output, say
from pipeline.store.errors import DataFormatError


@dataclass(frozen=True)
class Echo:
    """Say a word.

    Attributes:
        word: It.
    """

    word: str = "done"

    def execute(self, output: Output) -> int:
        """Says it."""
        say(output.progress, "working")
        say(output.results, self.word)
        return 0


@dataclass(frozen=True)
class Pass:
    """Pass on arguments.

    Attributes:
        times: How often.
    """

    times: int = 1

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Says them."""
        for _ in range(self.times):
            say(output.results, " ".join(more))
        return 0


@dataclass(frozen=True)
class Fail:
    """Fail."""

    def execute(self, output: Output) -> int:
        """Fails."""
        raise DataFormatError("[red]x:\nexpected :heart:,\n  got " + "y" * 200)


@dataclass(frozen=True)
class Import:
    """Import a module that is not installed.

    Attributes:
        name: Of the module.
    """

    name: str

    def execute(self, output: Output) -> int:
        """Imports it."""
        __import__(self.name)
        return 0


PROGRAM = Program(
    name="echo",
    script="vast-echo",
    purpose="Says things.",
    commands={"echo": Echo, "pass": Pass, "loose": Pass, "fail": Fail, "load": Import},
    loose=frozenset({"loose"}),
)


def test_results_and_progress_go_to_places_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "[b]word[/b] :heart: " + "x" * 300  # No markup, and one line.
    assert front_door.run(PROGRAM, ["echo", "--word", long]) == 0
    assert capsys.readouterr() == (f"{long}\n", "working\n")


def test_what_follows_two_dashes_is_passed_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert front_door.run(PROGRAM, ["pass", "--times", "2", "--", "--times", "3"]) == 0
    assert capsys.readouterr().out == "--times 3\n" * 2
    assert front_door.run(PROGRAM, ["loose", "--a", "1", "--times", "1"]) == 0
    assert capsys.readouterr().out == "--a 1\n"
    assert front_door.run(PROGRAM, ["loose", "--a", "1", "--", "--times", "3"]) == 0
    assert capsys.readouterr().out == "--a 1 --times 3\n"


def test_threads_parse_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """tyro empties caches of the process, which another thread may be reading."""
    parse, inside = tyro.cli, threading.Event()
    beside: list[bool] = []

    def slow(*kind: Any, **options: Any) -> Any:
        beside.append(inside.is_set())
        inside.set()
        time.sleep(0.05)
        inside.clear()
        return parse(*kind, **options)

    monkeypatch.setattr(tyro, "cli", slow)
    words = [["echo"], ["loose", "--a", "1"], ["pass"]]
    with ThreadPoolExecutor(3) as pool:
        codes = list(pool.map(functools.partial(front_door.run, PROGRAM), words))
    assert codes == [0, 0, 0]
    assert beside == [False] * 3


def test_who_passes_nothing_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert front_door.run(PROGRAM, ["echo", "--", "--runner=X"]) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert said == (
        "error: echo takes no arguments after --, got --runner=X; leave them out "
        "(these commands do: pass, loose)\n"
    )


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert front_door.run(PROGRAM, ["fail"]) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert said == f"error: [red]x: expected :heart:, got {'y' * 200}\n"


def test_an_extra_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With None in `sys.modules`, Python raises ModuleNotFoundError for a module.
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert front_door.run(PROGRAM, ["load", "--name", "gcsfs"]) == 2
    assert "pip install 'vast-rl[cloud]'" in capsys.readouterr().err
    # No extra installs this module, so the error is a bug and shows its traceback.
    with pytest.raises(ModuleNotFoundError, match="trianer"):
        front_door.run(PROGRAM, ["load", "--name", "trianer"])


def test_the_process_s_own_arguments_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["echo", "echo", "--word", "own"])
    assert front_door.run(PROGRAM) == 0
    assert capsys.readouterr().out == "own\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--word", "~/run"], "HOME/run"),
        (["--word=~/run"], "HOME/run"),
        (["--word", "~"], "HOME"),
        (["--word", "./~/run"], "./~/run"),
        (["--word", "a~b"], "a~b"),
        (["--word", "gs://bucket/~"], "gs://bucket/~"),
    ],
)
def test_home_is_found_where_arguments_are_parsed(words, said, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert front_door.run(PROGRAM, ["echo", *words]) == 0
    assert capsys.readouterr().out.strip() == said.replace("HOME", "/home/me")


def test_what_is_passed_on_is_left_alone(capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert front_door.run(PROGRAM, ["pass", "--", "--at=~/x", "~"]) == 0
    assert capsys.readouterr().out.strip() == "--at=~/x ~"
