"""The feed: what it yields is a function of the step, however it is read."""

import json

import grain
import jax
import numpy as np
import pytest

from tests.stores import make_table
from trainer.data.feed import BatchSource, gather_on_device, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.data.horizon_windows import HorizonBatch, HorizonSampler

SAMPLER = HorizonSampler(max_horizon=6, discount=0.99)
TABLE = make_table([40, 50])


def feed(
    *, calls: int = 2, where: str = "host", seeds: tuple[int, ...] = (0, 1), **options
) -> grain.DatasetIterator:
    source = BatchSource(
        TABLE, SAMPLER, seeds=seeds, batch_size=8, steps=24, gather=where == "host"
    )
    return make_feed(source, FeedConfig(**options), updates_per_call=calls)


def flat(batches: list) -> list[np.ndarray]:
    """Concatenates calls along their updates."""
    return jax.tree.leaves(
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    )


def assert_equal(one: list, other: list) -> None:
    assert len(one) > 0
    for a, b in zip(flat(one), flat(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shapes_and_length() -> None:
    calls = list(feed())
    assert len(calls) == 12
    assert isinstance(calls[0], HorizonBatch)
    assert calls[0].observations.shape == (2, 2, 8, 6)
    assert calls[0].rewards.shape == (2, 2, 8)


@pytest.mark.parametrize(
    ("threads", "prefetch", "calls"), [(1, 1, 2), (4, 16, 2), (2, 4, 6)]
)
def test_threads_prefetch_and_fusing_change_nothing(
    threads: int, prefetch: int, calls: int
) -> None:
    assert_equal(
        list(feed(threads=2, prefetch_calls=4)),
        list(feed(threads=threads, prefetch_calls=prefetch, calls=calls)),
    )


def test_a_seed_does_not_depend_on_its_neighbours() -> None:
    together, alone = list(feed(seeds=(0, 1))), list(feed(seeds=(1,)))
    np.testing.assert_array_equal(
        together[0].observations[:, 1], alone[0].observations[:, 0]
    )
    assert (together[0].observations[:, 0] != alone[0].observations[:, 0]).any()


def test_state_is_one_number_and_restores_at_every_position() -> None:
    whole = list(feed())
    for position in range(len(whole)):
        iterator = feed()
        for _ in range(position):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        assert list(state.values()) == [position]
        fresh = feed(threads=1, prefetch_calls=1)
        fresh.set_state(state)
        assert_equal(list(fresh), whole[position:])


def test_both_gathers_are_equal() -> None:
    rows = jax.device_put((TABLE.observations, TABLE.actions))
    gather = jax.jit(SAMPLER.gather)
    on_device = [
        jax.tree.map(np.asarray, gather(*rows, index)) for index in feed(where="device")
    ]
    assert_equal(list(feed(where="host")), on_device)


def test_a_cpu_gathers_on_the_host_unless_told_otherwise() -> None:
    assert not gather_on_device(FeedConfig(), TABLE)
    assert gather_on_device(FeedConfig(gather="device"), TABLE)
    with pytest.raises(ValueError, match=r"feed\.threads"):
        FeedConfig(threads=0)
