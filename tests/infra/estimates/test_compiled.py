import dataclasses
import json

import pytest

from infra.errors import LaunchError
from infra.estimates import compiled, scale
from tests.infra.compiled_call import FIGURES
from trainer.agents.vast_config import VASTConfig
from trainer.costs import call_memory
from trainer.costs.accelerators import ACCELERATORS


def test_figures_are_read(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(FIGURES))
    call = compiled.read_figures(path)
    assert (call.topology, call.axes) == ("v6e-16", "fsdp=16")
    assert (call.width, call.batch_size, call.seeds) == (512, 512, 1)
    assert (call.memory_bytes, call.memory_share) == (8e9, 0.25)
    assert call.sent_bytes == 5e6
    assert (call.least_ms, call.bound) == (0.2, "links")
    assert dataclasses.replace(call, mesh={"fsdp": 1}).axes == "one chip"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"memory": 1, "bound": 2}'])
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(LaunchError, match=r"costs.json: expected figures of"):
        compiled.read_figures(path)
    with pytest.raises(LaunchError, match="nowhere: expected figures of"):
        compiled.read_figures(tmp_path / "nowhere")


def test_formulas_stand_beside_where_they_hold():
    call = compiled.parse_figures(FIGURES)
    shape = call_memory.Shape(
        VASTConfig(), batch_size=512, observation_dim=28, action_dim=5
    )
    expected = compiled.compute_expected(call)
    spread = call_memory.Spread(fsdp=16)
    chip = ACCELERATORS["v6e"]
    memory = call_memory.call_bytes(shape, spread, chip, rows=1000)
    assert expected.memory_bytes == memory
    assert expected.sent_bytes == scale.sent_bytes(shape, spread, chip)
    cpus = compiled.compute_expected(dataclasses.replace(call, accelerator="cpu"))
    assert cpus.memory_bytes > memory  # CPUs gather in float32.
    config = FIGURES["config"]
    other = {**config, "agent": {**config["agent"], "name": "iql"}}
    nothing = compiled.Expected(None, None)
    assert compiled.compute_expected(dataclasses.replace(call, config=other)) == nothing
    mine = {**config, "dataset": "my-robot"}
    assert compiled.compute_expected(dataclasses.replace(call, config=mine)) == nothing
