"""The paper's numbers as shipped: complete, consistent and where they belong."""

import importlib.resources

import pytest

from trainer.report import paper
from trainer.report.paper import METHODS, find_paper_result, read_paper_results


def test_every_data_set_task_and_method_is_there_once() -> None:
    cells = {(each.dataset, each.task, each.method) for each in read_paper_results()}
    expected = {
        (dataset, task, method)
        for dataset in paper.paper_datasets()
        for task in (1, 2, 3, 4, 5, None)
        for method in METHODS
    }
    assert cells == expected
    assert len(read_paper_results()) == len(expected) == 540


@pytest.mark.parametrize(
    ("dataset", "task", "method", "mean", "std"),
    [  # Read off the printed table.
        ("scene-play", 1, "VAST", 100, 0),
        ("cube-single-play", 1, "VAST", 99, 3),
        ("cube-single-play", None, "VAST", 98, 3),
        ("puzzle-4x4-play", 5, "VAST", 17, 5),
        ("antmaze-giant-navigate", None, "VAST", 19, 9),
        ("cube-quadruple-play", None, "VAST", 2, 4),
        ("antmaze-giant-navigate", None, "FQL-n", 37, 16),
        ("cube-single-play", 2, "QC", 94, 4),
        ("cube-single-play", 1, "IQL", 88, None),
        ("cube-triple-play", 1, "IQL", None, None),
    ],
)
def test_cells(
    dataset: str, task: int | None, method: str, mean: float | None, std: float | None
) -> None:
    found = find_paper_result(dataset, task, method)
    assert found is not None
    assert (found.mean, found.std) == (mean, std)


def test_means_over_tasks_are_those_of_the_tasks() -> None:
    compared = 0
    for dataset in paper.paper_datasets():
        for method in METHODS:
            tasks = [find_paper_result(dataset, task, method) for task in range(1, 6)]
            means = [task.mean for task in tasks if task and task.mean is not None]
            printed = find_paper_result(dataset, None, method)
            assert printed is not None
            if printed.mean is None:
                assert not means
                continue
            # Every number is rounded to a whole percent, the tasks before averaging.
            assert sum(means) / 5 == pytest.approx(printed.mean, abs=1.0)
            compared += 1
    assert compared == 10 * 9 - 4


def test_rates_are_percent() -> None:
    for each in read_paper_results():
        assert each.mean is None or 0 <= each.mean <= 100
        assert each.std is None or 0 <= each.std <= 50


def test_text_of_a_cell() -> None:
    assert str(find_paper_result("cube-single-play", 1, "vast")) == "99 ± 3"
    assert str(find_paper_result("cube-single-play", 1, "iql")) == "88"
    assert str(find_paper_result("cube-triple-play", 1, "iql")) == "—"


def test_a_data_set_the_paper_has_not_is_no_error() -> None:
    assert find_paper_result("pointmaze-medium-navigate", 1, "VAST") is None


def test_a_wrong_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got 'FQLN'; did you mean 'FQL-n'"):
        find_paper_result("scene-play", 1, "FQLN")
    # Data of others have as many tasks as they like.
    assert find_paper_result("scene-play", 6, "VAST") is None


def test_the_file_says_where_its_numbers_are_from() -> None:
    folder = importlib.resources.files("trainer.report")
    text = folder.joinpath("paper_results.csv").read_text("utf-8")
    assert text.startswith("#")
    assert paper.PAPER in text
