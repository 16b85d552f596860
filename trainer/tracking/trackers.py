"""The trackers of one start of a run, as its configuration asks for them."""

from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console

from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import Run
from trainer.tracking.copies import GrowingFiles
from trainer.tracking.json_lines import JsonLines
from trainer.tracking.tracker import Json, Tracker


class Trackers:
    """JSON lines always, then TensorBoard and Weights & Biases if asked for.

    Args:
        folder: RUN.
        run: The run.
        resume_step: Step training goes on from.
        console: For what is damaged or missing of earlier records.

    Raises:
        MissingPackageError: If a tracker that was asked for is not installed.
        StorageError: If a service refuses the run.
        OSError: If files cannot be written.
    """

    def __init__(
        self, folder: RunFolder, run: Run, *, resume_step: int, console: Console
    ) -> None:
        self._trackers: list[Tracker] = []
        self._files = GrowingFiles(folder)
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
        # Imported where they are asked for: neither is needed to train.
        if tracking.tensorboard:
            from trainer.tracking.tensorboard import TensorBoard

            self._trackers.append(TensorBoard(local, folder, run, kept=lines.kept))
        if tracking.wandb != "off":
            from trainer.tracking.weights_and_biases import WeightsAndBiases

            self._trackers.append(WeightsAndBiases(folder, run, sent=lines.reached))
        lines.kept.clear()

    def write(self, records: Sequence[Json]) -> None:
        """Hands the records of a log point to all of them, JSON lines first."""
        for tracker in self._trackers:
            tracker.write(records)
        self._files.update()

    def sync(self) -> None:
        """Waits until the files are where the run is."""
        self._files.finish()

    def close(self) -> None:
        """Finishes all of them."""
        for tracker in self._trackers:
            tracker.close()
        self._files.close()
