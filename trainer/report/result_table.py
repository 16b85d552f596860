"""The result table of a report: one row for each run and statistic, as data and text.

Owns which columns there are and how their cells read; knows no files.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.pages.elements import Table
from trainer.report.paper import METHODS, PaperResult, find_paper_result
from trainer.runs.evaluations import Evaluation
from trainer.runs.returns import show_interval, show_score
from trainer.runs.run import Run
from trainer.runs.success_rates import STATISTICS, Summary, select_own, summarize

LAST = STATISTICS[0]
NOT_EVALUATED = "not evaluated yet"
NOT_REPORTED = "n/a: success not reported"

NOTES = (
    "Success is that of an episode's last step, as OGBench counts it. Rates pool the "
    "episodes of all training seeds.",
    "last: the last checkpoint evaluated. mean of last three: the last three pooled. "
    "best: the checkpoint with the highest rate, or mean return where success is not "
    "reported, picked after looking, so it flatters.",
    "Intervals are of 95 % over pooled episodes: Wilson's of success, of the mean "
    "return the percentiles of a bootstrap. They hold the luck of the episodes, not "
    "that of training; the deviation over seeds (±) shows the latter.",
    "Returns are undiscounted. A normalised score is 0 for the lower reference return "
    "and 100 for the upper one, as in D4RL: those of a random policy and an expert.",
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
        environment: Environment it was evaluated in, where that is not the one it is
            trained for; else empty.
        summary: The result; None if the run was never evaluated.
        paper: The paper's number for the same task and method (VAST's, for a method
            that the paper does not have); None if it has not that data set, or the
            policy is trained for another task.
    """

    run: str
    dataset: str
    task: int
    trained_task: int
    agent: str
    environment: str
    summary: Summary | None
    paper: PaperResult | None

    @property
    def verdict(self) -> str:
        """Whether the interval is ``below`` the paper's mean, ``above``, or around it.

        Around it is ``agrees``; empty if one of the two is missing.
        """
        score = None if self.summary is None else self.summary.score
        if score is None or self.paper is None or self.paper.mean is None:
            return ""
        low, high = (100 * end for end in score.interval)
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
        then those of other tasks and environments it was evaluated in.
    """
    agent, task = run.config.agent.name, run.task
    own = select_own(run, evaluations)
    others: dict[tuple[int, str], list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation not in own:
            place = (evaluation.task, evaluation.environment)
            others.setdefault(place, []).append(evaluation)
    rows = []
    for there in (own, *(others[place] for place in sorted(others))):
        number = there[0].task if there else task.task
        # Another task has an environment of its own, as everybody expects.
        environment = ""
        if there and number == task.task:
            environment = there[0].environment.removeprefix(task.environment_id)
        paper = None
        if there is own and not environment:
            paper = find_paper_result(run.dataset, number, paper_method(agent))
        summaries: list[Summary | None] = [*summarize(there)] or [None]
        rows += [
            ResultRow(
                run=name,
                dataset=run.dataset,
                task=number,
                trained_task=task.task,
                agent=agent,
                environment=environment.strip(),
                summary=summary,
                paper=paper,
            )
            for summary in summaries
        ]
    return rows


def paper_method(agent: str) -> str:
    """The paper's name of an agent's method; VAST for one that it does not have."""
    by_upper = {method.upper(): method for method in METHODS}
    return by_upper.get(agent.replace("_", "-").upper(), "VAST")


HEADINGS = (
    "run",
    "success",
    "95 % interval",
    "paper",
    "against the paper",
    "data set and task",
    "return",
    "normalised score",
    "episodes",
    "training seeds",
    "± over seeds",
    "updates",
    "checkpoints",
)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """The last checkpoints of all runs, and below, folded, other choices of them.

    Args:
        rows: Of all runs.

    Returns:
        Two tables, or one if nothing was evaluated. Scores are a column only where
        there are any.
    """
    last = [row for row in rows if row.summary is None or row.summary.statistic == LAST]
    others = [row for row in rows if row not in last]
    found = [Table("Results of the last checkpoints", *_columns(last), notes=NOTES)]
    if others:
        title = "The last three checkpoints pooled, and the best one"
        found.append(Table(title, *_columns(others), folded=True))
    return found


def _columns(
    rows: Sequence[ResultRow],
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Headings and cells, without the columns in which all rows say nothing else."""
    columns = list(zip(HEADINGS, *map(cells, rows), strict=True))
    kept = [
        column
        for column in columns
        if not (
            (column[0] == "normalised score" and set(column[1:]) <= {"—"})
            or (column[0] == "checkpoints" and set(column[1:]) <= {"—", LAST})
        )
    ]
    headings, *shown = zip(*kept, strict=True)
    return headings, shown


def cells(row: ResultRow) -> tuple[str, ...]:
    """A row as text, one cell for each of ``HEADINGS``."""
    task = f"{row.dataset} {row.task}"
    if row.task != row.trained_task:
        task += f" (trained for {row.trained_task})"
    if row.environment:
        task += f", in {row.environment}"
    paper = "—" if row.paper is None else f"{row.paper.method} {row.paper}"
    if row.summary is None:
        return (row.run, NOT_EVALUATED, "—", paper, "—", task, *("—",) * 7)
    summary, returns = row.summary, row.summary.returns
    success, interval = NOT_REPORTED, "—"
    if summary.score is not None:
        low, high = summary.score.interval
        success = f"{100 * summary.score.rate:.1f} %"
        interval = f"{100 * low:.1f} to {100 * high:.1f} %"
    spread = show_interval(returns.interval, "", digits=2)
    return (
        row.run,
        success,
        interval,
        paper,
        row.verdict or "—",
        task,
        f"{returns.mean:.2f}" + (f" ({spread})" if spread else ""),
        show_score(returns, "—"),
        str(returns.episodes),
        str(len(summary.seeds)),
        "—" if summary.seed_std is None else f"{100 * summary.seed_std:.1f}",
        ", ".join(f"{step:,}" for step in summary.steps),
        _statistic(summary),
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
            "return_mean", "return_low", "return_high", "normalised_score",
            "normalised_low", "normalised_high", "environment",
        ]
    )  # fmt: skip
    for row in rows:
        writer.writerow(
            [*_csv_start(row), *_csv_summary(row), *_csv_end(row), *_csv_returns(row)]
        )
    return buffer.getvalue()


def _csv_start(row: ResultRow) -> list[object]:
    return [row.run, row.dataset, row.task, row.trained_task, row.agent]


def _csv_summary(row: ResultRow) -> list[object]:
    summary = row.summary
    if summary is None:
        return [NOT_EVALUATED, *[""] * 8]
    rates: list[object] = [""] * 4
    if summary.score is not None:
        low, high = summary.score.interval
        shares = (summary.score.rate, low, high)
        rates = [*(round(100 * share, 3) for share in shares), summary.score.successes]
    return [
        summary.statistic,
        *rates,
        summary.returns.episodes,
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


def _csv_returns(row: ResultRow) -> list[object]:
    if row.summary is None:
        return [*[""] * 6, row.environment]
    returns = row.summary.returns
    figures = (
        *(returns.mean, *(returns.interval or (None, None))),
        *(returns.normalised, *(returns.normalised_interval or (None, None))),
    )
    return [*("" if x is None else round(x, 6) for x in figures), row.environment]
