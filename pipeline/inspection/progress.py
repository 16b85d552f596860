"""Shows the progress of a command that writes or checks a store.

Progress of writing is read from the store: it is the only thing that all runners,
processes and machines share. Finished parts count in full, and unfinished parts by the
objects that are already written.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console

from pipeline.assembly.plan import StorePlan
from pipeline.output import say
from pipeline.store import arrays, files, manifest, schema

_BAR_EVERY_S = 0.5
_LINE_EVERY_S = 10.0
# Measuring lists the files of a store, 100,000 at 1,000 parts, which takes seconds on a
# disk of a network or in a bucket. The pause after it is so many times as long.
_PAUSE = 10.0


def rows_written(plan: StorePlan) -> tuple[int, int]:
    """Counts the rows and parts of a store that are already written.

    Args:
        plan: Plan of the store.

    Returns:
        Rows, in unfinished parts those whose observations are written; and the number
        of finished parts.
    """
    field = plan.parts[0].fields[schema.OBSERVATIONS]
    names = files.list_names(plan.root, "parts")
    shards: Counter[str] = Counter()
    finished = set()
    for folder, _, name in (each.partition("/") for each in names):
        if name == manifest.PART_MANIFEST:
            finished.add(folder)
        # zarr keeps the shards of an array below c/, beside its zarr.json.
        shards[folder] += name.startswith(f"{schema.OBSERVATIONS}/c/")
    rows = parts = 0
    for part in plan.parts:
        folder = part.folder.removeprefix("parts/")
        written = shards[folder] * arrays.shard_rows(field)
        whole = part.episodes.rows
        rows += whole if folder in finished else min(written, whole)
        parts += folder in finished
    return rows, parts


@contextlib.contextmanager
def show_progress(
    console: Console,
    label: str,
    total: int,
    measure: Callable[[], tuple[int, str]],
    *,
    unit: str = "rows",
) -> Iterator[None]:
    """Shows progress while its block runs: a bar on a terminal, lines elsewhere.

    All of the work counts as done once the block ends without an error.

    Args:
        console: Console to print to.
        label: Name of the work.
        total: Amount of the whole work, in ``unit``.
        measure: Returns the amount that is done, and a remark; called from another
            thread.
        unit: Unit of the amounts.
    """
    done = threading.Event()
    whole = False

    def measure_or_end() -> tuple[int, str]:
        count, remark = measure()
        # Parts that bad episodes left nothing of have no files to count.
        return (total if whole else count), remark

    # A log file would be filled by the redrawing of a bar.
    show = _show_bar if console.is_terminal else _show_lines
    thread = threading.Thread(
        target=show,
        args=(console, label, total, measure_or_end, unit, done),
        daemon=True,
    )
    thread.start()
    try:
        yield
        whole = True
    finally:
        done.set()
        thread.join()


def _show_bar(
    console: Console,
    label: str,
    total: int,
    measure: Callable[[], tuple[int, str]],
    unit: str,
    done: threading.Event,
) -> None:
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.TextColumn(
            "{task.completed:,.0f} of {task.total:,.0f}", markup=False
        ),
        rich.progress.TextColumn("{task.fields[remark]}", markup=False),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{label}, {unit}", total=total, remark="")
        (count, _), took_s = _time(measure)
        rate = Rate(count)
        while True:
            # The event is read before the count, so that the last update is complete.
            last = done.wait(max(_BAR_EVERY_S, _PAUSE * took_s))
            (count, remark), took_s = _time(measure)
            text = f"{rate.of(count):,.0f} {unit}/s  {remark}"
            bar.update(task, completed=count, remark=text)
            if last:
                return


def _show_lines(
    console: Console,
    label: str,
    total: int,
    measure: Callable[[], tuple[int, str]],
    unit: str,
    done: threading.Event,
) -> None:
    # Work of an earlier start must not count as speed.
    (count, _), took_s = _time(measure)
    rate = Rate(count)
    while not done.wait(max(_LINE_EVERY_S, _PAUSE * took_s)):
        (count, remark), took_s = _time(measure)
        speed = rate.of(count)
        left = f"{(total - count) / speed:,.0f} s left" if speed else "no estimate yet"
        say(
            console,
            f"{label}: {count:,} of {total:,} {unit}, {speed:,.0f} {unit}/s, {remark}, "
            f"{left}",
        )


def _time(measure: Callable[[], tuple[int, str]]) -> tuple[tuple[int, str], float]:
    """Measures progress, and how many seconds that takes."""
    start_s = time.perf_counter()
    return measure(), time.perf_counter() - start_s


class Rate:
    """Units per second since the start, not counting units from an earlier start.

    Args:
        before: Units that an earlier start of the command has already done.
    """

    def __init__(self, before: int) -> None:
        self._before = before
        self._start_s = time.monotonic()

    def of(self, count: int) -> float:
        """Computes the rate at which ``count`` units are done by now."""
        elapsed_s = max(1e-9, time.monotonic() - self._start_s)
        return max(0, count - self._before) / elapsed_s
