"""A page to browse a store by: what it is, its episodes, pictures and frames.

It is one HTML file. What it says of single episodes comes from a sample of bounded
size, and the page says which.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.domains import frames
from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.frames import PhysicsState
from pipeline.domains.opengl import NoBackendError
from pipeline.inspection import charts, histograms, tables
from pipeline.inspection.sample import Episode, Sample, draw_sample, read_places
from pipeline.pages.elements import Picture, Table
from pipeline.pages.html import render
from pipeline.store import arrays, schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from pipeline.store.units import format_size

_FRAMES, _FRAME_SIZE = 8, (320, 240)
_EPISODES_IN_A_TABLE = 50
# More are too many for a picture or a table: the page says how many are left out.
_MAX_TASKS, _MAX_DISCOUNTS, _MAX_ROWS = 6, 3, 200


@dataclass(frozen=True)
class StorePage:
    """All that a store's page says.

    Attributes:
        title: Heading.
        lead: What the store holds, in a sentence.
        facts: Label and value of what to know of it.
        notes: What was read, and what is left out.
        pictures: In order.
        strip: What the frames are of, or why there are none.
        frames: Of one episode, in order.
        episodes: Tables of the sampled episodes, by title.
        tables: Of tasks, fields, parts and history.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    pictures: Sequence[Picture]
    strip: str
    frames: Sequence[Picture]
    episodes: Sequence[Table]
    tables: Sequence[Table]


def write_page(store: Store, path: str) -> None:
    """Writes a store's page.

    Args:
        store: The store.
        path: File to write, ending in ``.html``; replaced if it is there.

    Raises:
        UsageError: If the path does not end so, or its folder is not there.
        MissingPackageError: If matplotlib or jinja2 is not installed.
        DataFormatError: If the store holds no episodes, or bytes are damaged.
    """
    if not path.endswith(".html"):
        raise UsageError(f"--html: expected a file name ending in .html, got {path}")
    if not Path(path).resolve().parent.is_dir():
        raise UsageError(
            f"--html: expected a file in a folder that exists, got {path}; make its "
            "folder first"
        )
    if not store.manifest.parts:
        raise DataFormatError(f"{store.root}: expected episodes to show, got none")
    page = render("pipeline.inspection", "store.html.j2", make_page(store))
    Path(path).write_text(page, encoding="utf-8")


def make_page(store: Store) -> StorePage:
    """Gathers what a store's page says."""
    manifest, facts = store.manifest, tables.store_facts(store)
    sample = draw_sample(store)
    names = [task.name for task in manifest.tasks[:_MAX_TASKS]]
    strip, images = _strip(store, sample)
    rows = sum(part.rows for part in manifest.parts)
    return StorePage(
        title=f"Store of {manifest.dataset}",
        lead=(
            f"{rows:,} rows in {sample.total:,} episodes of {manifest.dataset}, made "
            f"in {manifest.environment_id}, with rewards of {_tasks_in_words(store)}."
        ),
        facts=_facts(store, facts),
        notes=_notes(store, sample),
        pictures=_pictures(store, sample, names),
        strip=strip,
        frames=images,
        episodes=_episode_tables(store, sample),
        tables=_tables(facts),
    )


def _tasks_in_words(store: Store) -> str:
    count = len(store.manifest.tasks)
    return "one task" if count == 1 else f"{count} tasks"


def _facts(store: Store, facts: Mapping[str, Any]) -> dict[str, str]:
    manifest = store.manifest
    tasks = len(manifest.tasks)
    row_bytes = sum(arrays.row_bytes(f, tasks) for f in manifest.fields.values())
    splits = {
        f"{split} split": f"{counts['rows']:,} rows, {counts['episodes']:,} episodes"
        for split, counts in facts["splits"].items()
    }
    return {
        "data set": manifest.dataset,
        "environment": manifest.environment_id,
        **splits,
        "tasks": str(tasks),
        "discounts": ", ".join(f"{each:g}" for each in manifest.discounts) or "none",
        "size before compression": format_size(
            row_bytes * sum(part.rows for part in manifest.parts)
        ),
        "parts": f"{len(manifest.parts):,}",
        "format": str(manifest.format_version),
        "fingerprint": manifest.fingerprint()[:16],
    }


