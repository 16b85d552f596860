"""TensorBoard's files: a sub-run for each training seed, and one for its evaluations.

```
RUN/tensorboard/seed-0/              figures of training, settings, histograms
RUN/tensorboard/seed-0/evaluation/   success, return and length of its evaluations
```

The files are drawn from ``metrics.jsonl`` and ``evaluations.jsonl``, which hold all of
it: a start writes them anew and deletes those of before, so no point is there twice.
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
    HISTOGRAMS,
    Json,
    evaluation_figures,
    group_tag,
    hyperparameters,
)

# TensorBoard knows its files by this; it reads those of a folder in order of name.
_PREFIX = "events.out.tfevents."
# What its table of hyperparameters compares runs by.
_COMPARED = (
    MetricName(group=EVALUATION, tag="evaluation/success"),
    MetricName(group=EVALUATION, tag="evaluation/return"),
    MetricName(tag="losses/loss"),
)


class TensorBoard:
    """Scalars, histograms and settings for TensorBoard, on disk with each log point.

    There is no thread to die unseen: one that a full disk has ended would take nothing
    from its queue, and what is put there then waits for ever.

    Args:
        local: Folder on this machine that stands for the run's.
        folder: RUN, where files of earlier starts are deleted.
        run: The run.
        kept: Records from before that are still true.
    """

    def __init__(
        self, local: Path, folder: RunFolder, run: Run, *, kept: Sequence[Json]
    ) -> None:
        seeds = run.config.trainer.seed_range
        before = _event_files(folder)
        self._files: dict[int, BinaryIO] = {}
        self._ends: dict[int, Summary] = {}
        for seed in seeds:
            place = local / TENSORBOARD / f"seed-{seed}"
            place.mkdir(parents=True, exist_ok=True)
            self._files[seed] = (place / _new_name()).open("wb")
            experiment, start, self._ends[seed] = _settings(run, seed)
            opening = [*_opening(), Event(summary=experiment), Event(summary=start)]
            self._files[seed].write(_framed(opening))
        self.write(kept)
        for name in before:
            if f"/{EVALUATION}/" not in name:
                files.delete(str(folder), name)

    def write(self, records: Sequence[Json]) -> None:
        """Adds the finite numbers of records, and histograms."""
        for record in records:
            # A file that was edited may hold records of other seeds.
            if record.get("seed") in self._files:
                self._files[record["seed"]].write(_framed([_event(record)]))
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Says that the run has ended, and closes the files."""
        for seed, file in self._files.items():
            with file:
                file.write(_framed([Event(summary=self._ends[seed])]))


def write_evaluations(folder: RunFolder, run: Run) -> None:
    """Writes anew what TensorBoard shows of a run's evaluations.

    Several processes may evaluate one run at once: whoever finds that there are more
    evaluations than it has drawn draws them all again.

    Args:
        folder: RUN.
        run: The run.
    """
    drawn: list[Evaluation] = []
    while (evaluations := read_evaluations(folder)) != drawn:
        drawn = evaluations
        points: dict[tuple[int, int, int], Evaluation] = {}
        for each in sorted(drawn, key=lambda each: each.episodes):
            points[each.step, each.task, each.seed] = each  # That of most episodes.
        for seed in sorted({each.seed for each in drawn}):
            place = f"{TENSORBOARD}/seed-{seed}/{EVALUATION}"
            before = files.list_names(str(folder), place)
            name = _new_name()
            events = (
                _evaluation_event(point, own_task=run.task.task)
                for _, point in sorted(points.items())
                if point.seed == seed
            )
            folder.write(f"{place}/{name}", _framed([*_opening(), *events]))
            for other in before:
                if other.startswith(_PREFIX) and other < name:
                    files.delete(str(folder), f"{place}/{other}")


def _event_files(folder: RunFolder) -> list[str]:
    """Event files of a run, those of versions that had no sub-runs among them."""
    names = files.list_names(str(folder), TENSORBOARD)
    return [
        f"{TENSORBOARD}/{name}"
        for name in names
        if name.rpartition("/")[2].startswith(_PREFIX)
    ]


def _new_name() -> str:
    """Sorts after all names of before."""
    return f"{_PREFIX}{time.time_ns()}"


def _opening() -> list[Event]:
    """A board that is open forgets what it has read of earlier files."""
    start = SessionLog(status=SessionLog.START)
    return [Event(file_version="brain.Event:2"), Event(step=0, session_log=start)]


def _settings(run: Run, seed: int) -> tuple[Summary, Summary, Summary]:
    """Settings of a seed for the table of hyperparameters: all, begun, ended."""
    experiment, start, end = hparams(hyperparameters(run, seed), {})
    (value,) = experiment.value
    content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    content.experiment.metric_infos.extend(MetricInfo(name=name) for name in _COMPARED)
    value.metadata.plugin_data.content = content.SerializeToString()
    return experiment, start, end


def _event(record: Json) -> Event:
    """What is drawn of one record: numbers, and counts by horizon."""
    values = [
        Summary.Value(tag=group_tag(name), simple_value=value)
        for name, value in record.items()
        if name not in ("step", "seed")
        and isinstance(value, int | float)
        and np.isfinite(value)
    ]
    values += [
        Summary.Value(tag=tag, histo=_histogram(record[name]))
        for name, tag in HISTOGRAMS.items()
        if sum(record.get(name) or ()) > 0
    ]
    return Event(step=record["step"], summary=Summary(value=values))


def _histogram(counts: Sequence[float]) -> HistogramProto:
    """Counts of 0, 1, ..., each in a bucket of its own."""
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


def _evaluation_event(evaluation: Evaluation, *, own_task: int) -> Event:
    values = [
        Summary.Value(tag=tag, simple_value=value)
        for tag, value in evaluation_figures(evaluation, own_task=own_task).items()
    ]
    return Event(step=evaluation.step, summary=Summary(value=values))


def _framed(events: Iterable[Event]) -> bytes:
    """Events as TensorBoard reads them: each with its length, and checksums of both."""
    framed = bytearray()
    for event in events:
        event.wall_time = time.time()
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            framed += part + struct.pack("<I", masked_crc32c(part))
    return bytes(framed)
