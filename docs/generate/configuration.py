"""Generates the page of all configuration fields from their dataclasses."""

import dataclasses
from typing import Any

from docs.generate.commands import NAMES
from docs.generate.tables import make_table
from trainer.agents.registry import AGENTS
from trainer.agents.settings import ranges
from trainer.commands.fields import read_meanings
from trainer.config import Config

PAGE = "reference/configuration.md"


def make_page() -> str:
    """Writes the page.

    Returns:
        Markdown: a table for each group of fields, with meaning, default and range.
    """
    lines = [
        "# Configuration fields",
        "",
        "A configuration is one TOML file with a table for each section below. Every "
        "field is also an option of `train` and `compile`, written as `--trainer.steps "
        "8000`, and can be overridden in the file of a sweep. This page is generated "
        "from the dataclasses of the fields. `python -m trainer describe CONFIG` "
        "prints the values of one configuration. Defaults are those of the code; the "
        "files under `configs/` override them for each data set.",
        "",
        "`dataset` stands above all tables and names the data set that the "
        "configuration is meant for. A table `[tasks.N.agent]` overrides `[agent]` for "
        "task N.",
        "",
    ]
    groups = read_meanings(Config)
    for member in dataclasses.fields(Config):
        # dataset is a single name, and the fields of agent depend on the agent.
        if member.name in ("dataset", "agent"):
            continue
        kind: Any = member.type
        lines += [f"## {member.name}", "", groups[member.name], ""]
        lines += _table(kind, prefix=member.name)
    lines += [
        "## agent",
        "",
        "The settings of the agent. `agent.name` names the agent; the default is "
        "`vast`.",
        "",
    ]
    # Agents that share a dataclass, such as ifql and ifql-n, share a table.
    seen: dict[type[Any], list[str]] = {}
    for name, kind_of_agent in AGENTS.items():
        seen.setdefault(kind_of_agent.config, []).append(name)
    for kind, names in seen.items():
        lines += [f"### {', '.join(names)}", ""]
        lines += _table(kind, prefix="agent")
    return "\n".join(lines)


def _table(kind: type[Any], *, prefix: str) -> list[str]:
    meanings, allowed = read_meanings(kind), ranges(kind)
    rows = []
    for each in dataclasses.fields(kind):
        default = each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        rows.append(
            (
                f"`{prefix}.{each.name}`",
                meanings[each.name].replace("``", "`"),
                f"`{default}`",
                str(allowed.get(each.name, "")),
            )
        )
    table = make_table(("field", "meaning", "default", "allowed"), rows)
    return [NAMES, "", table, "", "</div>", ""]
