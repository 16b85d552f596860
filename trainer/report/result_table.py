"""The result table of a report: a row for each run and statistic, as data and text.

This module owns the columns and the text of their cells; it knows no files.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.pages.elements import Table
from pipeline.store.units import format_count
from trainer.report.paper import METHODS, PaperResult, find_paper_result
from trainer.runs.evaluations import Evaluation
from trainer.runs.returns import show_interval, show_score
from trainer.runs.run import Run
from trainer.runs.success_rates import STATISTICS, ResultSummary, select_own, summarize

LAST = STATISTICS[0]
NOT_EVALUATED = "not evaluated yet"
# The paper prints whole percentages, so that its 0 % stands for up to half a percent.
_PAPER_ROUNDING = 0.5
NOT_REPORTED = "n/a: success not reported"

NOTES = (
    "Success is judged at the last step of an episode, as in OGBench. Rates pool the "
    "episodes of all training seeds.",
    "last: the last checkpoint evaluated. mean of last three: the last three pooled. "
    "best: the checkpoint with the highest rate, or mean return where success is not "
    "reported. The best was picked after looking, so it flatters.",
    "95 % intervals are over pooled episodes: Wilson's for success, a percentile "
    "bootstrap's for the mean return. They cover the luck of the episodes, not that of "
    "training, which the standard deviation over seeds (±) shows. All training seeds "
    "and checkpoints play the start states of one evaluation seed, so pooled episodes "
    "that share a start are counted as independent; evaluate --seed 1 draws other "
    "starts.",
    "Returns are undiscounted. A normalised score is 0 for a random policy's return "
    "and 100 for an expert's, as in D4RL.",
    "The paper's numbers are mean ± standard deviation over 8 training seeds after a "
    "million updates on the published data; it does not state how many episodes. "
    "Episodes, seeds, updates and data here may differ, so read the two side by side, "
    "not as one experiment.",
    "A policy observes no goal. In a task that it was not trained for, it still "
    "pursues its own and succeeds by accident.",
)


@dataclass(frozen=True)
class ResultRow:
    """One row of the table.

    Attributes:
        run: Name of the run.
        dataset: Name of the data set.
        task: Number of the task that the run was evaluated in.
        trained_task: Number of the task that the run is trained for.
        agent: Name of the agent.
        environment: Environment of the evaluation, where the run is trained for another
            one; else empty.
        candidates: Actions that were drawn at a step, where they are not as many as in
            the run's configuration; else None.
        summary: The result; None if the run was never evaluated.
        paper: The paper's number for the same task and method, or VAST's for a method
            that the paper does not have; None if the paper does not have the data set,
            the policy is trained for another task, or the environment or the candidates
            are not the run's own.
    """

    run: str
    dataset: str
    task: int
    trained_task: int
    agent: str
    environment: str
    candidates: int | None
    summary: ResultSummary | None
    paper: PaperResult | None

    @property
    def verdict(self) -> str:
        """Where the interval lies: ``below`` or ``above`` the paper's mean.

        An interval that holds a number which rounds to the mean ``agrees``. Empty if
        one is missing.
        """
        # The paper's spread is left out: it is over seeds, the interval over episodes.
        score = None if self.summary is None else self.summary.score
        if score is None or self.paper is None or self.paper.mean is None:
            return ""
        low, high = (100 * end for end in score.interval)
        if high < self.paper.mean - _PAPER_ROUNDING:
            return "below"
        return "above" if low > self.paper.mean + _PAPER_ROUNDING else "agrees"


def make_rows(
    name: str, run: Run, evaluations: Sequence[Evaluation]
) -> list[ResultRow]:
    """Makes the rows of one run.

    Args:
        name: Name of the run in the table.
        run: The run.
        evaluations: Evaluations of the run.

    Returns:
        A row for each statistic, or a row without numbers if the run was never
        evaluated; then the rows of other tasks and conditions.
    """
    agent, task = run.config.agent.name, run.task
    own = select_own(run, evaluations)
    others: dict[tuple[int, str, int], list[Evaluation]] = {}
    for evaluation in evaluations:
        # Rates of other tasks or conditions must not be pooled with these.
        if evaluation not in own:
            place = (evaluation.task, *evaluation.conditions)
            others.setdefault(place, []).append(evaluation)
    rows = []
    for group in (own, *(others[place] for place in sorted(others))):
        number = group[0].task if group else task.task
        # Every task has an environment of its own: only another environment of the
        # same task needs a name.
        environment = ""
        candidates = group[0].candidates if group else None
        if group and number == task.task:
            environment = group[0].environment
            if group[0].environment_id == task.environment_id:
                environment = environment.removeprefix(task.environment_id)
        paper = None
        if group is own and not environment and candidates is None:
            paper = find_paper_result(run.dataset, number, _name_paper_method(agent))
        summaries: list[ResultSummary | None] = [*summarize(group)] or [None]
        rows += [
            ResultRow(
                run=name,
                dataset=run.dataset,
                task=number,
                trained_task=task.task,
                agent=agent,
                environment=environment.strip(),
                candidates=candidates,
                summary=summary,
                paper=paper,
            )
            for summary in summaries
        ]
    return rows


def _name_paper_method(agent: str) -> str:
    """Names an agent's method in the paper; VAST if the paper does not have it."""
    known = {method.upper() for method in METHODS}
    return agent if agent.upper() in known else "VAST"


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


