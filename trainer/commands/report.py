"""``report``: learning curves and tables of runs."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, say, working
from pipeline.store.units import format_count


@dataclass(frozen=True)
class Report:
    """Draw learning curves, and a table of results beside the paper's.

    Attributes:
        runs: Folders of runs, local paths or gs://bucket/path; for many runs on gs://,
            a pattern in quotes, such as 'gs://bucket/runs/*'.
        out: Folder for report.html, SVG and CSV files, a local path or
            gs://bucket/path.
    """

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")
    ]
    out: str

    def execute(self, output: Output) -> int:
        """Writes the report, and prints the outcome of each run.

        For VAST, the error of G at the first and the last record is printed as well,
        because its stitching policy is weighted by the returns that G predicts.
        """
        from trainer.report.report import write_report
        from trainer.runs.evaluations import read_evaluations
        from trainer.runs.folder import find_runs, open_folder
        from trainer.runs.history import read_history
        from trainer.runs.run import read_run
        from trainer.runs.success_rates import describe_outcome, select_own

        # A run that is named twice, such as by two patterns, is one run.
        folders = list(
            dict.fromkeys(folder for runs in self.runs for folder in find_runs(runs))
        )
        count = format_count(len(folders), "run")
        with working(output.progress, f"writing the report on {count}"):
            written = write_report(folders, open_folder(self.out))
        # Pictures are many, and the page has them all.
        pages = [str(path) for path in written if path.suffix != ".svg"]
        pictures = len(written) - len(pages)
        say(output.results, f"wrote {', '.join(pages)} and {pictures} pictures")
        for folder in folders:
            run = read_run(folder)
            own = select_own(run, read_evaluations(folder))
            outcome = describe_outcome(run, own)
            say(output.results, f"{folder}: {outcome}")
            steps, errors = read_history(folder).mean("segment_error")
            if len(steps):
                say(
                    output.results,
                    f"{folder}: G is off the stored window returns by {errors[0]:.2f} "
                    f"at update {steps[0]:,} and by {errors[-1]:.2f} at update "
                    f"{steps[-1]:,}",
                )
        return 0
