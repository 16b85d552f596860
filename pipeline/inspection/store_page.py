"""A page to browse a store by: what it holds, its episodes, pictures and frames.

The page is one HTML file. What it says about single episodes comes from a sample of
bounded size, so that a store of any size can be looked at; the page names the sample.
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
from pipeline.store import arrays, files, schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from pipeline.store.units import format_count, format_size

_FRAMES, _FRAME_SIZE = 8, (320, 240)
_EPISODES_IN_A_TABLE = 50
# A picture or a table of more could not be read; the page says how many it leaves out.
_MAX_TASKS, _MAX_DISCOUNTS, _MAX_ROWS = 6, 3, 200


@dataclass(frozen=True)
class StorePage:
    """Everything that a store's page shows.

    Attributes:
        title: Heading.
        lead: What the store holds, in a sentence.
        facts: Label and value of the figures at the top.
        notes: What the page read, and what it leaves out.
        tables: Tables of tasks, fields and parts.
        history: Commands that made and changed the store, each with the versions of
            what was installed.
        pictures: Pictures, in order.
        strip: Which episode the frames show, or why there are no frames.
        frames: Frames of that episode, in order.
        episodes: Tables of the sampled episodes.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    tables: Sequence[Table]
    history: Sequence[tuple[str, str]]
    pictures: Sequence[Picture]
    strip: str
    frames: Sequence[Picture]
    episodes: Sequence[Table]


def write_page(store: Store, path: str) -> None:
    """Writes a store's page.

    Args:
        store: The store.
        path: File to write, ending in ``.html``; an older one is replaced.

    Raises:
        UsageError: If the path does not end in ``.html``, or its folder is missing.
        MissingPackageError: If matplotlib or jinja2 is not installed.
        DataFormatError: If the store holds no episodes, or bytes are damaged.
    """
    if not path.endswith(".html"):
        raise UsageError(f"--html: expected a file name ending in .html, got {path}")
    if not Path(path).resolve().parent.is_dir():
        raise UsageError(
            f"--html: expected a file in a folder that exists, got {path}; make the "
            "folder first"
        )
    if not store.manifest.parts:
        raise DataFormatError(
            f"{store.root}: expected episodes to show, got none; leave --html out"
        )
    page = render("pipeline.inspection", "store.html.j2", make_page(store))
    files.write_local(path, page.encode())


def make_page(store: Store) -> StorePage:
    """Gathers what a store's page shows."""
    manifest, facts = store.manifest, tables.store_facts(store)
    sample = draw_sample(store)
    names = [task.name for task in manifest.tasks[:_MAX_TASKS]]
    # Drawing may fail on a machine without OpenGL; the page then says so.
    strip, images = _draw_frames(store, sample)
    rows = sum(part.rows for part in manifest.parts)
    return StorePage(
        title=f"Store of {manifest.dataset}",
        lead=(
            f"{rows:,} rows in {sample.total:,} episodes of {manifest.dataset}, "
            f"recorded in {manifest.environment_id}, with rewards of "
            f"{format_count(len(manifest.tasks), 'task')}."
        ),
        facts=_list_facts(store, facts),
        notes=_write_notes(store, sample),
        tables=_make_tables(facts),
        history=[
            (
                step["command"],
                ", ".join(f"{name} {at}" for name, at in step["versions"].items()),
            )
            for step in facts["history"][-_MAX_ROWS:]
        ],
        pictures=_draw_pictures(store, sample, names),
        strip=strip,
        frames=images,
        episodes=_make_episode_tables(store, sample),
    )


def _list_facts(store: Store, facts: Mapping[str, Any]) -> dict[str, str]:
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
        "format version": str(manifest.format_version),
        "fingerprint": manifest.fingerprint()[:16],
    }