def _notes(store: Store, sample: Sample) -> list[str]:
    manifest, notes = store.manifest, []
    shown = len(sample.episodes)
    if shown == sample.total:
        notes.append("Every episode was looked at.")
    else:
        notes.append(
            f"{shown:,} of {sample.total:,} episodes were looked at, at even distances "
            "from the first to the last: the table, the map and what is said of solved "
            "stretches and returns are of these. Lengths are those of all episodes, "
            "ranges those of all rows to train on."
        )
    cut = sum(each.read < each.length for each in sample.episodes)
    if cut:
        notes.append(
            f"{cut:,} of these are longer than was read; of them the first "
            f"{max(each.read for each in sample.episodes):,} rows were."
        )
    for what, held, most in (
        ("tasks", len(manifest.tasks), _MAX_TASKS),
        ("discounts", len(manifest.discounts), _MAX_DISCOUNTS),
    ):
        if held > most:
            notes.append(f"Drawn and tabled are the first {most} of {held} {what}.")
    return notes


def _pictures(store: Store, sample: Sample, names: Sequence[str]) -> list[Picture]:
    manifest, episodes = store.manifest, sample.episodes
    steps = sample.lengths - 1
    pictures = [
        Picture(
            "lengths",
            "How many episodes are how long; all of the store.",
            f"A histogram of episode lengths from {steps.min():,} to {steps.max():,} "
            "steps.",
            charts.make_svg(
                charts.draw_lengths, histograms.count_lengths(sample.lengths)
            ),
        )
    ]
    floor = histograms.floor_of(store)
    if floor is not None:
        places = histograms.count_places(floor, read_places(store, episodes))
        pictures.append(
            Picture(
                "places",
                "How often the recorded body was where on the floor of the maze.",
                "A map of the maze's floor, darker where more recorded rows are.",
                charts.make_svg(charts.draw_places, places),
            )
        )
    for name in (schema.OBSERVATIONS, schema.ACTIONS):
        known = manifest.statistics.get(name)
        if known is None or not known.mean:
            continue
        drawn = len(charts.choose_components(known))
        some = f" {drawn} of {len(known.mean):,} are drawn, at even distances."
        pictures.append(
            Picture(
                name,
                f"What each component of {name} ranges over, and its mean."
                + (some if drawn < len(known.mean) else ""),
                f"Ranges and means of {drawn} components of {name}, from "
                f"{min(known.minimum):.3g} to {max(known.maximum):.3g}.",
                charts.make_svg(charts.draw_ranges, name, known),
            )
        )
    if any(len(rows) for each in episodes for rows in each.stretches[: len(names)]):
        pictures.append(
            Picture(
                "solved",
                "How long the recorded body stays where a task is solved: the share "
                "of solved stretches that are as long as x or longer.",
                "Falling curves, one for each task, over the length of solved "
                "stretches.",
                charts.make_svg(charts.draw_stretches, episodes, names),
            )
        )
    for index, discount in enumerate(manifest.discounts[:_MAX_DISCOUNTS]):
        if names:
            pictures.append(
                Picture(
                    f"returns-{discount:g}",
                    "The share of episodes whose discounted return, from their first "
                    "row on, is as high as x or higher.",
                    f"Falling curves, one for each task, over returns at discount "
                    f"{discount:g}.",
                    charts.make_svg(
                        charts.draw_returns, episodes, names, discount, index
                    ),
                )
            )
    return pictures


def _episode_tables(store: Store, sample: Sample) -> list[Table]:
    """Sampled episodes, so many at a time."""
    manifest = store.manifest
    headings = ["episode", "split", "part, first row", "steps"]
    tasks = [task.task for task in manifest.tasks[:_MAX_TASKS]]
    discounts = manifest.discounts[:_MAX_DISCOUNTS]
    for task in tasks:
        headings += [f"task {task}: rewards", f"task {task}: solved"]
        headings += [f"task {task}: return at {each:g}" for each in discounts]
    made = []
    for first in range(0, len(sample.episodes), _EPISODES_IN_A_TABLE):
        group = sample.episodes[first : first + _EPISODES_IN_A_TABLE]
        ends = [f"{each.number:,} ({each.split})" for each in (group[0], group[-1])]
        made.append(
            Table(
                f"Episodes {' to '.join(dict.fromkeys(ends))}",
                headings,
                [_episode_row(each, len(tasks), len(discounts)) for each in group],
                folded=first > 0,
            )
        )
    return made


def _episode_row(episode: Episode, tasks: int, discounts: int) -> list[str]:
    row = [
        f"{episode.number:,}",
        episode.split,
        f"{episode.part.index}, {episode.first:,}",
        f"{episode.length - 1:,}",
    ]
    for task in range(tasks):
        solved = episode.stretches[task]
        times = "once" if len(solved) == 1 else f"{len(solved):,} times"
        row.append(f"{episode.rewards[task]:,.5g}")
        rows = "1 row" if solved.sum() == 1 else f"{solved.sum():,} rows"
        row.append(f"{rows}, {times}" if len(solved) else "never")
        row += [f"{episode.returns[each, task]:.5g}" for each in range(discounts)]
    return row


