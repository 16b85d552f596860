"""Tables for a terminal, and the facts of a store as one JSON object."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipeline.assembly.plan import StorePlan
from pipeline.output import say, show
from pipeline.store import schema
from pipeline.store.manifest import PartManifest, Statistics, returns_field
from pipeline.store.reader import Store
from pipeline.store.units import format_count, format_size

# A terminal has room for the first few components of a wide field.
_SHOWN_COMPONENTS = 3


def store_facts(store: Store) -> dict[str, Any]:
    """Gathers what `inspect` shows of a store.

    Args:
        store: The store.

    Returns:
        Values that JSON can hold.
    """
    manifest = store.manifest
    splits = {
        split: {
            "parts": len(manifest.parts_of(split)),
            "episodes": sum(part.episodes for part in manifest.parts_of(split)),
            "rows": store.rows(split),
        }
        for split in sorted({part.split for part in manifest.parts})
    }
    for counts in splits.values():
        # An episode of T transitions has T + 1 rows.
        counts["transitions"] = counts["rows"] - counts["episodes"]
    return {
        "root": store.root,
        "format_version": manifest.format_version,
        "fingerprint": manifest.fingerprint(),
        "dataset": manifest.dataset,
        "environment_id": manifest.environment_id,
        "splits": splits,
        "fields": {
            name: {
                "dtype": field.dtype,
                "shape": list(field.shape),
                "per": field.per,
                "unit": field.unit,
            }
            for name, field in manifest.fields.items()
        },
        "discounts": list(manifest.discounts),
        "tasks": [_task_facts(store, column) for column in range(len(manifest.tasks))],
        "parts": [_part_facts(part) for part in manifest.parts],
        "empty_parts": [_part_facts(part) for part in manifest.empty_parts],
        "statistics": {
            name: {
                "mean": list(known.mean),
                "std": list(known.std),
                "minimum": list(known.minimum),
                "maximum": list(known.maximum),
            }
            for name, known in manifest.statistics.items()
        },
        "action_scale": None
        if manifest.action_scale is None
        else dataclasses.asdict(manifest.action_scale),
        "reference_scores": manifest.reference_scores,
        "versions": manifest.versions,
        "skipped": manifest.skipped,
        "history": [dataclasses.asdict(step) for step in manifest.history],
    }


def _part_facts(part: PartManifest) -> dict[str, Any]:
    return {
        "folder": part.folder,
        "labels": part.labels,
        "split": part.split,
        "episodes": part.episodes,
        "rows": part.rows,
        "source": part.origin.source,
        "name": part.origin.name,
        "digest": part.origin.digest,
        "first_episode": part.origin.first_episode,
        "dropped": {k: list(v) for k, v in part.dropped.items()},
    }


def _task_facts(store: Store, column: int) -> dict[str, Any]:
    manifest, task = store.manifest, store.manifest.tasks[column]
    masks = manifest.statistics.get(schema.MASKS)
    ranges = {}
    for discount in manifest.discounts:
        sums = manifest.statistics.get(returns_field(discount))
        if sums is not None:
            ranges[str(discount)] = [sums.minimum[column], sums.maximum[column]]
    return {
        "task": task.task,
        "name": task.name,
        "environment_id": task.environment_id,
        "environment_kwargs": task.environment_kwargs,
        "recipe": task.recipe,
        "success_timing": task.success_timing,
        "goal": task.goal,
        # Masks are 0 in solved rows.
        "solved_share": None if masks is None else 1.0 - masks.mean[column],
        "return_range": ranges,
    }


def print_store(console: Console, store: Store) -> None:
    """Prints what a store holds.

    Args:
        console: Console to print to.
        store: The store.
    """
    facts = store_facts(store)
    show(
        console,
        Group(
            Text(f"{facts['dataset']}, made in {facts['environment_id']}", "bold"),
            Text(
                f"{facts['root']}, format {facts['format_version']}, fingerprint "
                f"{facts['fingerprint'][:16]}"
            ),
            Text(_describe_evaluation(facts)),
            _tabulate_splits(facts),
            _tabulate_fields(facts, store.manifest.statistics),
            _tabulate_tasks(facts),
            _tabulate_parts(facts),
            _tabulate_inputs(facts),
            *_list_history(facts),
        ),
    )


def _describe_evaluation(facts: dict[str, Any]) -> str:
    """Names the environments for evaluation, and the reference scores."""
    places = dict.fromkeys(
        each["environment_id"]
        + "".join(f" {k}={v}" for k, v in each["environment_kwargs"].items())
        for each in facts["tasks"]
    )
    text = f"evaluated in {', '.join(places)}"
    if facts["reference_scores"] is not None:
        low, high = facts["reference_scores"]
        text += f"; reference scores {low:g} and {high:g}"
    return text


def print_plan(console: Console, plan: StorePlan) -> None:
    """Prints what a command is going to write.

    Args:
        console: Console to print to.
        plan: Plan of the store.
    """
    first = plan.parts[0]
    splits: dict[str, list[int]] = {}
    for part in plan.parts:
        counts = splits.setdefault(part.split, [0, 0, 0])
        counts[0] += 1
        counts[1] += part.episodes.episodes
        counts[2] += part.episodes.rows
    lines = [
        f"{split}: {format_count(rows, 'row')} in {format_count(episodes, 'episode')}, "
        f"{format_count(parts, 'part')}, from {_origins(plan, split)}"
        for split, (parts, episodes, rows) in splits.items()
    ]
    lines.append(
        f"{format_count(len(first.tasks), 'task')}, discounts "
        f"{', '.join(str(each) for each in first.discounts) or 'none'}; "
        f"{format_size(plan.store_bytes)} before compression, a worker needs about "
        f"{format_size(plan.worker_bytes)} of memory"
    )
    if plan.single_row_episodes:
        episodes = format_count(plan.single_row_episodes, "episode")
        lines.append(f"{episodes} of one row, without a transition to train on")
    if plan.ignored:
        lines.append(f"not read: {', '.join(plan.ignored)}")
    lines += plan.notes
    lines += [f"left out: {reason}" for reason in plan.skipped.values()]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    say(console, f"Plan for {plan.root}", style="bold")
    for line in lines:
        say(console, f"  {line}")


def print_kinds(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Prints the kinds of inputs.

    Args:
        console: Console to print to.
        rows: Name, meaning of INPUT, and layout of each kind.
    """
    table = _new_table("--source", "INPUT", "what is read of it")
    for row in rows:
        # The site shows the same rows as Markdown; a terminal shows no backticks.
        table.add_row(*(each.replace("`", "") for each in row))
        table.add_section()
    show(console, table)


