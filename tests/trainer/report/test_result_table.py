"""Rows of results beside the paper's."""

import csv
import dataclasses
import io

from tests.evaluated import RUN, evaluation
from trainer.report.result_table import make_rows, make_tables, to_csv, write_cells
from trainer.runs.run import Run


def test_rows_compare_with_the_paper() -> None:
    def verdict(solved: int, run: Run = RUN) -> str:
        return make_rows("x", run, [evaluation(1, 0, solved)])[0].verdict

    assert verdict(3) == "below"  # The paper has 99 %.
    assert verdict(10) == "agrees"
    hard = dataclasses.replace(RUN, dataset="cube-quadruple-play")  # 8 %.
    assert verdict(10, hard) == "above"
    other = dataclasses.replace(RUN, dataset="pointmaze-medium-navigate")
    assert verdict(3, other) == ""
    assert write_cells(make_rows("x", other, [evaluation(1, 0, 3)])[0])[3:5] == (
        "—",
        "—",
    )


def test_no_success_and_only_successes_agree_with_the_papers_0_and_100() -> None:
    # 0 of 50 and 10 of 10 are numbers at which rounding moved the interval's end.
    easy = dataclasses.replace(RUN, dataset="scene-play")
    hard = dataclasses.replace(
        RUN, dataset="cube-quadruple-play", task=dataclasses.replace(RUN.task, task=2)
    )
    (solved, *_) = make_rows("x", easy, [evaluation(1, 0, 10)])
    (failed, *_) = make_rows("x", hard, [evaluation(1, 0, 0, task=2, episodes=50)])
    assert [row.paper and row.paper.mean for row in (solved, failed)] == [100, 0]
    assert [row.verdict for row in (solved, failed)] == ["agrees", "agrees"]
    # The paper's 0 % may be 0.4 %, which 1 of 400 episodes are not above.
    for solves, expected in ((1, "agrees"), (10, "above")):
        played = [evaluation(1, 0, solves, task=2, episodes=400)]
        assert make_rows("x", hard, played)[0].verdict == expected


def test_fewer_than_three_checkpoints_are_not_called_three() -> None:
    rows = make_rows("x", RUN, [evaluation(1, 0, 3), evaluation(2, 0, 3)])
    assert write_cells(rows[1])[-1] == "mean of last three (only 2 evaluated)"


def test_other_numbers_of_candidates_have_rows_of_their_own() -> None:
    counts = (None, 16, 8)
    played = [evaluation(1, 0, 9 if count else 3, candidates=count) for count in counts]
    own, eight, sixteen = make_rows("x", RUN, played)[::3]
    assert sixteen.candidates == 16
    assert (own.candidates, eight.candidates) == (None, 8)
    assert write_cells(own)[1] == "30.0 %"
    assert write_cells(eight)[1] == "90.0 %"
    assert write_cells(eight)[5] == "cube-single-play 1, 8 candidates"
    assert own.paper is not None
    assert eight.paper is None
    # Nor if the run was evaluated with no other number.
    assert make_rows("x", RUN, [evaluation(1, 0, 9, candidates=8)])[0].paper is None
    table = list(csv.DictReader(io.StringIO(to_csv([own, eight]))))
    assert [row["candidates"] for row in table] == ["", "8"]


def test_an_environment_is_named_whole_unless_only_its_arguments_differ() -> None:
    own = RUN.task.environment_id
    played = [
        evaluation(1, 0, 3),
        evaluation(1, 0, 3, environment_id=f"{own}1"),
        evaluation(1, 0, 3, environment_arguments={"size": 3}),
    ]
    rows = make_rows("x", RUN, played)[::3]
    assert [row.environment for row in rows] == ["", '{"size": 3}', f"{own}1"]


def test_columns_that_say_nothing_are_left_out() -> None:
    elsewhere = dataclasses.replace(RUN, dataset="data of my own")
    (table,) = make_tables(make_rows("x", elsewhere, []))
    assert "paper" not in table.headings
    assert table.rows[0][:3] == ("x", "not evaluated yet", "—")
    (table,) = make_tables(make_rows("x", RUN, []))
    assert table.headings[3] == "paper"
    # A single seed has no deviation.
    for seeds in (1, 2):
        played = [evaluation(4000, seed, 1) for seed in range(seeds)]
        table, _ = make_tables(make_rows("x", RUN, played))
        assert ("± over seeds" in table.headings) == (seeds == 2)
