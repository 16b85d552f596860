"""TensorBoard's event files: a sub-run for each training seed, and for its evaluations.

```
RUN/tensorboard/seed-0/              metrics of training, settings, histograms
RUN/tensorboard/seed-0/evaluation/   success, return and length of evaluations
```

Everything in these files is also in ``metrics.jsonl`` and ``evaluations.jsonl``. So a
restart writes new files from those and deletes the old ones, and no point is shown
twice. Evaluations are a sub-run of their own because TensorBoard reads the files of a
folder one after another and never returns to an earlier one: two processes that write
at the same time need two folders.
"""

import os
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tensorboardX.proto.api_pb2 import MetricInfo, MetricName
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import hparams

from pipeline.store import files
from trainer.runs.evaluations import Evaluation, read_evaluations
from trainer.runs.folder import TENSORBOARD, RunFolder
from trainer.runs.run import Run
from trainer.tracking.tracker import (
    EVALUATION,
    Json,
    list_evaluation_points,
    list_histogram_points,
    list_hyperparameters,
    list_scalar_points,
)

# TensorBoard recognises its files by this prefix, and reads those of a folder in the
# order of their names.
_PREFIX = "events.out.tfevents."
# Metrics that the table of hyperparameters shows for each run.
_COMPARED = (
    MetricName(group=EVALUATION, tag="evaluation/success"),
    MetricName(group=EVALUATION, tag="evaluation/return"),
    MetricName(tag="losses/loss"),
)


class TensorBoard:
    """Writes scalars, histograms and settings for TensorBoard.

    Args:
        local: Folder on this machine to write into, for the run's folder.
        folder: Folder of the run, in which files of earlier starts are deleted.
        run: The run.
        kept: Records of earlier starts that remain valid.
    """

    # Events are framed here and not by `tensorboardX.SummaryWriter`, which writes in a
    # thread: if a full disk ends the thread, it empties its queue no more, and training
    # waits for ever to put a record there. Here the error reaches the training loop.

    def __init__(
        self, local: Path, folder: RunFolder, run: Run, *, kept: Sequence[Json]
    ) -> None:
        seeds = run.config.trainer.seed_range
        old_names = _list_event_files(folder)
        self._files: dict[int, BinaryIO] = {}
        self._ends: dict[int, Summary] = {}
        for seed in seeds:
            sub_run = local / TENSORBOARD / f"seed-{seed}"
            sub_run.mkdir(parents=True, exist_ok=True)
            self._files[seed] = (sub_run / _new_name()).open("wb")
            experiment, start, self._ends[seed] = _settings(run, seed)
            opening = [
                *_opening_events(),
                Event(summary=experiment),
                Event(summary=start),
            ]
            self._files[seed].write(_frame(opening))
        self.write(kept)
        # Old files are deleted last, so that a board that is open is never empty.
        for name in old_names:
            if f"/{EVALUATION}/" not in name:
                files.delete(str(folder), name)

    def write(self, records: Sequence[Json]) -> None:
        """Appends the finite numbers of records, and their histograms."""
        for record in records:
            # A file that was edited may hold records of other seeds.
            if record.get("seed") in self._files:
                self._files[record["seed"]].write(_frame([_event(record)]))
        for file in self._files.values():
            file.flush()
            # A full disk is reported here at the latest, at the step that filled it.
            os.fsync(file.fileno())

    def close(self) -> None:
        """Marks the run as ended, and closes the files."""
        for seed, file in self._files.items():
            with file:
                file.write(_frame([Event(summary=self._ends[seed])]))