def _origins(plan: StorePlan, split: str) -> str:
    names = dict.fromkeys(p.origin.name for p in plan.parts if p.split == split)
    first = next(iter(names))
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more files"


def _tabulate_splits(facts: dict[str, Any]) -> Table:
    table = _new_table("split", "parts", "episodes", "rows", "transitions")
    for split, counts in facts["splits"].items():
        table.add_row(split, *(f"{count:,}" for count in counts.values()))
    return table


def _tabulate_fields(facts: dict[str, Any], statistics: dict[str, Statistics]) -> Table:
    table = _new_table("field", "dtype", "a row", "mean", "std", "range")
    for name, field in facts["fields"].items():
        row = "task" if field["per"] == "row_and_task" else str(field["shape"])
        known = statistics.get(name)
        figures = ("", "", "")
        if known is not None:
            figures = (
                _first_of(known.mean),
                _first_of(known.std),
                f"{min(known.minimum):.3g} to {max(known.maximum):.3g}",
            )
        table.add_row(name, field["dtype"], row, *figures)
    return table


def _tabulate_tasks(facts: dict[str, Any]) -> Table:
    table = _new_table("task", "name", "success of", "solved rows", "returns")
    for task in facts["tasks"]:
        share = task["solved_share"]
        ranges = (
            f"{low:.5g} to {high:.5g} at {discount}"
            for discount, (low, high) in task["return_range"].items()
        )
        table.add_row(
            str(task["task"]),
            task["name"],
            {"pre": "s_t", "post": "s_t+1"}[task["success_timing"]],
            "" if share is None else f"{share:.3%}",
            "\n".join(ranges),
        )
    return table


def _tabulate_parts(facts: dict[str, Any]) -> Table:
    table = _new_table("part", "split", "episodes", "rows", "from", "dropped")
    for part in (*facts["parts"], *facts["empty_parts"]):
        dropped = (f"{len(v)} {reason}" for reason, v in part["dropped"].items())
        table.add_row(
            part["folder"] if part["rows"] else "none",
            part["split"],
            f"{part['episodes']:,}",
            f"{part['rows']:,}",
            f"{part['name']}, episode {part['first_episode']} on",
            ", ".join(dropped),
        )
    return table


def _tabulate_inputs(facts: dict[str, Any]) -> Table:
    table = _new_table("input", "kind", "episodes", "digest")
    # A large input makes many parts, and is listed once.
    inputs: dict[tuple[str, str, str], int] = {}
    for part in (*facts["parts"], *facts["empty_parts"]):
        origin = (part["name"], part["source"], part["digest"])
        inputs[origin] = inputs.get(origin, 0) + part["episodes"]
    for (name, source, digest), episodes in inputs.items():
        table.add_row(name, source, f"{episodes:,}", f"{digest[:19]}...")
    return table


def _list_history(facts: dict[str, Any]) -> list[Text]:
    """Lists the commands that made and changed the store, with installed versions."""
    # Stores of format version 1 have no history, only the versions that made them.
    made = [{"command": "made", "versions": facts["versions"]}]
    return [
        Text(f"{step['command']}, with {_list_versions(step['versions'])}")
        for step in facts["history"] or made
    ]


def _new_table(*headings: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        # Folding keeps names whole, so that they can be copied from the terminal.
        table.add_column(heading, overflow="fold")
    return table


def _first_of(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{value:.2g}" for value in values[:_SHOWN_COMPONENTS])
    return f"{shown}, ..." if len(values) > _SHOWN_COMPONENTS else shown


def _list_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
