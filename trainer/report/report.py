"""A report on runs: curves, a table beside the paper's numbers, one HTML file.

Reads what runs left in their folders and writes files; computes nothing of its own.
"""

import dataclasses
import json
import os
import urllib.parse
from collections.abc import Sequence

import numpy as np
from etils import epath

from pipeline.store import files
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError
from pipeline.store.units import format_duration
from trainer.report import aggregates, charts, result_table
from trainer.report.markdown import escape, to_table
from trainer.report.methods import EvaluatedRun, pool_methods
from trainer.report.page import Picture, Section, Table, render
from trainer.report.paper import METHODS, PAPER, find_paper_result
from trainer.runs import subgoal_files
from trainer.runs.evaluations import Evaluation, read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.history import History, read_history
from trainer.runs.run import Run, read_run
from trainer.runs.success_rates import select_own

HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
CSV_FILE = "results.csv"

_PAPER_NOTES = (
    f"Success rates in percent, mean ± standard deviation over 8 training seeds, from "
    f"“{PAPER}”, table of full results. IQL's were taken over there from earlier work.",
)


@dataclasses.dataclass(frozen=True)
class _Source:
    """Everything one run left behind."""

    name: str
    folder: RunFolder
    run: Run
    history: History
    evaluations: list[Evaluation]

    @property
    def own(self) -> list[Evaluation]:
        """Evaluations in the task and environment it is trained for."""
        return select_own(self.run, self.evaluations)

    @property
    def rows(self) -> list[result_table.ResultRow]:
        """Its rows of the result table."""
        return result_table.result_rows(self.name, self.run, self.evaluations)


def write_report(runs: Sequence[RunFolder], out: epath.Path) -> list[epath.Path]:
    """Writes a report on runs.

    Written are ``report.html``, which holds everything and needs no other file,
    ``report.md``, ``results.csv``, and the pictures of each run, ``NAME/*.png``. Files
    of these names are replaced. Runs that were not evaluated yet, or logged nothing
    yet, are reported with what there is.

    Args:
        runs: Folders of runs, at least one.
        out: Folder to write into, on disk or gs://; made if missing.

    Returns:
        Files written, the HTML file first.

    Raises:
        DataFormatError: If a folder is no run's, or none is given.
        MissingPackageError: If matplotlib is not installed.
    """
    if not runs:
        raise DataFormatError(
            "expected the folders of one or more runs to report on, got none; give the "
            "--out of a `python -m trainer train`"
        )
    sources = [
        _Source(
            name,
            folder,
            read_run(folder),
            read_history(folder),
            read_evaluations(folder),
        )
        for name, folder in zip(_names(runs), runs, strict=True)
    ]
    pictures = {source.name: _pictures(source) for source in sources}
    rows = [row for source in sources for row in source.rows]
    tables = [
        Table(
            "Results",
            result_table.HEADINGS,
            [result_table.cells(row) for row in rows],
            result_table.NOTES,
        ),
        *_aggregate_tables(sources),
        *_paper_tables(sources),
    ]
    sections = [_section(source, pictures[source.name]) for source in sources]
    title = "Training report: " + ", ".join(source.name for source in sources)
    content = {
        HTML_FILE: render(title, tables, sections).encode(),
        MARKDOWN_FILE: _markdown(title, tables, sections, sources).encode(),
        CSV_FILE: result_table.to_csv(rows).encode(),
    } | {
        f"{name}/{picture.name}.{picture.kind}": picture.data
        for name, drawn in pictures.items()
        for picture in drawn
    }
    for file, data in content.items():
        files.write(os.fspath(out), file, data)
    return [out / file for file in content]


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """Names of the runs' folders, told apart where they are equal."""
    names: list[str] = []
    for run in runs:
        base = run.name or "run"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


