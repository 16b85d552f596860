"""``evaluate``: the table that it prints of the results."""

import re
from pathlib import Path

import pytest

from trainer.cli import main
from trainer.evaluation import evaluate
from trainer.runs.evaluations import Evaluation


def test_results_are_a_table_on_standard_output(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Evaluation(
        step=2000,
        seed=3,
        evaluation_seed=0,
        task=1,
        environment_id="pointmaze-medium-v0",
        episodes=4,
        successes=(1, 0, 1, 1),
        returns=(-10.0, -40.0, -20.0, -30.0),
        lengths=(10, 40, 20, 30),
        success_timing="post",
        store_success_timing="post",
        environments=2,
        ogbench="1",
        mujoco="3",
        duration_s=1.0,
    )
    monkeypatch.setattr(evaluate, "evaluate_run", lambda *_, **__: [played])
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["evaluate", str(tmp_path)]) == 0
    shown, said = capsys.readouterr()
    assert said == ""
    for part in ("2,000", "3 of 4, 75 %", "30 to 95 %", "-25.00", "25"):
        assert part in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--all-steps", "--steps", "10", "20"], "--all-steps: .* got 10 20"),
        (["--timeout", "5"], "--timeout: expected --watch beside it"),
        (["--poll", "1"], "--poll: expected --watch beside it"),
    ],
)
def test_options_are_not_ignored(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert main(["evaluate", str(tmp_path), *options]) == 2
    assert re.search(message, capsys.readouterr().err)
