"""``report`` prints the outcome of each run, read from its folder."""

import json
from pathlib import Path

import pytest

from tests.runs import make_run
from trainer.cli import main
from trainer.runs.evaluations import Evaluation, append_evaluation
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import write_run


def evaluation(
    step: int, seed: int, task: int, successes: tuple[int, ...]
) -> Evaluation:
    count = len(successes)
    return Evaluation(
        step, seed, 0, task, "pointmaze-medium-v0", count, successes,
        (-20.0,) * count, (20,) * count, "pre", "pre", 8, "1", "4", 1.0,
    )  # fmt: skip


def test_a_line_of_each_run_says_whether_it_is_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maze, half, bare = (tmp_path / name for name in ("maze", "half", "bare"))
    for folder in (maze, half, bare):
        write_run(RunFolder.open(folder), make_run())
    for seed in (3, 4):
        append_evaluation(RunFolder.open(maze), evaluation(10, seed, 1, (1, 1)))
    # This evaluation is later, but in a task that the run was not trained for.
    append_evaluation(RunFolder.open(maze), evaluation(20, 3, 2, (0, 0)))
    append_evaluation(RunFolder.open(half), evaluation(10, 3, 1, (1, 1)))
    runs = [str(maze), str(half), str(bare)]
    assert main(["report", *runs, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.splitlines()
    name = "pointmaze-medium-navigate task 1"
    assert shown[1:] == [
        f"{maze}: solved: {name}, 4 of 4 episodes after 10 updates",
        f"{half}: solved so far: {name}, 2 of 2 episodes of 1 of 2 training seeds "
        "after 10 updates",
        f"{bare}: not evaluated yet: {name}",
    ]


def test_errors_of_g_are_of_all_seeds_and_a_run_named_twice_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.open(tmp_path / "maze")
    write_run(folder, make_run())
    errors = {(10, 3): 8.0, (10, 4): 4.0, (20, 3): 2.0, (20, 4): 1.0}
    records = [
        {"step": step, "seed": seed, "segment_error": error}
        for (step, seed), error in errors.items()
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    folder.write(METRICS_FILE, lines.encode())
    runs = [str(folder), f"{tmp_path}/*"]
    assert main(["report", *runs, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:] == [
        f"{folder}: not evaluated yet: pointmaze-medium-navigate task 1",
        f"{folder}: G is off the stored window returns by 6.00 at update 10 and by "
        "1.50 at update 20",
    ]