def _pictures(source: _Source) -> list[Picture]:
    """Draws what there are data for."""
    run, history = source.run, source.history
    paper = source.rows[0].paper
    drawn = (
        (
            "success",
            "Success rate of the checkpoints evaluated. The bars are Wilson's 95 % "
            "intervals of the pooled episodes.",
            charts.success_chart(source.own, paper),
        ),
        (
            "returns",
            "Mean return of the checkpoints evaluated. The bars are 95 % intervals of "
            "a bootstrap over the pooled episodes.",
            charts.return_chart(source.own),
        ),
        (
            "losses",
            "The losses of the networks, averaged between two log points; the band "
            "spans the training seeds. Losses of flows do not tend to zero.",
            charts.loss_chart(history),
        ),
        (
            "validation",
            "Loss and errors on windows of episodes that nothing is trained on. A loss "
            "that rises there alone says that the data are learned by heart. Values "
            "may well be far from the stored returns, which are those of a policy that "
            "is to be improved.",
            charts.validation_chart(history),
        ),
        (
            "values",
            "Values above the best return in the data are over-estimated: no policy "
            "that stitches recorded rewards together should collect much more.",
            charts.value_chart(history, run.facts.return_max),
        ),
        (
            "segment_error",
            "How far G is from the recorded discounted returns of windows, in units of "
            "reward: over training, and by the windows' length at its start and end.",
            charts.segment_error_chart(history),
        ),
        (
            "weights",
            "Weight of the recorded windows in the stitching policy's loss. All near "
            "one: it clones behaviour. A large maximum: few windows decide.",
            charts.weight_chart(history, getattr(run.config.agent, "max_weight", None)),
        ),
        (
            "horizons",
            "Horizons that the stitching policy draws for the training states, beside "
            "the windows it learns from.",
            charts.horizon_chart(history),
        ),
    )
    pictures = []
    for name, caption, figure in drawn:
        if figure is not None:
            png = charts.to_png(figure)
            pictures.append(Picture(name, caption, png, wide=name == "validation"))
    return [*pictures, *_subgoal_pictures(source.folder.path / subgoal_files.SUBGOALS)]


def _subgoal_pictures(folder: epath.Path) -> list[Picture]:
    """What an inspection of sub-goals has left in the run's folder."""
    root = os.fspath(folder)
    report = files.read(root, subgoal_files.JSON_FILE).data
    if report is None:
        return []
    where = str(folder / subgoal_files.JSON_FILE)
    found = load_object(report, where=where, remedy=f"delete {folder} and repeat it")
    step, seed = found.get("step"), found.get("seed")
    if not isinstance(step, int) or not isinstance(seed, int):
        raise DataFormatError(
            f"{where}: expected step and seed, got {step!r:.80} and {seed!r:.80}; "
            f"delete {folder} and repeat it"
        )
    when = f"After {step:,} updates, training seed {seed}. "
    captions = {
        subgoal_files.MAZE_FILE: "From above: some recorded episodes; V over the free "
        "cells, with sub-goals drawn along one episode (a body with limbs is taken to "
        "stand as at its start); and the paths that the policy takes.",
        subgoal_files.SCENE_FILE: "Solid: the scene now. Pale and transparent: the "
        "sub-goal that the policy pursues, k steps ahead. Below it stands what in it "
        "is not the prediction's own.",
        subgoal_files.VIDEO_FILE: "The same episode, from start to end.",
        subgoal_files.ERRORS_FILE: "Sub-goals of rollouts against the states that came "
        "k steps later. A policy's sub-goal is a draw and it need not get there: below "
        "the line of nothing moving is good.",
    }
    there = ((name, files.read(root, name).data) for name in captions)
    return [
        Picture(
            name.rpartition(".")[0],
            when + captions[name],
            data,
            "gif" if name.endswith(".gif") else "png",
            wide=name != subgoal_files.VIDEO_FILE,
        )
        for name, data in there
        if data is not None
    ]


