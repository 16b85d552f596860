"""The formula for a chip's memory, compared with the plans of compilers."""

import pytest

from trainer.agents.vast_config import VASTConfig
from trainer.config import load
from trainer.costs import published
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.call_memory import Shape, Spread, call_bytes

CUBE = "configs/cube-single-play.toml"
WIDE = "configs/wide/cube-triple-play-{}.toml"


# Memory of a chip that `python -m trainer compile --json` reported.
@pytest.mark.parametrize(
    ("config", "batch_size", "spread", "seeds", "chip", "planned"),
    [
        (CUBE, 512, Spread(), 1, "v5e", 338_770_432),
        (CUBE, 512, Spread(), 8, "v5e", 1_097_019_392),
        (CUBE, 512, Spread(fsdp=8), 1, "v5e", 203_162_112),
        (CUBE, 512, Spread(data=4, fsdp=4), 1, "v5e", 213_733_376),
        (WIDE.format(4096), 1024, Spread(fsdp=16), 1, "v5e", 1_875_145_728),
        (WIDE.format(8192), 1024, Spread(fsdp=16), 1, "v6e", 4_416_942_848),
        (WIDE.format(4096), 1024, Spread(data=4, fsdp=16), 1, "v5p", 1_575_362_304),
        (WIDE.format(8192), 1024, Spread(data=4, fsdp=16), 1, "v5p", 4_171_486_464),
        (CUBE, 512, Spread(), 1, "h100", 285_868_924),
        (CUBE, 512, Spread(), 8, "h100", 1_087_544_744),
        (CUBE, 4096, Spread(), 1, "h100", 594_156_156),
        (CUBE, 512, Spread(fsdp=8), 1, "h100", 229_656_188),
        (CUBE, 512, Spread(tensor=8), 1, "h100", 219_690_876),
        (CUBE, 512, Spread(data=4, fsdp=2), 1, "h100", 242_485_116),
        (WIDE.format(4096), 1024, Spread(fsdp=8), 1, "h100", 3_188_698_964),
    ],
)
def test_it_is_within_15_percent_of_what_was_compiled(
    config: str, batch_size: int, spread: Spread, seeds: int, chip: str, planned: int
) -> None:
    loaded = load(config, task=1)
    assert isinstance(loaded.agent, VASTConfig)
    facts = published.DATASETS[loaded.dataset]
    shape = Shape(
        loaded.agent,
        batch_size,
        observation_dim=facts.observation_dim,
        action_dim=facts.action_dim,
    )
    expected = call_bytes(
        shape, spread, ACCELERATORS[chip], seeds=seeds, rows=facts.rows
    )
    assert expected == pytest.approx(planned, rel=0.15)
