"""The demo's script runs existing commands, and ends with the report's own words."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

import pipeline.cli
import trainer.cli
from pipeline import front_door

PROGRAMS = {
    program.name: program for program in (pipeline.cli.PROGRAM, trainer.cli.PROGRAM)
}
# Records its arguments, and answers as `report` does.
RECORDER = """#!/usr/bin/env bash
printf '%q ' "$@" >> "$RECORD"
echo >> "$RECORD"
case "$3" in "$FAILS") exit 3 ;; report) echo "what the report says" ;; esac
"""


def play(tmp_path: Path, *, fails: str = "") -> tuple[list[list[str]], str, int]:
    """Runs the script; returns its commands, its output and its exit code."""
    recorder = tmp_path / "python"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    record = tmp_path / "record"
    done = subprocess.run(
        ["bash", "infra/demo.sh"],
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "DEMO_OUT": str(tmp_path / "out"),
            "RECORD": str(record),
            "FAILS": fails,
        },
        capture_output=True,
        text=True,
    )
    commands = [shlex.split(line) for line in record.read_text().splitlines()]
    return commands, done.stdout, done.returncode


def test_commands_of_the_demo_are_taken(tmp_path: Path) -> None:
    commands, _, code = play(tmp_path)
    assert code == 0
    assert {(command[1], command[2]) for command in commands} >= {
        *(("pipeline", name) for name in ("collect", "shard", "verify")),
        *(("trainer", name) for name in ("train", "evaluate", "subgoals", "report")),
    }
    for _, program, *arguments in commands:
        front_door.parse(PROGRAMS[program], arguments)
        if arguments[0] == "train":
            assert Path(arguments[1]).exists()


def test_the_demo_ends_with_what_the_report_says(tmp_path: Path) -> None:
    _, shown, _ = play(tmp_path)
    _, _, closing = shown.rpartition("== done in ")
    assert "what the report says" in closing
    # The script's own lines must not claim a success.
    assert "solved:" not in closing


@pytest.mark.parametrize("step", ["collect", "train", "report"])
def test_a_step_that_fails_ends_the_demo(tmp_path: Path, step: str) -> None:
    commands, shown, code = play(tmp_path, fails=step)
    assert code == 3
    assert commands[-1][2] == step
    assert "done in" not in shown
