from pathlib import Path

import pytest

import pipeline
from pipeline.cli import main
from pipeline.sources import kinds
from pipeline.sources.detection import find_sources
from pipeline.store.errors import UsageError

README = Path(pipeline.__file__).parents[1] / "README.md"


def test_the_readme_s_table_is_that_of_the_kinds():
    lines = README.read_text().splitlines()
    start = lines.index("| `--source` | INPUT | what is read of it |")
    rows = [
        f"| `{name}` | {files} | {layout} |" for name, files, layout in kinds.table()
    ]
    assert lines[start + 2 : start + 2 + len(rows)] == rows
    assert not lines[start + 2 + len(rows)].startswith("|")


def test_every_kind_is_listed(capsys):
    assert main(["inputs"]) == 0
    shown = capsys.readouterr().out
    for name, _, layout in kinds.table():
        assert f"\n{name} " in shown
        assert layout.split()[0].strip("`:,") in shown


def test_a_kind_that_is_none_is_told_which_there_are():
    with pytest.raises(UsageError, match="rlds, or module:Class, got 'rlbench'"):
        find_sources("a", dataset="x", kind="rlbench")
