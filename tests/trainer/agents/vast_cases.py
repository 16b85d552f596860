"""One small VAST agent and a batch for it, shared by its tests."""

import dataclasses

import numpy as np

from tests.stores import make_facts, make_table, numbers_of
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.data.horizon_windows import HorizonBatch

CONFIG = VASTConfig(discount=0.9, max_horizon=5, width=8, depth=2, flow_steps=3)
TABLE = make_table([30, 40], discount=0.9, S=4, A=2)


def make_agent(**changes) -> VAST:
    return VAST(dataclasses.replace(CONFIG, **changes), make_facts(TABLE))


def make_batch(agent: VAST, size: int = 16) -> HorizonBatch:
    sampler = agent.sampler
    index = sampler.draw(TABLE, numbers_of(TABLE, sampler, size))
    batch = sampler.gather(TABLE.observations, TABLE.actions, index)
    # Solved windows are rare and the interesting case: make some.
    solved = np.arange(size) % 4 == 0
    return batch._replace(
        alive_k=np.where(solved, 0, batch.alive_k).astype(np.float32),
        alive_i=np.where(np.arange(size) % 8 == 0, 0, batch.alive_i).astype(np.float32),
    )