def make_tables(rows: Sequence[ResultRow]) -> list[Table]:
    """Makes a table of last checkpoints and a folded one of other statistics.

    Args:
        rows: Rows of all runs.

    Returns:
        Two tables, or one if nothing was evaluated.
    """
    # Runs without an evaluation are listed as well, so that none seems forgotten.
    last = [row for row in rows if row.summary is None or row.summary.statistic == LAST]
    others = [row for row in rows if row not in last]
    tables = [
        Table("Results of the last checkpoints", *_select_columns(last), notes=NOTES)
    ]
    if others:
        title = "The last three checkpoints pooled, and the best one"
        tables.append(Table(title, *_select_columns(others), folded=True))
    return tables


# Columns that are left out where no row has anything in them but the default.
_OPTIONAL = (
    *("paper", "against the paper", "normalised score", "± over seeds", "checkpoints"),
)


def _select_columns(
    rows: Sequence[ResultRow],
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Headings and cells, without columns that say nothing in any row."""
    # A column of dashes takes space that a narrow screen does not have.
    columns = list(zip(HEADINGS, *map(write_cells, rows), strict=True))
    kept = [
        column
        for column in columns
        if column[0] not in _OPTIONAL or not set(column[1:]) <= {"—", LAST}
    ]
    headings, *cells = zip(*kept, strict=True)
    return headings, cells


def write_cells(row: ResultRow) -> tuple[str, ...]:
    """Writes a row as text, a cell for each of ``HEADINGS``."""
    task = f"{row.dataset} {row.task}"
    if row.task != row.trained_task:
        task += f" (trained for {row.trained_task})"
    if row.environment:
        task += f", in {row.environment}"
    if row.candidates is not None:
        task += f", {format_count(row.candidates, 'candidate')}"
    paper = "—" if row.paper is None else f"{row.paper.method} {row.paper}"
    # The first four columns are seen without scrolling on a narrow screen.
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
        _name_statistic(summary),
    )


def _name_statistic(summary: ResultSummary) -> str:
    """Name of a statistic, which promises no more checkpoints than were evaluated."""
    if summary.statistic == "mean of last three" and len(summary.steps) < 3:
        return f"{summary.statistic} (only {len(summary.steps)} evaluated)"
    return summary.statistic


def to_csv(rows: Sequence[ResultRow]) -> str:
    """Writes the table as CSV of plain numbers: rates in percent, empty if unknown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [
            "run", "dataset", "task", "trained_task", "agent", "statistic",
            "success_percent", "interval_low_percent", "interval_high_percent",
            "successes", "episodes", "training_seeds", "seed_std_percent", "steps",
            "paper_method", "paper_mean_percent", "paper_std_percent", "against_paper",
            "return_mean", "return_low", "return_high", "normalised_score",
            "normalised_low", "normalised_high", "environment", "candidates",
        ]
    )  # fmt: skip
    for row in rows:
        writer.writerow(
            # Columns are only ever added at the end: scripts may read them by position.
            [
                *_list_run(row),
                *_list_summary(row),
                *_list_paper(row),
                *_list_returns(row),
                "" if row.candidates is None else row.candidates,
            ]
        )
    return buffer.getvalue()


def _list_run(row: ResultRow) -> list[object]:
    return [row.run, row.dataset, row.task, row.trained_task, row.agent]


def _list_summary(row: ResultRow) -> list[object]:
    summary = row.summary
    if summary is None:
        return [NOT_EVALUATED, *[""] * 8]
    # Rate, both ends and successes are empty where success is not reported.
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


def _list_paper(row: ResultRow) -> list[object]:
    if row.paper is None:
        return ["", "", "", ""]
    return [
        row.paper.method,
        "" if row.paper.mean is None else row.paper.mean,
        "" if row.paper.std is None else row.paper.std,
        row.verdict,
    ]


def _list_returns(row: ResultRow) -> list[object]:
    if row.summary is None:
        return [*[""] * 6, row.environment]
    returns = row.summary.returns
    figures = (
        *(returns.mean, *(returns.interval or (None, None))),
        *(returns.normalised, *(returns.normalised_interval or (None, None))),
    )
    return [
        *("" if figure is None else round(figure, 6) for figure in figures),
        row.environment,
    ]