def _tables(facts: Mapping[str, Any]) -> list[Table]:
    made = []
    if facts["tasks"]:
        made.append(
            Table(
                "Tasks",
                ("task", "name", "evaluated in", "solved rows", "returns"),
                [_task_row(task) for task in facts["tasks"][:_MAX_ROWS]],
            )
        )
    statistics = facts["statistics"]
    fields = []
    for name, field in facts["fields"].items():
        known = statistics.get(name)
        row = "one a task" if field["per"] == "row_and_task" else str(field["shape"])
        figures = ""
        if known is not None and known["mean"]:
            figures = f"{min(known['minimum']):.3g} to {max(known['maximum']):.3g}"
        fields.append((name, field["dtype"], row, figures, field["unit"]))
    made.append(Table("Fields", ("field", "dtype", "a row", "range", "unit"), fields))
    parts = [
        (
            part["folder"],
            part["split"],
            f"{part['episodes']:,}",
            f"{part['rows']:,}",
            f"{part['name']}, episode {part['first_episode']:,} on",
        )
        for part in facts["parts"]
    ]
    notes = [f"The first {_MAX_ROWS} of {len(parts):,}."]
    made.append(
        Table(
            "Parts",
            ("part", "split", "episodes", "rows", "from"),
            parts[:_MAX_ROWS],
            notes if len(parts) > _MAX_ROWS else (),
            folded=True,
        )
    )
    if facts["history"]:
        steps = [
            (
                step["command"],
                ", ".join(f"{name} {at}" for name, at in step["versions"].items()),
            )
            for step in facts["history"][-_MAX_ROWS:]
        ]
        made.append(Table("History", ("command", "with"), steps))
    return made


def _task_row(task: Mapping[str, Any]) -> tuple[str, ...]:
    share = task["solved_share"]
    ranges = (
        f"{low:.5g} to {high:.5g} at {discount}"
        for discount, (low, high) in task["return_range"].items()
    )
    return (
        str(task["task"]),
        task["name"].replace("_", " "),
        task["environment_id"],
        "" if share is None else f"{share:.3%}",
        "; ".join(ranges),
    )


def _strip(store: Store, sample: Sample) -> tuple[str, list[Picture]]:
    """What frames show, and they; or why there are none."""
    fields, tasks = store.manifest.fields, store.manifest.tasks
    missing = [name for name in ("qpos", "qvel") if name not in fields]
    if missing:
        return (
            "No frames: the store holds no physics states to draw "
            f"({' and '.join(missing)} are not among its fields).",
            [],
        )
    environment = (
        TaskEnvironment(tasks[0].environment_id, tasks[0].environment_kwargs)
        if tasks
        else TaskEnvironment(store.manifest.environment_id)
    )
    episode = _choose_episode(sample.episodes)
    rows = np.unique(np.linspace(0, episode.read - 1, _FRAMES).round().astype(int))
    states = [_read_state(store, episode, row) for row in rows.tolist()]
    width, height = _FRAME_SIZE
    try:
        images = frames.draw_states(environment, states, width=width, height=height)
    except NoBackendError as error:
        return f"No frames: {error}.", []
    where = f"episode {episode.number:,} of the {episode.split} split"
    pictures = [
        Picture(
            f"frame-{row}",
            f"row {row:,}",
            f"{environment.environment_id} at row {row:,} of {where}.",
            _to_jpeg(image),
            "jpg",
        )
        for row, image in zip(rows.tolist(), images, strict=True)
    ]
    goal = f", with the goal of task {tasks[0].task}" if tasks else ""
    return (
        f"{where.capitalize()}, {episode.length - 1:,} steps, drawn from its physics "
        f"states in {environment.environment_id}{goal}.",
        pictures,
    )


def _choose_episode(episodes: Sequence[Episode]) -> Episode:
    """The one that solves most tasks, the first of several."""
    return max(episodes, key=lambda each: sum(len(x) > 0 for x in each.stretches))


def _read_state(store: Store, episode: Episode, row: int) -> PhysicsState:
    first = episode.first + row

    def read(name: str) -> Any:
        return store.read_rows(episode.part, name, first, first + 1)[0]

    has_buttons = "button_states" in store.manifest.fields
    return PhysicsState(
        read("qpos").astype(np.float64),
        read("qvel").astype(np.float64),
        read("button_states").ravel().astype(np.int64) if has_buttons else None,
    )


def _to_jpeg(image: frames.Image) -> bytes:
    # Matplotlib, which draws the rest, brings it.
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