def write_evaluations(folder: RunFolder, run: Run) -> None:
    """Rewrites the event files of a run's evaluations.

    Args:
        folder: Folder of the run.
        run: The run.
    """
    # Several processes may evaluate one run at once. Each writes all evaluations, and
    # repeats that as long as others have been added meanwhile, so the last file is
    # complete without a lock.
    written: list[Evaluation] = []
    while (evaluations := read_evaluations(folder)) != written:
        written = evaluations
        points: dict[tuple[object, ...], Evaluation] = {}
        # A checkpoint may have several evaluations; the one of most episodes is shown.
        for evaluation in sorted(written, key=lambda evaluation: evaluation.episodes):
            key = (evaluation.step, evaluation.task, evaluation.seed)
            points[*key, *evaluation.conditions] = evaluation
        for seed in sorted({evaluation.seed for evaluation in written}):
            sub_run = f"{TENSORBOARD}/seed-{seed}/{EVALUATION}"
            old_names = files.list_names(str(folder), sub_run)
            name = _new_name()
            events = (
                _evaluation_event(point, run)
                for _, point in sorted(points.items())
                if point.seed == seed
            )
            folder.write(f"{sub_run}/{name}", _frame([*_opening_events(), *events]))
            # Another process may have written a later file, which has to stay.
            for old in old_names:
                if old.startswith(_PREFIX) and old < name:
                    files.delete(str(folder), f"{sub_run}/{old}")


def _list_event_files(folder: RunFolder) -> list[str]:
    """Lists a run's event files, including those of versions without sub-runs."""
    names = files.list_names(str(folder), TENSORBOARD)
    return [
        f"{TENSORBOARD}/{name}"
        for name in names
        if name.rpartition("/")[2].startswith(_PREFIX)
    ]


def _new_name() -> str:
    """Makes a name that sorts after all earlier names."""
    return f"{_PREFIX}{time.time_ns()}"


def _opening_events() -> list[Event]:
    """Makes the first events of a file."""
    # At the start of a session, a board that is open forgets the points that it has
    # read from earlier files.
    start = SessionLog(status=SessionLog.START)
    return [Event(file_version="brain.Event:2"), Event(step=0, session_log=start)]


def _settings(run: Run, seed: int) -> tuple[Summary, Summary, Summary]:
    """Makes a seed's summaries for the table of hyperparameters.

    Returns:
        Summaries of the experiment, of its start with all settings, and of its end.
    """
    experiment, start, end = hparams(list_hyperparameters(run, seed), {})
    # `hparams` lists only metrics that it is given a number of, and there is none yet.
    (value,) = experiment.value
    content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    content.experiment.metric_infos.extend(MetricInfo(name=name) for name in _COMPARED)
    value.metadata.plugin_data.content = content.SerializeToString()
    return experiment, start, end


def _event(record: Json) -> Event:
    """Makes the event of a record: its finite numbers, and its counts by horizon."""
    values = [
        Summary.Value(tag=tag, simple_value=number)
        for tag, number in list_scalar_points(record).items()
    ]
    values += [
        Summary.Value(tag=tag, histo=_histogram(counts))
        for tag, counts in list_histogram_points(record).items()
    ]
    return Event(step=record["step"], summary=Summary(value=values))


def _histogram(counts: Sequence[float]) -> HistogramProto:
    """Makes a histogram of counts of 0, 1, ..., with a bucket for each number."""
    # The protocol wants the moments of the numbers besides their counts.
    weights, at = np.asarray(counts, float), np.arange(len(counts))
    held = at[weights > 0]
    return HistogramProto(
        min=float(held[0]),
        max=float(held[-1]),
        num=float(weights.sum()),
        sum=float(weights @ at),
        sum_squares=float(weights @ at**2),
        bucket_limit=(at + 0.5).tolist(),
        bucket=weights.tolist(),
    )


def _evaluation_event(evaluation: Evaluation, run: Run) -> Event:
    values = [
        Summary.Value(tag=tag, simple_value=value)
        for tag, value in list_evaluation_points(evaluation, run).items()
    ]
    return Event(step=evaluation.step, summary=Summary(value=values))


def _frame(events: Iterable[Event]) -> bytes:
    """Encodes events as TensorFlow records.

    A record is the length of the event and the event, each followed by its checksum.
    """
    framed = bytearray()
    for event in events:
        event.wall_time = time.time()
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            framed += part + struct.pack("<I", masked_crc32c(part))
    return bytes(framed)
