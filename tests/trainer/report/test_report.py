"""Reports: what is pooled, what the paper has, and files that stand alone."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from pipeline.store.errors import DataFormatError
from tests.evaluated import evaluation, write_evaluated_run
from trainer.report.report import write_report
from trainer.report.result_table import HEADINGS
from trainer.report.sources import read_sources
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import METRICS_FILE, RunFolder, open_folder

PICTURES = [
    "success",
    "returns",
    "losses",
    "values",
    "segment_error",
    "weights",
    "horizons",
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_evaluated_run(tmp_path)


def test_a_report_has_everything(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    written = write_report([RunFolder.open(run)], open_folder(out))
    assert [path.name for path in written[:3]] == [
        *("report.html", "report.md", "results.csv")
    ]
    assert written[3:] == [out / "some run" / f"{name}.svg" for name in PICTURES]
    assert all(path.exists() for path in written)

    # A number and its sign are not broken apart.
    page = written[0].read_text()
    assert "(35\u00a0%) after" in page
    page = page.replace("\u00a0", " ")
    sources = re.findall(r'(?:src|srcset)="([^"]{0,30})', page)
    assert len(sources) == len(PICTURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r'(?:href|src|action)="(?!data:|#)', page)
    assert "task1_&lt;left&gt;" in page
    assert "<left>" not in page
    for text in ("35.0 %", "VAST 99 ± 3", "below", "it flatters", "4,000 of 4,000"):
        assert text in page
    assert (
        "VAST solves cube-single-play task 1 in 7 of 20 episodes (35 %) after 4,000 "
        "updates, over 2 training seeds; the paper reports 99 ± 3 % for VAST"
    ) in page

    markdown = written[1].read_text()
    shown = [
        name for name in HEADINGS if name not in ("normalised score", "checkpoints")
    ]
    assert "| " + " | ".join(shown) + " |" in markdown
    cells = "| 35.0 % | 18.1 to 56.7 % | VAST 99 ± 3 | below | cube-single-play 1"
    assert (
        f"{cells} | -200.00 (-200.00 to -200.00) | 20 | 2 | 7.1 | 4,000 |" in markdown
    )
    assert "(some%20run/success.svg)" in markdown
    assert "task: 1 (task1\\_\\<left\\>)" in markdown
    assert "<left>" not in markdown
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
    assert [path.stem for path in written[3:]] == PICTURES[2:]
    assert "was not evaluated yet" in written[0].read_text()
    assert "| some run | not evaluated yet | — |" in written[1].read_text()


def test_a_run_whose_environment_reports_no_success(run: Path, tmp_path: Path) -> None:
    (run / "evaluations.jsonl").unlink()
    returns = {0: (-300.0, -100.0) * 5, 1: (0.0, -200.0) * 5}
    for seed in (0, 1):
        silent = evaluation(
            1000,
            seed,
            0,
            successes=None,
            returns=returns[seed],
            reference_scores=(-400.0, 100.0),
        )
        append_evaluation(RunFolder.open(run), silent)
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    html = written[0].read_text()
    assert [path.stem for path in written[3:]][:2] == ["returns", "losses"]
    row = next(csv.DictReader(io.StringIO(written[2].read_text())))
    # Twenty episodes of -150 on average; 250 of the 500 between the references.
    assert (row["return_mean"], row["normalised_score"]) == ("-150.0", "50.0")
    assert float(row["return_low"]) < -150 < float(row["return_high"])
    assert (row["success_percent"], row["episodes"]) == ("", "20")
    assert "-150.00 (-" in html
    assert "normalised score" in html
    assert "n/a: success not reported" in html
    assert "The environment reports no success" in html
    assert "not evaluated yet" not in html
    assert not (tmp_path / "report" / "success.svg").exists()


def test_a_run_that_logged_nothing(run: Path, tmp_path: Path) -> None:
    (run / METRICS_FILE).unlink()
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.stem for path in written[3:]] == ["success", "returns"]
    assert "logged nothing yet" in written[0].read_text()


def test_one_log_point_and_metrics_of_another_agent(run: Path, tmp_path: Path) -> None:
    line = {"step": 1000, "seed": 0, "updates_per_s": 9.0, "actor_loss": 0.0}
    (run / METRICS_FILE).write_text(json.dumps(line) + "\n")
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.stem for path in written[3:]] == ["success", "returns", "losses"]


def test_several_runs_of_one_name(run: Path, tmp_path: Path) -> None:
    written = write_report(
        [RunFolder.open(run), RunFolder.open(run)], open_folder(tmp_path / "report")
    )
    # The one beside the other is two methods: their seeds are the same.
    folders = {path.parent.name for path in written[3:]}
    assert folders == {"some run", "some run-2", "report"}
    assert "vast (some run-2)" in written[0].read_text()


def test_cells_of_two_sweeps_are_named_after_their_sweeps(tmp_path: Path) -> None:
    cells = [
        RunFolder.open(write_evaluated_run(tmp_path / sweep))
        for sweep in ("wide", "deep", "deep/twin/deep")
    ]
    assert [source.name for source in read_sources(cells)] == [
        *("some run", "deep-some run", "deep-some run-2")
    ]


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
    row = "| 90.0 % | 59.6 to 98.2 % | — | — | cube-single-play 3 (trained for 1)"
    assert row in written[1].read_text()


def test_subgoals_that_were_inspected_are_shown(run: Path, tmp_path: Path) -> None:
    folder = run / "subgoals"
    folder.mkdir()
    (folder / "subgoals.svg").write_bytes(b"scene")
    (folder / "maze_values.svg").write_bytes(b"maze")
    (folder / "rollout.gif").write_bytes(b"video")
    (folder / "rollout.webm").write_bytes(b"played")
    assert len(
        write_report([RunFolder.open(run)], open_folder(tmp_path / "without"))
    ) == 3 + len(PICTURES)
    (folder / "subgoals.json").write_text(json.dumps({"step": 3000, "seed": 1}))
    written = write_report([RunFolder.open(run)], open_folder(tmp_path / "report"))
    assert [path.name for path in written[-4:]] == [
        *("maze_values.svg", "subgoals.svg", "rollout.webm", "rollout.gif")
    ]
    assert written[-1].read_bytes() == b"video"
    page = written[0].read_text()
    # Frames are too small to be seen beside another picture.
    assert page.count('<figure class="whole">') == 1
    assert "data:image/gif;base64," in page
    assert "data:video/webm;base64," in page
    assert "autoplay" not in page
    assert "\n[The episode with its sub-goals, as a video" in written[1].read_text()
    assert "After 3,000 updates, training seed 1." in page


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataFormatError, match="expected the folder of a run"):
        write_report([RunFolder.open(tmp_path)], open_folder(tmp_path / "report"))
    with pytest.raises(DataFormatError, match="got none"):
        write_report([], open_folder(tmp_path / "report"))
    assert not (tmp_path / "report").exists()


def test_names_of_strangers_are_text_in_markdown(tmp_path: Path) -> None:
    name = "![x](http:evil) <script>alert(1)</script> | `a` *b* [c](d)"
    folder = tmp_path / name.replace("/", " ")
    write_evaluated_run(tmp_path).rename(folder)
    _, report, *_ = write_report([RunFolder.open(folder)], open_folder(tmp_path / "r"))
    shown = report.read_text()
    plain = shown.replace("\\[", "").replace("\\<", "").replace("\\|", "")
    assert "script" in plain
    assert "<script" not in plain
    # Of pictures there are those of the report alone, and each cell is one.
    assert re.findall(r"!\[[^\]]*\]\(%21.*/(\w+)\.svg\)", plain) == PICTURES
    assert len(re.findall(r"\[", plain)) == len(PICTURES)
    header, line, *rows = re.findall(r"^\|.*$", plain, re.M)[:3]
    assert {row.count("|") for row in (line, *rows)} == {header.count("|")}
