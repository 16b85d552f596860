"""The agent of the documentation is built from the page's blocks, and trained."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.trainer.agents.baseline_cases import FACTS, TINY, make_batch
from trainer.errors import ConfigError
from trainer.step.update import make_update

PAGE = Path(__file__).parents[2] / "docs/how-to/own-agent.md"


def test_the_shown_agent_learns_to_clone(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    for block in blocks:
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    from clone import Clone
    from clone_config import CloneConfig

    with pytest.raises(ConfigError, match=r"agent.clone_weight: expected above 0"):
        CloneConfig(clone_weight=0)
    agent = Clone(CloneConfig(**TINY, learning_rate=1e-2), FACTS)
    state, batch = agent.init(jax.random.key(0)), make_batch(agent)
    update = jax.jit(make_update(agent))
    losses = []
    for step in range(60):
        state, metrics = update(state, batch, jax.random.key(step))
        losses.append(float(metrics.mean["clone_loss"]))
    assert losses[-1] < 0.6 * losses[0]
    acted = agent.act(state.params, batch.observations[0], jax.random.key(0))
    assert acted.shape == (agent.chunk, FACTS.action_dim)
    assert np.abs(acted).max() <= 1
    assert agent.action_values(state.params, batch, jax.random.key(0)).shape == (8,)