def _write_notes(store: Store, sample: Sample) -> list[str]:
    manifest, notes = store.manifest, []
    read = len(sample.episodes)
    if read == sample.total:
        notes.append("This page is made from every episode of the store.")
    else:
        notes.append(
            f"This page is made from {read:,} of {sample.total:,} episodes, at even "
            "distances from the first to the last: the tables of episodes, the map, "
            "solved stretches and returns show these. Lengths are of all episodes, and "
            "ranges of all rows of the train split."
        )
    # A single episode may be as long as a data set.
    cut = sum(episode.read < episode.length for episode in sample.episodes)
    if cut:
        notes.append(
            f"{cut:,} of these episodes are too long to read whole: their first "
            f"{max(episode.read for episode in sample.episodes):,} rows were read."
        )
    for what, held, most in (
        ("tasks", len(manifest.tasks), _MAX_TASKS),
        ("discounts", len(manifest.discounts), _MAX_DISCOUNTS),
    ):
        if held > most:
            notes.append(
                f"Pictures and tables of episodes show the first {most} of {held} "
                f"{what}."
            )
    return notes


def _draw_pictures(store: Store, sample: Sample, names: Sequence[str]) -> list[Picture]:
    manifest, episodes = store.manifest, sample.episodes
    steps = sample.lengths - 1
    pictures = [
        Picture(
            "lengths",
            "Number of episodes by length, over the whole store.",
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
                "Number of recorded rows at each place of the maze, on a log scale.",
                "A map of the maze's floor, in a stronger colour where more rows are.",
                charts.make_svg(charts.draw_places, places),
            )
        )
    for name in (schema.OBSERVATIONS, schema.ACTIONS):
        known = manifest.statistics.get(name)
        if known is None or not known.mean:
            continue
        drawn = len(charts.choose_components(known))
        some = f" {drawn} of {len(known.mean):,} components are drawn, evenly chosen."
        pictures.append(
            Picture(
                name,
                f"Range, mean and standard deviation of each component of {name}."
                + (some if drawn < len(known.mean) else ""),
                f"Ranges and means of {drawn} components of {name}, from "
                f"{min(known.minimum):.3g} to {max(known.maximum):.3g}.",
                charts.make_svg(charts.draw_ranges, name, known),
            )
        )
    if any(
        len(rows) for episode in episodes for rows in episode.stretches[: len(names)]
    ):
        pictures.append(
            Picture(
                "solved",
                "How long a task stays solved: the share of solved stretches that "
                "have at least so many rows.",
                "Falling curves, one for each task, over the length of solved "
                "stretches.",
                charts.make_svg(charts.draw_stretches, episodes, names),
            )
        )
    for index, discount in enumerate(manifest.discounts[:_MAX_DISCOUNTS]):
        # A store without tasks has no returns.
        if names:
            pictures.append(
                Picture(
                    f"returns-{discount:g}",
                    "The share of episodes whose discounted return, from the first "
                    "row on, is at least so high.",
                    f"Falling curves, one for each task, over returns at discount "
                    f"{discount:g}.",
                    charts.make_svg(
                        charts.draw_returns, episodes, names, discount, index
                    ),
                )
            )
    return pictures


def _make_episode_tables(store: Store, sample: Sample) -> list[Table]:
    """Makes tables of the sampled episodes, of which only the first is unfolded."""
    manifest = store.manifest
    headings = ["episode", "steps"]
    tasks = [task.task for task in manifest.tasks[:_MAX_TASKS]]
    discounts = manifest.discounts[:_MAX_DISCOUNTS]
    for task in tasks:
        headings += [f"task {task}: rewards", f"task {task}: solved"]
        headings += [f"task {task}: return at {each:g}" for each in discounts]
    # Where the rows are, for those who read them with Store.read_rows.
    headings.append("part, first row")
    made = []
    for first in range(0, len(sample.episodes), _EPISODES_IN_A_TABLE):
        group = sample.episodes[first : first + _EPISODES_IN_A_TABLE]
        # A group of one episode has the same name at both ends.
        ends = dict.fromkeys(_name_episode(end) for end in (group[0], group[-1]))
        made.append(
            Table(
                f"Episodes {' to '.join(ends)}",
                headings,
                [_episode_row(member, len(tasks), len(discounts)) for member in group],
                folded=first > 0,
            )
        )
    return made


