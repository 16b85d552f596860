"""Pages that are written by hand agree with the code that they describe."""

import re
from pathlib import Path

import jax
import pytest

from docs.generate import tables
from pipeline.sources import kinds
from tests.trainer.agents.baseline_cases import FACTS, TABLE, numbers_of
from trainer.agents.registry import AGENTS, make_agent

METRICS = Path(__file__).parents[2] / "docs/reference/metrics.md"
# Between them they log every name that any agent logs.
AGENTS_WITH_ALL = ("vast", "iql", "value-flows", "floq")


def logged(name: str) -> set[str]:
    """Names that an agent logs; nothing is computed."""
    settings = {"name": name, "width": 8, "depth": 1, "discount": TABLE.discount}
    if name == "vast":
        settings["max_horizon"] = 5
    agent = make_agent(AGENTS[name].config(**settings), FACTS)
    index = agent.sampler.draw(TABLE, numbers_of(TABLE, agent.sampler, 8))
    batch = agent.sampler.gather(TABLE.observations, TABLE.actions, index)

    def measure(key: jax.Array):
        state = agent.init(key)
        return agent.total_loss(state.params, state.targets, batch, key)[1]

    metrics = jax.eval_shape(measure, jax.random.key(0))
    return {*metrics.mean, *metrics.max, *metrics.total}


def section(text: str, heading: str) -> set[str]:
    """Names in the first column of a section's table."""
    (part,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.M)
    rows = re.findall(r"^\| (`[^|]*) \|", part, re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_metric_is_explained_and_none_that_is_not_logged():
    text = METRICS.read_text()
    every, vast, others = (
        section(text, heading) for heading in ("Every agent", "VAST", "Other agents")
    )
    by_agent = {name: logged(name) for name in AGENTS_WITH_ALL}
    assert by_agent["vast"] == every | vast
    assert (
        set.union(*(by_agent[name] for name in AGENTS_WITH_ALL[1:])) == every | others
    )


def test_tables_are_the_code_s():
    table = tables.make_kinds().splitlines()
    assert len(table) == 2 + len(kinds.list_kinds())
    codes = [line.split(" | ")[0] for line in tables.make_exit_codes().splitlines()[2:]]
    assert codes == [f"| {code}" for code in (0, 1, 2, 3, 4, 75, 130)]
    assert tables.fill("a\n{{ exit codes }}\nb").splitlines()[1] == "| code | meaning |"
    with pytest.raises(KeyError, match="no such"):
        tables.fill("{{ no such }}")
