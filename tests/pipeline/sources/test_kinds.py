import pytest

from pipeline.cli import main
from pipeline.sources import kinds
from pipeline.sources.detection import find_sources
from pipeline.store.errors import UsageError


def test_every_kind_is_listed(capsys):
    assert main(["inputs"]) == 0
    shown = capsys.readouterr().out
    for name, _, layout in kinds.list_kinds():
        assert f"\n{name} " in shown
        assert layout.split()[0].strip("`:,") in shown


def test_a_kind_that_is_none_is_told_which_there_are():
    with pytest.raises(UsageError, match="rlds, or module:Class, got 'rlbench'"):
        find_sources("a", dataset="x", kind="rlbench")