def _name_episode(episode: Episode) -> str:
    return f"{episode.split} {episode.number:,}"


def _episode_row(episode: Episode, tasks: int, discounts: int) -> list[str]:
    row = [_name_episode(episode), f"{episode.length - 1:,}"]
    for task in range(tasks):
        solved = episode.stretches[task]
        times = "once" if len(solved) == 1 else f"{len(solved):,} times"
        rows = "1 row" if solved.sum() == 1 else f"{solved.sum():,} rows"
        row.append(f"{episode.rewards[task]:,.5g}")
        row.append(f"{rows}, {times}" if len(solved) else "never")
        row += [f"{episode.returns[each, task]:.5g}" for each in range(discounts)]
    return [*row, f"{episode.part.index}, {episode.first:,}"]


def _make_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Makes the tables of tasks, fields and parts."""
    made = []
    if facts["tasks"]:
        discounts = facts["tasks"][0]["return_range"]
        returns = [f"return at {discount}" for discount in discounts]
        made.append(
            Table(
                "Tasks",
                ("task", "name", "solved rows", *returns, "evaluated in"),
                [_task_row(task) for task in facts["tasks"][:_MAX_ROWS]],
            )
        )
    statistics = facts["statistics"]
    fields = []
    for name, field in facts["fields"].items():
        known = statistics.get(name)
        shape = (
            "one per task" if field["per"] == "row_and_task" else str(field["shape"])
        )
        reached = ""
        if known is not None and known["mean"]:
            reached = f"{min(known['minimum']):.3g} to {max(known['maximum']):.3g}"
        fields.append((name, field["dtype"], shape, reached, field["unit"]))
    made.append(
        Table("Fields", ("field", "dtype", "shape of a row", "range", "unit"), fields)
    )
    parts = [
        (
            part["folder"].removeprefix("parts/") if part["rows"] else "none",
            part["split"],
            f"{part['episodes']:,}",
            f"{part['rows']:,}",
            f"{part['name']}, episode {part['first_episode']:,} on",
            ", ".join(f"{len(v):,} {reason}" for reason, v in part["dropped"].items()),
        )
        for part in (*facts["parts"], *facts["empty_parts"])
    ]
    notes = [f"The first {_MAX_ROWS} of {len(parts):,} parts."]
    made.append(
        Table(
            "Parts",
            ("part", "split", "episodes", "rows", "from", "left out"),
            parts[:_MAX_ROWS],
            notes if len(parts) > _MAX_ROWS else (),
            folded=True,
        )
    )
    return made


def _task_row(task: Mapping[str, Any]) -> tuple[str, ...]:
    share = task["solved_share"]
    return (
        str(task["task"]),
        task["name"].replace("_", " "),
        "" if share is None else f"{share:.3%}",
        *(f"{low:.5g} to {high:.5g}" for low, high in task["return_range"].values()),
        task["environment_id"],
    )


def _draw_frames(store: Store, sample: Sample) -> tuple[str, list[Picture]]:
    """Draws frames of one episode.

    Returns:
        Which episode the frames show, or why there are none; and the frames.
    """
    fields, tasks = store.manifest.fields, store.manifest.tasks
    missing = [name for name in ("qpos", "qvel") if name not in fields]
    if missing:
        return (
            "No frames: they are drawn from physics states, and the store has no "
            f"{' and no '.join(missing)}.",
            [],
        )
    environment = (
        TaskEnvironment(tasks[0].environment_id, tasks[0].environment_kwargs)
        if tasks
        else TaskEnvironment(store.manifest.environment_id)
    )
    episode = _choose_episode(sample.episodes)
    # An episode may have fewer rows than there are frames.
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
    """Chooses the first episode of those that solve the most tasks."""
    return max(
        episodes,
        key=lambda episode: sum(len(rows) > 0 for rows in episode.stretches),
    )


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
    # Pillow needs no extra of its own: Matplotlib, which draws the charts, requires it.
    from PIL import Image

    buffer = io.BytesIO()
    # PNG would make frames the largest part of the page.
    Image.fromarray(image).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
