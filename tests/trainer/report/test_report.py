"""Reports: what is pooled, what the paper has, and files that stand alone."""

import csv
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Task
from trainer.agents.base import DataFacts
from trainer.agents.vast_config import VASTConfig
from trainer.config import Config, TrainerConfig
from trainer.report.report import write_report
from trainer.report.result_table import HEADINGS, cells, result_rows
from trainer.runs.evaluations import Evaluation, append_evaluation
from trainer.runs.folder import METRICS_FILE, RunFolder, open_folder
from trainer.runs.history import read_history
from trainer.runs.run import Run, write_run
from trainer.runs.success_rates import describe_outcome, summarize, wilson_interval

K = 5
RUN = Run(
    config=Config(
        "cube-single-play",
        VASTConfig(width=8, max_horizon=K),
        TrainerConfig(steps=4000, seeds=2),
    ),
    dataset="cube-single-play",
    task=Task(1, "task1_<left>", "cube-single-singletask-task1-v0", "cube"),
    facts=DataFacts(2, 2, (0.0, 0.0), (1.0, 1.0), -1.0, 0.0, -3.2),
    fingerprint="made-up",
    store="made-up",
    versions={"jax": "0.0"},
)
PICTURES = ["success", "losses", "values", "segment_error", "weights", "horizons"]


def record(step: int, seed: int) -> dict[str, Any]:
    """What training logs, made up."""
    horizons = np.arange(K + 1)
    share = step / 4000
    windows = np.where(horizons < 2, 0, 100)
    return {
        "step": step,
        "seed": seed,
        "time_s": share * 60,
        "updates_per_s": 50.0,
        "input_blocked_share": 0.04,
        **{
            f"{name}_loss": 10.0 * (1.1 - share) + seed
            for name in ("segment", "value", "critic", "stitch", "exec")
        },
        "loss": 50.0,
        "value": -20.0 * share,
        "value_max": -10.0 * share,
        "over_estimation": 0.1,
        "segment_error": 1.1 - share,
        "weight": 1.0,
        "weight_max": 30.0,
        "windows_by_horizon": windows.tolist(),
        "segment_error_by_horizon": (windows * horizons * (1.1 - share)).tolist(),
        "drawn_by_horizon": np.where(horizons < 1, 0, 10 * horizons).tolist(),
    }


