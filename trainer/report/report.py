"""A report on runs: one HTML file, the same as Markdown, a table as CSV, pictures.

Composition only: reads what runs left in their folders and writes files.
"""

import os
from collections.abc import Sequence

from etils import epath

from pipeline.pages.elements import Table
from pipeline.pages.html import render
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from trainer.report import headline, method_section, methods, result_table
from trainer.report.markdown import to_markdown
from trainer.report.page import Page
from trainer.report.paper import METHODS, PAPER, find_paper_result
from trainer.report.run_section import make_section
from trainer.report.sources import Source, read_sources
from trainer.runs.folder import RunFolder

TEMPLATE = "report.html.j2"
HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
CSV_FILE = "results.csv"

# More names are a list, not a title.
_MAX_NAMES = 3
_PAPER_NOTES = (
    f"Success rates in percent, mean ± standard deviation over 8 training seeds, from "
    f"“{PAPER}”, table of full results. IQL's were taken over there from earlier work.",
)


def write_report(runs: Sequence[RunFolder], out: epath.Path) -> list[epath.Path]:
    """Writes a report on runs.

    Written are ``report.html``, which holds everything and needs no other file,
    ``report.md``, ``results.csv``, the pictures of methods compared, and those of each
    run, ``NAME/*.svg``. Files of these names are replaced. Runs that were not evaluated
    yet, or logged nothing yet, are reported with what there is.

    Args:
        runs: Folders of runs, at least one.
        out: Folder to write into, on disk or gs://; made if missing.

    Returns:
        Files written, the HTML file first.

    Raises:
        DataFormatError: If a folder is no run's, or none is given.
        MissingPackageError: If matplotlib or jinja2 is not installed.
    """
    if not runs:
        raise DataFormatError(
            "expected the folders of one or more runs to report on, got none; give the "
            "--out of a `python -m trainer train`"
        )
    sources = read_sources(runs)
    results = methods.pool_methods([source.evaluated for source in sources])
    rows = [row for source in sources for row in source.rows]
    page = Page(
        title=_title(sources),
        lead=headline.write_lead(sources, results),
        sentences=headline.describe_places(sources),
        tables=[*result_table.tables(rows), *method_section.aggregate_table(results)],
        comparison=method_section.compare(results),
        sections=[make_section(source) for source in sources],
        paper=_paper_table(sources),
    )
    compared = () if page.comparison is None else page.comparison.pictures
    content = {
        HTML_FILE: render("trainer.report", TEMPLATE, page).encode(),
        MARKDOWN_FILE: to_markdown(page).encode(),
        CSV_FILE: result_table.to_csv(rows).encode(),
        **{picture.file: picture.data for picture in compared},
        **{
            f"{section.title}/{picture.file}": picture.data
            for section in page.sections
            for picture in section.pictures
        },
    }
    for file, data in content.items():
        files.write(os.fspath(out), file, data)
    return [out / file for file in content]


def _title(sources: Sequence[Source]) -> str:
    names = ", ".join(source.name for source in sources)
    return (
        f"Training report: {names}"
        if len(sources) <= _MAX_NAMES
        else f"Training report: {len(sources)} runs"
    )


def _paper_table(sources: Sequence[Source]) -> Table | None:
    """The paper's row of every task that was run, all methods; None if it has none."""
    wanted = dict.fromkeys((each.run.dataset, each.run.task.task) for each in sources)
    rows = []
    for dataset, task in wanted:
        found = [find_paper_result(dataset, task, method) for method in METHODS]
        numbers = [str(result) for result in found if result is not None]
        if numbers:
            rows.append((f"{dataset} task {task}", *numbers))
    if not rows:
        return None
    return Table(
        "The paper's numbers for these tasks", ("task", *METHODS), rows, _PAPER_NOTES
    )
