"""``report`` prints the outcome of each run, read from its folder."""

from pathlib import Path

import pytest

from tests.runs import make_run
from trainer.cli import main
from trainer.runs.evaluations import Evaluation, append_evaluation
from trainer.runs.folder import RunFolder
from trainer.runs.run import write_run


def evaluation(step: int, task: int, successes: tuple[int, ...]) -> Evaluation:
    count = len(successes)
    return Evaluation(
        step, 3, 0, task, "pointmaze-medium-v0", count, successes,
        (-20.0,) * count, (20,) * count, "pre", "pre", 8, "1", "4", 1.0,
    )  # fmt: skip


def test_a_line_of_each_run_says_whether_it_is_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maze, bare = tmp_path / "maze", tmp_path / "bare"
    for folder in (maze, bare):
        write_run(RunFolder.open(folder), make_run())
    append_evaluation(RunFolder.open(maze), evaluation(10, 1, (1, 1)))
    # This evaluation is later, but in a task that the run was not trained for.
    append_evaluation(RunFolder.open(maze), evaluation(20, 2, (0, 0)))
    assert main(["report", str(maze), str(bare), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.splitlines()
    name = "pointmaze-medium-navigate task 1"
    assert shown[1:] == [
        f"{maze}: solved: {name}, 2 of 2 episodes after 10 updates",
        f"{bare}: not evaluated yet: {name}",
    ]
