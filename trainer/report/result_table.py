"""The result table of a report: one row for each run and statistic, as data and text.

Owns which columns there are and how their cells read; knows no files.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.report.paper import METHODS, PaperResult, find_paper_result
from trainer.runs.evaluations import Evaluation
from trainer.runs.run import Run
from trainer.runs.success_rates import Summary, summarize

NOT_EVALUATED = "not evaluated yet"
NOT_REPORTED = "n/a: success not reported"

NOTES = (
    "Success is that of an episode's last step, as OGBench counts it. Rates pool the "
    "episodes of all training seeds.",
    "last: the last checkpoint evaluated. mean of last three: the last three pooled. "
    "best: the checkpoint with the highest rate, picked after looking, so it flatters.",
    "The interval is Wilson's, at 95 %, over pooled episodes. It holds the luck of the "
    "episodes, not that of training; the deviation over seeds shows the latter.",
    "The paper's numbers are mean ± standard deviation over 8 training seeds after a "
    "million updates on the published data; it does not state how many episodes. "
    "Episodes, seeds, updates and data here may differ, so read the two side by side, "
    "not as one experiment.",
    "A policy is shown no goal. In a task that it is not trained for it still does "
    "what pays in its own, and succeeds by accident.",
)


@dataclass(frozen=True)
class ResultRow:
    """One row of the table.

    Attributes:
        run: Name of the run.
        dataset: Data set.
        task: Task number it was evaluated in.
        trained_task: Task number it is trained for.
        agent: Agent's name.
        summary: The rate; None if the run was never evaluated, or its environment
            reports no success.
        evaluated: Whether the run was evaluated in the task at all.
        paper: The paper's number for the same task and method (VAST's, for a method
            that the paper does not have); None if it has not that data set, or the
            policy is trained for another task.
    """

    run: str
    dataset: str
    task: int
    trained_task: int
    agent: str
    summary: Summary | None
    evaluated: bool
    paper: PaperResult | None

    @property
    def without(self) -> str:
        """Why there is no rate."""
        return NOT_REPORTED if self.evaluated else NOT_EVALUATED

    @property
    def verdict(self) -> str:
        """Whether the interval is ``below`` the paper's mean, ``above``, or around it.

        Around it is ``agrees``; empty if one of the two is missing.
        """
        if self.summary is None or self.paper is None or self.paper.mean is None:
            return ""
        low, high = (100 * end for end in self.summary.score.interval)
        if high < self.paper.mean:
            return "below"
        return "above" if low > self.paper.mean else "agrees"


def result_rows(
    name: str, run: Run, evaluations: Sequence[Evaluation]
) -> list[ResultRow]:
    """Makes the rows of one run.

    Args:
        name: How the table calls it.
        run: The run.
        evaluations: Of the run.

    Returns:
        A row for each statistic, or one without numbers if it was never evaluated;
        then those of other tasks it was evaluated in.
    """
    agent, own = run.config.agent.name, run.task.task
    others = {evaluation.task for evaluation in evaluations} - {own}
    rows = []
    for task in (own, *sorted(others)):
        there = [each for each in evaluations if each.task == task]
        summaries: list[Summary | None] = [*summarize(there)] or [None]
        paper = None
        if task == own:
            paper = find_paper_result(run.dataset, own, paper_method(agent))
        rows += [
            ResultRow(name, run.dataset, task, own, agent, summary, bool(there), paper)
            for summary in summaries
        ]
    return rows


def paper_method(agent: str) -> str:
    """The paper's name of an agent's method; VAST for one that it does not have."""
    by_upper = {method.upper(): method for method in METHODS}
    return by_upper.get(agent.replace("_", "-").upper(), "VAST")


HEADINGS = (
    "run",
    "data set",
    "task",
    "statistic",
    "success",
    "95 % interval",
    "episodes",
    "training seeds",
    "deviation over seeds",
    "updates",
    "paper",
    "against the paper",
)


def cells(row: ResultRow) -> tuple[str, ...]:
    """A row as text, one cell for each of ``HEADINGS``."""
    task = str(row.task)
    if row.task != row.trained_task:
        task += f" (trained for {row.trained_task})"
    start = (row.run, row.dataset, task)
    paper = "—" if row.paper is None else f"{row.paper.method} {row.paper}"
    if row.summary is None:
        return (*start, row.without, *("—",) * 6, paper, "—")
    summary = row.summary
    low, high = summary.score.interval
    return (
        *start,
        _statistic(summary),
        f"{100 * summary.score.rate:.1f} %",
        f"{100 * low:.1f} to {100 * high:.1f} %",
        str(summary.score.episodes),
        str(len(summary.seeds)),
        "—" if summary.seed_std is None else f"{100 * summary.seed_std:.1f}",
        ", ".join(f"{step:,}" for step in summary.steps),
        paper,
        row.verdict or "—",
    )


def _statistic(summary: Summary) -> str:
    """Its name, which must not promise more checkpoints than were evaluated."""
    if summary.statistic == "mean of last three" and len(summary.steps) < 3:
        return f"{summary.statistic} (only {len(summary.steps)} there)"
    return summary.statistic


def to_csv(rows: Sequence[ResultRow]) -> str:
    """The table as CSV of plain numbers: rates in percent, empty where unknown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [
            "run", "dataset", "task", "trained_task", "agent", "statistic",
            "success_percent", "interval_low_percent", "interval_high_percent",
            "successes", "episodes", "training_seeds", "seed_std_percent", "steps",
            "paper_method", "paper_mean_percent", "paper_std_percent", "against_paper",
        ]
    )  # fmt: skip
    for row in rows:
        writer.writerow([*_csv_start(row), *_csv_summary(row), *_csv_end(row)])
    return buffer.getvalue()


def _csv_start(row: ResultRow) -> list[object]:
    return [row.run, row.dataset, row.task, row.trained_task, row.agent]


def _csv_summary(row: ResultRow) -> list[object]:
    summary = row.summary
    if summary is None:
        return [row.without, *[""] * 8]
    low, high = summary.score.interval
    return [
        summary.statistic,
        round(100 * summary.score.rate, 3),
        round(100 * low, 3),
        round(100 * high, 3),
        summary.score.successes,
        summary.score.episodes,
        " ".join(map(str, summary.seeds)),
        "" if summary.seed_std is None else round(100 * summary.seed_std, 3),
        " ".join(map(str, summary.steps)),
    ]


def _csv_end(row: ResultRow) -> list[object]:
    if row.paper is None:
        return ["", "", "", ""]
    return [
        row.paper.method,
        "" if row.paper.mean is None else row.paper.mean,
        "" if row.paper.std is None else row.paper.std,
        row.verdict,
    ]
