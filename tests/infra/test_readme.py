"""Pages about launching show what commands print and what was measured."""

import dataclasses
import re
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from infra.cli import PROGRAM, main
from infra.commands.evaluate import Evaluate
from infra.commands.pipeline import Pipeline
from infra.commands.train import Train
from infra.estimates.measured import MEASURED
from pipeline import front_door
from tests.infra.command_lines import REGISTRY, VERSION

PAGES = ("docs/how-to/clusters.md", "infra/README.md")


def blocks(file: str) -> list[str]:
    """Fenced blocks of a page, with continued lines joined."""
    text = Path(file).read_text()
    return [
        block.replace("\\\n", " ")
        for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def commands(block: str) -> list[list[str]]:
    """Complete commands of infra in a block; a synopsis is not complete."""
    lines = [
        line.replace("REGISTRY", REGISTRY)
        for line in block.splitlines()
        if line.startswith("python -m infra") and not set(line) & {"{", "["}
    ]
    return [shlex.split(line, comments=True)[3:] for line in lines]


def rates() -> dict[str, float]:
    """Rows a second in the pipeline's benchmarks, by the label of their row."""
    text = Path("tests/benchmarks/README.md").read_text()
    found = re.findall(r"^\| ([^|]+?) \| (?:[^|]*, )?([\d,]+) rows/s \|", text, re.M)
    return {name: float(rate.replace(",", "")) for name, rate in found}


@pytest.mark.parametrize("file", PAGES)
def test_commands_that_are_shown_are_taken(file):
    shown = [command for block in blocks(file) for command in commands(block)]
    assert {command[0] for command in shown} >= {"doctor"}
    for command in shown:
        front_door.parse(PROGRAM, command)


def test_what_a_dry_run_is_said_to_take_is_what_it_prints(capsys):
    pages = blocks("docs/how-to/clusters.md")
    dry = [
        (command, pages[index + 1])
        for index, block in enumerate(pages)
        for command in commands(block)
        if "--dry-run" in command
    ]
    assert dry
    for command, shown in dry:
        capsys.readouterr()
        assert main(command) == 0
        assert capsys.readouterr().err == shown


def test_images_that_are_shown_are_of_this_version():
    for file in PAGES:
        named = re.findall(r"vast-rl-[-a-z]+:(\S+)", Path(file).read_text())
        assert named
        assert set(named) == {VERSION}


def test_targets_of_the_stages_are_those_there_are():
    text = Path("infra/README.md").read_text()
    for name, stage in (
        ("pipeline", Pipeline),
        ("train", Train),
        ("evaluate", Evaluate),
    ):
        row = re.search(rf"^\| {name} \| (.*?) \|", text, re.MULTILINE)
        assert row is not None
        targets = get_args(get_type_hints(stage)["target"])
        assert tuple(re.findall(r"`(\w+)`", row[1])) == targets


def test_rates_are_those_of_the_benchmarks():
    measured = rates()
    collected = {
        f"collect {rate.dataset}, one core": rate.rows_per_s
        for rate in MEASURED.collect_rates
    }
    assert collected == {
        name: rate for name, rate in measured.items() if name.startswith("collect")
    }
    text = Path("tests/benchmarks/README.md").read_text()
    for rate in MEASURED.collect_rates:
        assert f"\n| {rate.dataset} | {rate.store_row_bytes:g} |\n" in text
    text = " ".join(text.split())
    sharded = f"20,020,000 rows, local runner | {MEASURED.shard_rows_per_s:,.0f} rows/s"
    assert sharded in text
    assert f"labels of 5 tasks | {MEASURED.store_share} of its size" in text


def test_rates_of_updates_stand_where_they_say():
    for rate in MEASURED.update_rates:
        file, _, what = rate.source.partition(", ")
        command = re.match(r"`[^`]+`", what)
        assert command is not None, dataclasses.asdict(rate)
        lines = [
            line for line in Path(file).read_text().splitlines() if command[0] in line
        ]
        wanted = (f"{rate.updates_per_s:g} updates/s", f"width {rate.agent['width']}")
        assert any(all(each in line for each in wanted) for line in lines)
