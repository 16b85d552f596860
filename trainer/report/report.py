"""A report on runs: one HTML file, the same as Markdown, a table as CSV, pictures.

Composition only: this module reads the folders of runs and writes files.
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
from trainer.runs.folder import RunFolder, check_writable

TEMPLATE = "report.html.j2"
HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
CSV_FILE = "results.csv"

# More names than these make no title.
_MAX_NAMES = 3
_PAPER_NOTES = (
    f"Success rates in percent, mean ± standard deviation over 8 training seeds, from "
    f"“{PAPER}”, table of full results. The paper took IQL's from earlier "
    "work, which averaged the last three checkpoints.",
)


def write_report(runs: Sequence[RunFolder], out: epath.Path) -> list[epath.Path]:
    """Writes a report on runs.

    The files are ``report.html``, which holds everything and needs no other file,
    ``report.md``, ``results.csv``, the pictures of methods compared, and the pictures
    of each run, ``NAME/*.svg``. Files of these names are replaced. Runs without an
    evaluation or without metrics are reported with what they have.

    Args:
        runs: Folders of runs, at least one.
        out: Folder to write into, on disk or gs://; it is made if missing.

    Returns:
        Files written, the HTML file first.

    Raises:
        DataFormatError: If a folder is no run's, or no folder is given.
        MissingPackageError: If matplotlib or jinja2 is not installed.
        StorageError: If files cannot be written into ``out``.
        UsageError: If ``out`` is a file.
    """
    if not runs:
        raise DataFormatError(
            "expected the folders of one or more runs to report on, got none; give the "
            "--out of a `python -m trainer train`"
        )
    check_writable(out)
    sources = read_sources(runs)
    results = methods.pool_methods([source.evaluated for source in sources])
    rows = [row for source in sources for row in source.rows]
    page = Page(
        title=_make_title(sources),
        lead=headline.write_lead(sources, results),
        sentences=headline.describe_places(sources),
        tables=[
            *result_table.make_tables(rows),
            *method_section.tabulate_aggregates(results),
        ],
        comparison=method_section.compare(results),
        sections=[make_section(source) for source in sources],
        paper=_tabulate_paper(sources),
    )
    # All is drawn before anything is written: an error leaves an earlier report whole.
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
    # Whole files, so that whoever reads the report meanwhile sees the old or the new.
    for file, data in content.items():
        files.write(os.fspath(out), file, data)
    return [out / file for file in content]


def _make_title(sources: Sequence[Source]) -> str:
    names = ", ".join(source.name for source in sources)
    return (
        f"Training report: {names}"
        if len(sources) <= _MAX_NAMES
        else f"Training report: {len(sources)} runs"
    )


def _tabulate_paper(sources: Sequence[Source]) -> Table | None:
    """Tabulates the paper's numbers for every task that was run; None without any."""
    places = dict.fromkeys(
        (source.run.dataset, source.run.task.task) for source in sources
    )
    rows = []
    for dataset, task in places:
        results = [find_paper_result(dataset, task, method) for method in METHODS]
        numbers = [str(result) for result in results if result is not None]
        if numbers:
            rows.append((f"{dataset} task {task}", *numbers))
    if not rows:
        return None
    return Table(
        "The paper's numbers for these tasks", ("task", *METHODS), rows, _PAPER_NOTES
    )