def evaluation(step: int, seed: int, solved: int, **changes: Any) -> Evaluation:
    """Ten episodes of which the first ones succeeded."""
    episodes = changes.pop("episodes", 10)
    return dataclasses.replace(
        Evaluation(
            step, seed, 0, 1, RUN.task.environment_id, episodes,
            tuple(int(index < solved) for index in range(episodes)),
            (-200.0,) * episodes, (200,) * episodes, "pre", "pre", 8, "1", "4", 1.0,
        ),
        **changes,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that logged four points and was evaluated at them, in two seeds."""
    folder = tmp_path / "some run"
    write_run(RunFolder.open(folder), RUN)
    lines = [record(step, seed) for step in range(1000, 5000, 1000) for seed in (0, 1)]
    (folder / METRICS_FILE).write_text("".join(json.dumps(x) + "\n" for x in lines))
    for step, solved in ((1000, 1), (2000, 6), (3000, 2), (4000, 3)):
        append_evaluation(RunFolder.open(folder), evaluation(step, 0, solved))
        append_evaluation(RunFolder.open(folder), evaluation(step, 1, solved + 1))
    return folder


@pytest.mark.parametrize("episodes", [1, 2, 7, 20, 50])
def test_wilson_intervals_are_scipys(episodes: int) -> None:
    for successes in range(episodes + 1):
        ours = wilson_interval(successes, episodes)
        theirs = binomtest(successes, episodes).proportion_ci(method="wilson")
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_intervals_need_episodes() -> None:
    for successes, episodes in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="expected 0 to"):
            wilson_interval(successes, episodes)


def test_statistics_pool_what_they_say() -> None:
    evaluations = [
        evaluation(step, seed, solved + seed)
        for step, solved in ((1000, 1), (2000, 6), (3000, 2), (4000, 3))
        for seed in (0, 1)
    ]
    last, mean, best = summarize(evaluations)
    assert (last.statistic, last.steps, last.seeds) == ("last", (4000,), (0, 1))
    assert (last.score.successes, last.score.episodes) == (3 + 4, 20)
    # Rates of the seeds are .3 and .4.
    assert last.seed_std == pytest.approx(0.1 / 2**0.5)
    assert mean.steps == (2000, 3000, 4000)
    assert (mean.score.successes, mean.score.episodes) == (13 + 5 + 7, 60)
    assert (best.steps, best.score.successes) == ((2000,), 13)
    assert summarize([]) == []


def test_the_earliest_of_equals_is_best() -> None:
    best = summarize([evaluation(step, 0, 5) for step in (1000, 2000)])[2]
    assert best.steps == (1000,)
    assert best.seed_std is None


def test_episodes_of_one_evaluation_seed_count_once() -> None:
    """Those of a small evaluation are among those of a large one."""
    shared = [evaluation(1000, 0, 5), evaluation(1000, 0, 20, episodes=50)]
    other_seed = evaluation(1000, 0, 7, evaluation_seed=1)
    assert summarize(shared)[0].score.episodes == 50
    assert summarize([*shared, other_seed])[0].score.episodes == 60


@pytest.mark.parametrize(
    ("successes", "text"),
    [
        ((10, 10), "solved: maze task 2, 20 of 20 episodes after 3,000 updates"),
        ((10, 9), "solved in part: maze task 2, 19 of 20 episodes after 3,000 updates"),
        ((0, 0), "not solved: maze task 2, 0 of 20 episodes after 3,000 updates"),
    ],
)
def test_solved_is_said_of_the_last_checkpoint(
    successes: tuple[int, int], text: str
) -> None:
    # Ten episodes of each of two training seeds; what was before does not count.
    earlier = [evaluation(2000, seed, 5) for seed in (0, 1)]
    last = [evaluation(3000, seed, count) for seed, count in enumerate(successes)]
    assert describe_outcome("maze", 2, [*last, *earlier]) == text


def test_what_was_not_evaluated_is_not_called_unsolved() -> None:
    assert describe_outcome("maze", 2, []) == "not evaluated yet: maze task 2"


def test_rows_compare_with_the_paper() -> None:
    def verdict(solved: int, run: Run = RUN) -> str:
        return result_rows("x", run, [evaluation(1, 0, solved)])[0].verdict

    assert verdict(3) == "below"  # The paper has 99 %.
    assert verdict(10) == "agrees"
    hard = dataclasses.replace(RUN, dataset="cube-quadruple-play")  # 8 %.
    assert verdict(10, hard) == "above"
    other = dataclasses.replace(RUN, dataset="pointmaze-medium-navigate")
    assert verdict(3, other) == ""
    assert cells(result_rows("x", other, [evaluation(1, 0, 3)])[0])[-2:] == ("—", "—")


def test_fewer_than_three_checkpoints_are_not_called_three() -> None:
    rows = result_rows("x", RUN, [evaluation(1, 0, 3), evaluation(2, 0, 3)])
    assert cells(rows[1])[3] == "mean of last three (only 2 there)"


def test_a_report_has_everything(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    written = write_report([RunFolder.open(run)], open_folder(out))
    assert [path.name for path in written[:3]] == [
        *("report.html", "report.md", "results.csv")
    ]
    assert written[3:] == [out / "some run" / f"{name}.png" for name in PICTURES]
    assert all(path.exists() for path in written)

    page = written[0].read_text()
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert len(sources) == len(PICTURES)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in page
    assert "task1_&lt;left&gt;" in page
    assert "<left>" not in page
    for text in ("35.0 %", "VAST 99 ± 3", "below", "it flatters", "4,000 of 4,000"):
        assert text in page

    markdown = written[1].read_text()
    assert "| " + " | ".join(HEADINGS) + " |" in markdown
    assert "| last | 35.0 % | 18.1 to 56.7 % | 20 | 2 | 7.1 | 4,000 | VAST" in markdown
    assert "(some%20run/success.png)" in markdown
    assert "97 ± 2" in markdown  # Another method of the paper, FQL-n.
    assert "training time: 1.3 min" in markdown  # 4,000 updates at 50 a second.

    rows = list(csv.DictReader(io.StringIO(written[2].read_text())))
    assert [row["statistic"] for row in rows] == [
        *("last", "mean of last three", "best")
    ]
    assert float(rows[0]["success_percent"]) == 35
    assert rows[0]["steps"] == "4000"
    assert rows[1]["steps"] == "2000 3000 4000"
    assert float(rows[0]["paper_mean_percent"]) == 99


def test_equal_runs_give_equal_files(run: Path, tmp_path: Path) -> None:
    first, second = (
        [
            path.read_bytes()
            for path in write_report(
                [RunFolder.open(run)], open_folder(tmp_path / name)
            )
        ]
        for name in ("a", "b")
    )
    assert first == second


def test_a_run_that_was_not_evaluated(run: Path, tmp_path: Path) -> None:
    (run / "evaluations.jsonl").unlink()
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.stem for path in written[3:]] == PICTURES[1:]
    assert "was not evaluated yet" in written[0].read_text()
    assert "not evaluated yet | — |" in written[1].read_text()


def test_a_run_that_logged_nothing(run: Path, tmp_path: Path) -> None:
    (run / METRICS_FILE).unlink()
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.stem for path in written[3:]] == ["success"]
    assert "logged nothing yet" in written[0].read_text()


def test_one_log_point_and_metrics_of_another_agent(run: Path, tmp_path: Path) -> None:
    line = {"step": 1000, "seed": 0, "updates_per_s": 9.0, "actor_loss": 0.0}
    (run / METRICS_FILE).write_text(json.dumps(line) + "\n")
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.stem for path in written[3:]] == ["success", "losses"]


def test_several_runs_of_one_name(run: Path, tmp_path: Path) -> None:
    written = write_report(
        [RunFolder.open(run), RunFolder.open(run)], open_folder(tmp_path / "report")
    )
    assert {path.parent.name for path in written[3:]} == {"some run", "some run-2"}


def test_timing_that_differs_is_remarked(run: Path, tmp_path: Path) -> None:
    append_evaluation(
        RunFolder.open(run), evaluation(4000, 0, 3, success_timing="post")
    )
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert "Success was judged with timing post and pre" in written[0].read_text()


def test_another_task_has_rows_of_its_own(run: Path, tmp_path: Path) -> None:
    before = write_report([RunFolder.open(run)], open_folder(tmp_path / "before"))
    append_evaluation(RunFolder.open(run), evaluation(4000, 0, 9, task=3))
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "after"))
    rows, old = (
        list(csv.DictReader(io.StringIO(files[2].read_text())))
        for files in (written, before)
    )
    assert rows[:3] == old  # What it is trained for does not change.
    assert {(row["task"], row["trained_task"]) for row in rows[3:]} == {("3", "1")}
    assert {float(row["success_percent"]) for row in rows[3:]} == {90}
    assert {row["paper_mean_percent"] for row in rows[3:]} == {""}
    assert "| 3 (trained for 1) | last | 90.0 % |" in written[1].read_text()


def test_subgoals_that_were_inspected_are_shown(run: Path, tmp_path: Path) -> None:
    folder = run / "subgoals"
    folder.mkdir()
    (folder / "subgoals.png").write_bytes(b"scene")
    (folder / "maze.png").write_bytes(b"maze")
    (folder / "rollout.gif").write_bytes(b"video")
    assert len(
        write_report([RunFolder.open(run)], open_folder(tmp_path / "without"))
    ) == 3 + len(PICTURES)
    (folder / "subgoals.json").write_text(json.dumps({"step": 3000, "seed": 1}))
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.name for path in written[-3:]] == [
        *("maze.png", "subgoals.png", "rollout.gif")
    ]
    assert written[-1].read_bytes() == b"video"
    page = written[0].read_text()
    # Pictures of several panels get the page's width, so that they can be read.
    assert page.count('<figure class="whole">') == 2
    assert "data:image/gif;base64," in page
    assert "After 3,000 updates, training seed 1." in page


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataFormatError, match="expected the folder of a run"):
        write_report([RunFolder.open(tmp_path)], open_folder(tmp_path / "report"))
    with pytest.raises(DataFormatError, match="got none"):
        write_report([], open_folder(tmp_path / "report"))
    assert not (tmp_path / "report").exists()


def test_history_by_seed_and_step(run: Path) -> None:
    history = read_history(RunFolder.open(run))
    assert history.steps.tolist() == [1000, 2000, 3000, 4000]
    assert history.scalar("value_loss").shape == (2, 4)
    assert np.isnan(history.scalar("no such")).all()
    windows = history.vector("windows_by_horizon", 0)
    assert windows is not None
    assert windows.tolist() == [0, 0, 200, 200, 200, 200]
    assert history.vector("no such", 0) is None