def _section(source: _Source, pictures: list[Picture]) -> Section:
    run, history = source.run, source.history
    trainer = run.config.trainer
    done = int(history.steps[-1]) if len(history.steps) else 0
    facts = {
        "data set": run.dataset,
        "task": f"{run.task.task} ({run.task.name})",
        "agent": run.config.agent.name,
        "updates": f"{done:,} of {trainer.steps:,}",
        "training seeds": str(trainer.seeds),
        "batch size": f"{trainer.batch_size:,}",
        "best return in the data": f"{run.facts.return_max:.3g}",
        "environment": run.task.environment_id,
    }
    if done and "updates_per_s" in history.names():
        speed = np.nanmean(history.scalar("updates_per_s"), axis=0)
        facts["speed"] = f"{np.median(speed):,.3g} updates/s"
        # Summed over log points: a resumed run's clock starts again.
        spent = np.diff(history.steps, prepend=0) / speed
        facts["training time"] = format_duration(float(spent.sum()))
    if done and "input_blocked_share" in history.names():
        waited = 100 * float(np.nanmean(history.scalar("input_blocked_share")))
        facts["time waiting for data"] = f"{waited:.1f} %"
    facts.update(run.versions)
    return Section(
        title=source.name,
        facts=facts,
        remarks=_remarks(source),
        pictures=pictures,
        configuration=json.dumps(dataclasses.asdict(run.config), indent=2),
    )


def _remarks(source: _Source) -> list[str]:
    """What a reader must know before believing the pictures."""
    remarks = []
    if any(each.successes is None for each in source.own):
        remarks.append(
            "The environment reports no success: there is no success rate, and what "
            "can be compared are the returns."
        )
    if not source.own:
        remarks.append(
            "This run was not evaluated yet: there is no result. Run `python -m "
            "trainer evaluate` on its folder, then write the report again."
        )
    if not len(source.history.steps):
        remarks.append("This run logged nothing yet: there are no training curves.")
    timings = {each.success_timing for each in source.evaluations}
    if timings - {source.run.task.success_timing}:
        remarks.append(
            f"Success was judged with timing {' and '.join(sorted(timings))} in the "
            f"environment and {source.run.task.success_timing} in the rewards trained "
            "on: lengths and returns differ by a step."
        )
    return remarks


def _aggregate_tables(sources: Sequence[_Source]) -> list[Table]:
    """Methods over tasks, in the tasks they are trained for."""
    found = aggregates.aggregate(
        pool_methods(
            [
                EvaluatedRun(source.folder.name, source.run, source.own)
                for source in sources
            ]
        )
    )
    if not found:
        return []
    rows = [each.cells for each in found]
    return [Table("Over tasks", aggregates.HEADINGS, rows, aggregates.NOTES)]


def _paper_tables(sources: Sequence[_Source]) -> list[Table]:
    """The paper's row of every task that was run, all methods."""
    wanted = dict.fromkeys((each.run.dataset, each.run.task.task) for each in sources)
    rows = []
    for dataset, task in wanted:
        found = [find_paper_result(dataset, task, method) for method in METHODS]
        numbers = [str(result) for result in found if result is not None]
        if numbers:
            rows.append((dataset, str(task), *numbers))
    if not rows:
        return []
    headings = ("data set", "task", *METHODS)
    return [Table("The paper's numbers for these tasks", headings, rows, _PAPER_NOTES)]


def _markdown(
    title: str,
    tables: Sequence[Table],
    sections: Sequence[Section],
    sources: Sequence[_Source],
) -> str:
    parts = [f"# {escape(title)}"]
    for table in tables:
        parts.append(f"## {escape(table.title)}")
        parts.append(to_table(table.headings, table.rows))
        parts.append("\n".join(f"- {note}" for note in table.notes))  # Ours.
    for section, source in zip(sections, sources, strict=True):
        parts.append(f"## {escape(section.title)}")
        parts.append(
            "\n".join(
                f"- {escape(label)}: {escape(value)}"
                for label, value in section.facts.items()
            )
        )
        parts += section.remarks
        for picture in section.pictures:
            file = urllib.parse.quote(f"{source.name}/{picture.name}.{picture.kind}")
            parts.append(f"![{picture.name}]({file})\n\n{picture.caption}")
    return "\n\n".join(parts) + "\n"
