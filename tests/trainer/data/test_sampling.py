import numpy as np

from tests.stores import make_table, numbers_of
from trainer.data.horizon_windows import HorizonSampler

SAMPLER = HorizonSampler(max_horizon=6, discount=0.99)


def draw(table, sampler=SAMPLER, size=4096, seed=0, step=0):
    return sampler.draw(table, numbers_of(table, sampler, size, seed=seed, step=step))


def test_batches_depend_on_data_sampler_seed_and_step_only() -> None:
    table = make_table([50, 60])
    again = make_table([50, 60])
    first = draw(table, step=7)
    np.testing.assert_array_equal(first.rows, draw(again, step=7).rows)
    others = [
        draw(table, step=8),
        draw(table, step=7, seed=1),
        draw(make_table([50, 60], task=2), step=7),
        draw(table, HorizonSampler(max_horizon=5, discount=0.99), step=7),
    ]
    for other in others:
        assert (other.rows != first.rows).mean() > 0.9
