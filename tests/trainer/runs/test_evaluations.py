"""Lines of evaluations, and lines that are none."""

import dataclasses
import json
from pathlib import Path

import pytest

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.errors import DataFormatError, UsageError
from tests.evaluated import evaluation
from tests.fuzz import MUTATIONS, drill, mutate_json_lines
from trainer.runs.evaluations import (
    EvaluationSettings,
    append_evaluation,
    choose_environment,
    read_evaluations,
)
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder


def test_what_is_no_evaluation_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    append_evaluation(folder, evaluation(1000, 0, 1))
    append_evaluation(folder, evaluation(1000, 1, 1))
    assert len(read_evaluations(folder)) == 2
    good = dataclasses.asdict(evaluation(2000, 0, 1))
    rest = [1] * len(good["successes"])
    cannot_be = ({"successes": [10**400, *rest[1:]]}, {"lengths": [-1, *rest[1:]]})
    for changes in ({"episodes": 0}, {"lengths": [1]}, {"step": "x"}, *cannot_be):
        line = json.dumps({**good, **changes}).encode() + b"\n"
        there = folder.read(EVALUATIONS_FILE).data or b""
        folder.write(EVALUATIONS_FILE, there + line)
        with pytest.raises(DataFormatError, match=r"jsonl, line 3: .*remove the line"):
            read_evaluations(folder)
        folder.write(EVALUATIONS_FILE, there)


@pytest.mark.parametrize("name", ["episodes", "environments", "workers"])
def test_numbers_below_1_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected at least 1, got 0"):
        EvaluationSettings(**{name: 0})


def test_the_run_s_environment_named_again_is_the_run_s_with_its_arguments() -> None:
    own = TaskEnvironment("Walk-v0", {"size": 3})
    # It has to be named again where a module registers it.
    named = TaskEnvironment("Walk-v0", {}, module="walk")
    chosen, arguments = choose_environment(named, own)
    assert chosen == TaskEnvironment("Walk-v0", {"size": 3}, module="walk")
    assert arguments == {}
    assert choose_environment(None, own) == (own, {})
    same = TaskEnvironment("Walk-v0", {"size": 3}, module="walk")
    assert choose_environment(same, own) == (same, {})
    for other in (
        TaskEnvironment("Walk-v0", {"size": 4}),
        TaskEnvironment("Run-v0", {"size": 4}),
        TaskEnvironment("Run-v0", {"size": 3}),
        TaskEnvironment("Run-v0"),
    ):
        assert choose_environment(other, own) == (other, other.kwargs)


def test_a_line_tells_the_figures_that_follow_from_its_episodes(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    played = evaluation(
        1000, 0, 2, returns=tuple(range(10)), reference_scores=(-0.5, 9.5)
    )
    append_evaluation(folder, played)
    line = json.loads((tmp_path / EVALUATIONS_FILE).read_text())
    assert (line["success_rate"], line["return_mean"]) == (0.2, 4.5)
    assert line["normalised_score"] == 50.0
    low, high = line["return_interval"]
    assert line["normalised_interval"] == pytest.approx([10 * low + 5, 10 * high + 5])
    assert read_evaluations(folder) == [played]


def test_lines_of_before_are_read(tmp_path: Path) -> None:
    played = evaluation(1000, 0, 2)
    line = dataclasses.asdict(played)
    for name in ("reference_scores", "environment_arguments"):
        del line[name]
    (tmp_path / EVALUATIONS_FILE).write_text(json.dumps(line) + "\n")
    assert read_evaluations(RunFolder.open(tmp_path)) == [played]


def test_reference_scores_that_no_score_can_be_made_of(tmp_path: Path) -> None:
    line = dataclasses.asdict(evaluation(1000, 0, 2)) | {"reference_scores": [3, 3]}
    (tmp_path / EVALUATIONS_FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(DataFormatError, match=r"reference_scores: .*a larger return"):
        read_evaluations(RunFolder.open(tmp_path))


def test_whatever_seed_was_asked_for_is_read(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    asked = dataclasses.replace(evaluation(1000, 0, 1), evaluation_seed=2**63)
    append_evaluation(folder, asked)
    assert read_evaluations(folder) == [asked]


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path: Path, count: int) -> None:
    folder = RunFolder.open(tmp_path)
    for seed in (0, 1):
        append_evaluation(folder, evaluation(1000, seed, 1))
    data = folder.read(EVALUATIONS_FILE).data or b""

    def read(spoilt: bytes) -> None:
        (tmp_path / EVALUATIONS_FILE).write_bytes(spoilt)
        for each in read_evaluations(folder):
            rate = each.success_rate
            assert rate is None or 0 <= rate <= 1

    found = drill(lambda draw: mutate_json_lines(data, draw), read, count=count)
    assert found.read > 0 < found.refused
