import os

import pytest

from pipeline.commands.append import Append
from pipeline.commands.arguments import Engine
from pipeline.commands.shard import Shard

BEAM = Engine(runner="DirectRunner")


def run(monkeypatch, command, method):
    """Runs a command up to its planning, and returns the command that plans."""
    planning = []
    monkeypatch.setattr(
        type(command), method, lambda self, *_: planning.append(self) or 0
    )
    assert command.execute_with(None, []) == 0
    return planning[0]


@pytest.mark.parametrize("source", [None, "npz", "my:Walks"])
@pytest.mark.parametrize("engine", [BEAM, Engine()])
def test_a_reader_of_one_s_own_gets_its_input_as_typed(monkeypatch, source, engine):
    inputs, store = ("table:walks", "table:more"), "store"
    given = {"input": inputs[0], "val": inputs[1], "source": source, "engine": engine}
    shard = Shard(**given, dataset="walk", out=store)
    shard = run(monkeypatch, shard, "_shard")
    append = run(monkeypatch, Append(**given, store=store), "_append")
    if engine is BEAM:
        store = os.path.abspath(store)
        if source != "my:Walks":
            inputs = tuple(map(os.path.abspath, inputs))
    assert (shard.input, shard.val, shard.out) == (*inputs, store)
    assert (append.input, append.val, append.store) == (*inputs, store)
