"""The compiled call: same numbers on any mesh, for any neighbours, in any fusing."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.stores import make_facts, make_table
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.data.feed import BatchSource, make_feed
from trainer.data.feed_config import FeedConfig
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import TrainState, abstract_state, init_state, read_step

TABLE = make_table([60, 70], S=4, A=2)
AGENT = VAST(VASTConfig(width=8, depth=1, flow_steps=2), make_facts(TABLE))
STEPS, BATCH = 20, 16
# float32: sums over a batch are taken in another order on another mesh, and Adam
# divides by the root of small second moments.
TOLERANCE = {"rtol": 2e-3, "atol": 2e-5}


@functools.cache
def compiled(
    mesh: MeshConfig, seeds: int
) -> tuple[jax.sharding.Mesh, Callable[..., Any]]:
    """Devices and the call of so many seeds, which is compiled when it is called."""
    devices = make_mesh(mesh, seeds=seeds, batch_size=BATCH)
    return devices, make_train_call(AGENT, devices, seeds=seeds)


def train(
    mesh: MeshConfig,
    *,
    seeds: tuple[int, ...] = (0,),
    calls: int = 5,
    device_rows=False,
) -> tuple[TrainState, Any]:
    devices, call = compiled(mesh, len(seeds))
    state = init_state(AGENT, devices, seeds)
    source = BatchSource(
        TABLE,
        AGENT.sampler,
        seeds=seeds,
        batch_size=BATCH,
        steps=STEPS,
        gather=not device_rows,
    )
    feed = make_feed(source, FeedConfig(), updates_per_call=calls)
    rows = (TABLE.observations, TABLE.actions) if device_rows else None
    state, metrics = call(state, rows, next(feed))
    with jax.no_tracing():  # Later calls are of the same program.
        for batches in feed:
            state, metrics = call(state, rows, batches)
    return state, metrics


def assert_close(one: Any, other: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE),
        jax.device_get(one),
        jax.device_get(other),
    )


@pytest.fixture(scope="module")
def pair() -> TrainState:
    """Two seeds, each on four devices."""
    return train(MeshConfig(seed=2, data=4), seeds=(0, 1))[0]


def test_eight_devices_are_seen() -> None:
    assert len(jax.devices()) == 8


def test_a_seed_equals_its_own_single_run(pair: TrainState) -> None:
    assert read_step(pair) == STEPS
    start = init_state(AGENT, make_mesh(MeshConfig(1, 8), seeds=1, batch_size=8), (1,))
    moved = np.abs(
        np.asarray(start.agent.params["value"]["hidden_0"]["kernel"][0])
        - np.asarray(pair.agent.params["value"]["hidden_0"]["kernel"][1])
    )
    assert moved.max() > 1e-3
    for number in (0, 1):
        alone, _ = train(MeshConfig(seed=1, data=8), seeds=(number,))
        assert_close(
            jax.tree.map(lambda x, n=number: x[n], pair.agent.params),
            jax.tree.map(lambda x: x[0], alone.agent.params),
        )


def test_state_and_metrics_lie_where_they_should(pair: TrainState) -> None:
    kernel = pair.agent.params["exec"]["hidden_0"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec("seed")
    assert len(kernel.addressable_shards) == 8
    assert {shard.data.shape[0] for shard in kernel.addressable_shards} == {1}


def test_fusing_and_gathering_change_nothing_but_rounding(pair: TrainState) -> None:
    fused, metrics = train(MeshConfig(2, 4), seeds=(0, 1), calls=20)
    assert_close(pair.agent.params, fused.agent.params)
    on_device, _ = train(MeshConfig(2, 4), seeds=(0, 1), device_rows=True)
    assert_close(pair.agent.params, on_device.agent.params)
    assert metrics.mean["loss"].shape == (2,)
    np.testing.assert_array_equal(
        metrics.total["windows_by_horizon"].sum(axis=1), STEPS * BATCH
    )


def test_equal_agents_share_a_call_and_others_do_not() -> None:
    devices = make_mesh(MeshConfig(seed=2, data=4), seeds=2, batch_size=BATCH)
    call = make_train_call(AGENT, devices, seeds=2)
    state = abstract_state(AGENT, seeds=2)
    twin = VAST(AGENT.config, AGENT.facts)
    other = VAST(dataclasses.replace(AGENT.config, temperature=0.5), AGENT.facts)
    assert twin is not AGENT
    assert make_train_call(twin, devices, seeds=2) is call
    assert make_train_call(other, devices, seeds=2) is not call
    # The state is traced once, too, although its function is called in another trace.
    with mock.patch.object(VAST, "init") as init:
        assert abstract_state(twin, seeds=2) == state
    init.assert_not_called()
