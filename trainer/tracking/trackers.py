"""Opens the trackers that a run's configuration asks for, and writes to all of them."""

from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console

from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import Run
from trainer.tracking.copies import GrowingFiles
from trainer.tracking.json_lines import JsonLines
from trainer.tracking.tracker import Json, Tracker


class Trackers:
    """All trackers of one start of a run.

    They are JSON lines, and TensorBoard and Weights & Biases if the run's configuration
    asks for them.

    Args:
        folder: Folder of the run.
        run: The run.
        resume_step: Step that training continues from.
        console: Console for warnings of damaged or missing earlier records.

    Raises:
        MissingPackageError: If the package of a tracker is not installed.
        StorageError: If Weights & Biases refuses the run or cannot be reached.
        OSError: If files cannot be written.
    """

    def __init__(
        self, folder: RunFolder, run: Run, *, resume_step: int, console: Console
    ) -> None:
        self._trackers: list[Tracker] = []
        self._files = GrowingFiles(folder)
        # If a tracker cannot be opened, those before it are closed.
        with ExitStack() as on_error:
            on_error.callback(self.close)
            self._open(folder, run, resume_step, console)
            on_error.pop_all()

    def _open(
        self, folder: RunFolder, run: Run, resume_step: int, console: Console
    ) -> None:
        tracking, local = run.config.tracking, self._files.local
        lines = JsonLines(
            local / METRICS_FILE,
            resume_step=resume_step,
            folder=folder,
            console=console,
        )
        self._trackers.append(lines)
        # Each is imported only if the configuration asks for it, because training needs
        # neither package.
        if tracking.tensorboard:
            from trainer.tracking.tensorboard import TensorBoard

            self._trackers.append(TensorBoard(local, folder, run, kept=lines.kept))
        if tracking.wandb != "off":
            from trainer.tracking.weights_and_biases import WeightsAndBiases

            self._trackers.append(WeightsAndBiases(folder, run, sent=lines.reached))
        # A long run's records take memory that nothing needs any more.
        lines.kept.clear()

    def write(self, records: Sequence[Json]) -> None:
        """Writes the records of a log point to all trackers."""
        # JSON lines are first: they alone can restore all others.
        for tracker in self._trackers:
            tracker.write(records)
        self._files.update()

    def sync(self) -> None:
        """Waits until the run's folder has all files, as they are now."""
        self._files.finish()

    def close(self) -> None:
        """Closes all trackers."""
        for tracker in self._trackers:
            tracker.close()
        self._files.close()
