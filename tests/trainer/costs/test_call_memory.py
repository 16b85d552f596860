"""The formula for a chip's memory against what compilers planned."""

import pytest

from trainer.agents.vast_config import VASTConfig
from trainer.config import load
from trainer.costs import published
from trainer.costs.call_memory import Shape, Spread, call_bytes

CUBE = "configs/cube-single-play.toml"
# Of the store, on each chip, in all of them.
ROWS = 1_001_000


# Memory of a chip as `python -m trainer compile --json` gave it.
@pytest.mark.parametrize(
    ("config", "batch_size", "spread", "seeds", "planned"),
    [
        (CUBE, 512, Spread(), 1, 338_770_432),  # v5e-1
        (CUBE, 512, Spread(), 1, 285_868_924),  # h100-1
        (CUBE, 512, Spread(), 8, 1_087_544_744),  # h100-1
        (CUBE, 4096, Spread(), 1, 594_156_156),  # h100-1
        (CUBE, 512, Spread(fsdp=8), 1, 229_656_188),  # h100-8
        (CUBE, 512, Spread(tensor=8), 1, 219_690_876),  # h100-8
        (CUBE, 512, Spread(data=4, fsdp=2), 1, 244_370_812),  # h100-8
    ],
)
def test_it_is_within_15_percent_of_what_was_compiled(
    config: str, batch_size: int, spread: Spread, seeds: int, planned: int
) -> None:
    agent = load(config, task=1).agent
    assert isinstance(agent, VASTConfig)
    facts = published.DATASETS["cube-single-play"]
    shape = Shape(
        agent,
        batch_size,
        observation_dim=facts.observation_dim,
        action_dim=facts.action_dim,
    )
    expected = call_bytes(shape, spread, seeds=seeds, rows=ROWS)
    assert expected == pytest.approx(planned, rel=0.15)
