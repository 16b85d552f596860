"""Meshes and rules: what lies where, what travels, and equal numbers everywhere."""

import dataclasses
import math
import re
from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from tests.stores import make_facts, make_table
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.costs.random_data import draw_batches
from trainer.nn.choices import Precision
from trainer.parallel.mesh import (
    RULES,
    Rule,
    find_local_part,
    gather_params,
    make_mesh,
    state_shardings,
)
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import TrainState, abstract_state, init_state
from trainer.step.update import make_update

TABLE = make_table([60, 70], S=4, A=2)
# No other dimension is 56, nor 7: rows are known by them.
WIDTH, BATCH, UPDATES = 16, 56, 2
AGENT = VAST(VASTConfig(width=WIDTH, depth=2, flow_steps=2), make_facts(TABLE))
# float32: sums over a batch, or over parts of a layer, are taken in another order.
TOLERANCE = {"rtol": 2e-3, "atol": 2e-5}
COLLECTIVE = re.compile(
    r"= (\S+|\(.*?\)) "
    r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)


def mesh_of(config: MeshConfig, *, seeds: int = 1) -> jax.sharding.Mesh:
    return make_mesh(config, seeds=seeds, batch_size=BATCH)


def batches(*, seeds: int = 1) -> Any:
    """Batches of one call, ``[M, Q, B, ...]``."""
    return draw_batches(AGENT, TABLE, updates=UPDATES, seeds=range(seeds), size=BATCH)


def collectives(
    config: MeshConfig, *, seeds: int = 1
) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Kind and shapes of every collective of the compiled call."""
    call = make_train_call(AGENT, mesh_of(config, seeds=seeds), seeds=seeds)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batches(seeds=seeds)
    )
    state = abstract_state(AGENT, seeds=seeds)
    text = call.lower(state, None, shapes).compile().as_text()
    found = []
    for line in text.splitlines():
        match = COLLECTIVE.search(line)
        if match:
            shapes = re.findall(r"\w+\[([\d,]*)\]", match[1])
            found.append(
                (
                    match[2],
                    [tuple(int(n) for n in each.split(",") if n) for each in shapes],
                )
            )
    return found


@pytest.fixture(scope="module")
def one_device() -> tuple[TrainState, Any]:
    return run(MeshConfig(data=1), devices=jax.devices()[:1])


def run(config: MeshConfig, devices: Any = None) -> tuple[TrainState, Any]:
    mesh = make_mesh(config, seeds=1, batch_size=BATCH, devices=devices)
    state = init_state(AGENT, mesh, (0,))
    call = make_train_call(AGENT, mesh, seeds=1)
    return call(state, None, batches())


@pytest.mark.parametrize(
    "config",
    [
        MeshConfig(data=2, fsdp=2, tensor=2),
        pytest.param(MeshConfig(data=8), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=2, fsdp=4), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=4, tensor=2), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=1, tensor=8), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=1, fsdp=8), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_any_mesh_computes_what_one_device_does(
    config: MeshConfig, one_device: tuple[TrainState, Any]
) -> None:
    state, metrics = run(config)
    (other, expected) = one_device
    fresh = init_state(AGENT, mesh_of(config), (0,))
    moved = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()),
        fresh.agent.params,
        state.agent.params,
    )
    assert min(jax.tree.leaves(moved)) > 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE),
        jax.device_get((state.agent, metrics.mean)),
        jax.device_get((other.agent, expected.mean)),
    )
    # What leaves an update lies where it came in, and each device holds its part.
    placed = state_shardings(abstract_state(AGENT, seeds=1), mesh_of(config))
    kept = jax.tree.map(
        lambda leaf, where: leaf.sharding.is_equivalent_to(where, leaf.ndim),
        state,
        placed,
    )
    assert all(jax.tree.leaves(kept))
    kernel = state.agent.params["exec"]["hidden_1"]["kernel"]
    parts = config.fsdp * config.tensor
    assert kernel.addressable_shards[0].data.size == kernel.size // parts


def test_data_parallel_sums_gradients_once() -> None:
    kinds = Counter(kind for kind, _ in collectives(MeshConfig(data=8)))
    # One for the gradients of all networks, one for the figures.
    assert set(kinds) == {"all-reduce"}
    assert kinds["all-reduce"] <= 3


@pytest.mark.slow
def test_seeds_are_no_business_of_each_other() -> None:
    # Figures are brought to all devices at the end of a call, and nothing else.
    found = collectives(MeshConfig(seed=8, data=1), seeds=8)
    assert {kind for kind, _ in found} <= {"all-gather", "all-reduce"}
    figures = [shape for _, shapes in found for shape in shapes]
    assert not {(8, *kernel) for kernel in kernels()} & set(figures)
    assert all(BATCH not in shape and WIDTH not in shape for shape in figures)


def kernels() -> list[tuple[int, ...]]:
    """Shapes of the kernels an update reads, targets among them."""
    state = jax.eval_shape(AGENT.init, jax.random.key(0))
    return [
        leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            (state.params, state.targets)
        )
        if "kernel" in jax.tree_util.keystr(path)
    ]


@pytest.mark.slow
def test_fsdp_brings_every_kernel_together_once_and_no_rows() -> None:
    found = collectives(MeshConfig(data=1, fsdp=8))
    gathered = [
        shape for kind, shapes in found for shape in shapes if kind == "all-gather"
    ]
    assert sum(map(math.prod, gathered)) == sum(map(math.prod, kernels()))
    assert not any(BATCH in shape for shape in gathered)
    assert {kind for kind, _ in found} <= {"all-gather", "all-reduce", "reduce-scatter"}


HALF = VAST(dataclasses.replace(AGENT.config, precision="bfloat16"), AGENT.facts)


def test_layers_of_bfloat16_are_cast_before_they_are_brought_together() -> None:
    mesh = mesh_of(MeshConfig(data=2, fsdp=4))
    params = jax.eval_shape(AGENT.init, jax.random.key(0)).params

    def gathered(precision: Precision) -> Counter[str]:
        gather = partial(gather_params, mesh=mesh, precision=precision)
        text = jax.jit(gather).lower(params).as_text()
        return Counter(re.findall(r"all_gather.*-> tensor<\S*x(bf16|f32)>", text))

    # The second hidden layers of five networks; first layers and outputs stay.
    assert gathered("bfloat16") == {"bf16": 5, "f32": 10}
    assert gathered("float32") == {"f32": 15}


@pytest.mark.slow
def test_bfloat16_on_a_mesh_computes_what_one_device_does() -> None:
    seen = []
    for config, devices in (
        (MeshConfig(data=2, fsdp=4), jax.devices()),
        (MeshConfig(data=1), jax.devices()[:1]),
    ):
        mesh = make_mesh(config, seeds=1, batch_size=BATCH, devices=devices)
        call = make_train_call(HALF, mesh, seeds=1)
        _, metrics = call(init_state(HALF, mesh, (0,)), None, batches())
        seen.append(jax.device_get(metrics.mean))
    # bfloat16 keeps 8 bits, and sums over a batch are taken in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02), *seen)


@pytest.mark.slow
def test_tensor_parallel_never_brings_a_kernel_together() -> None:
    found = collectives(MeshConfig(data=1, tensor=8))
    # Sums over the parts of a layer's inputs.
    assert any(
        kind == "all-reduce" and (BATCH, WIDTH) in shapes for kind, shapes in found
    )
    whole = set(kernels())
    for kind, shapes in found:
        assert kind in ("all-reduce", "all-gather")
        if kind == "all-gather":
            # With an axis of the one seed, or without.
            assert not whole & {*shapes, *(shape[1:] for shape in shapes)}


def test_optimiser_and_targets_lie_beside_their_parameters() -> None:
    mesh = mesh_of(MeshConfig(data=1, fsdp=4, tensor=2))
    placed = state_shardings(abstract_state(AGENT, seeds=1), mesh)
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): where.spec
        for path, where in jax.tree_util.tree_leaves_with_path(placed)
    }
    kernels = [name for name in specs if name.endswith("critic/hidden_0/kernel")]
    assert len(kernels) == 4  # Parameter, target, and Adam's two moments.
    assert {specs[name] for name in kernels} == {
        PartitionSpec("seed", None, None, ("fsdp",))
    }
    assert specs["agent/params/value/hidden_1/kernel"] == PartitionSpec(
        "seed", None, ("tensor", "fsdp")
    )
    assert specs["agent/params/value/norm_1/scale"] == PartitionSpec(
        "seed", ("tensor",)
    )
    assert specs["agent/params/value/output/kernel"] == PartitionSpec(
        "seed", ("tensor", "fsdp"), None
    )
    assert specs["agent/step"] == PartitionSpec("seed")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            (Rule("hiden_0/kernel", ((), ("fsdp",))), *RULES),
            "'hiden_0/kernel', which matches none",
        ),
        (RULES[:-1], "no rule matches"),
        ((Rule("output/bias", (("fsdp",),)), *RULES), r"output/bias \[.*1\] cannot be"),
        ((Rule("output/bias", ((), (), ("fsdp",))), *RULES), "at least 3 dimensions"),
    ],
)
def test_rules_that_cannot_be_honoured_are_refused(
    rules: tuple[Rule, ...], message: str
) -> None:
    mesh = mesh_of(MeshConfig(data=1, fsdp=8))
    shapes = abstract_state(AGENT, seeds=1)
    state_shardings(shapes, mesh)
    with pytest.raises(ValueError, match=message):
        state_shardings(shapes, mesh, rules)


def test_networks_of_one_hidden_layer_can_be_split() -> None:
    shallow = VAST(VASTConfig(width=16, depth=1, flow_steps=2), make_facts(TABLE))
    mesh = mesh_of(MeshConfig(data=1, fsdp=4, tensor=2))
    placed = state_shardings(abstract_state(shallow, seeds=1), mesh)
    kernel = placed.agent.params["value"]["output"]["kernel"]
    assert kernel.spec == PartitionSpec("seed", ("tensor", "fsdp"), None)


def test_a_width_the_mesh_cannot_split_is_refused() -> None:
    odd = VAST(VASTConfig(width=12, depth=2, flow_steps=2), make_facts(TABLE))
    mesh = mesh_of(MeshConfig(data=1, tensor=8))
    with pytest.raises(ValueError, match=r"12 is no multiple.*agent\.width"):
        state_shardings(abstract_state(odd, seeds=1), mesh)


def test_meshes_that_cannot_be_are_refused() -> None:
    def make(
        seeds: int = 1, batch_size: int = 8, microbatches: int = 1, **sizes: int
    ) -> jax.sharding.Mesh:
        return make_mesh(
            MeshConfig(**sizes),
            seeds=seeds,
            batch_size=batch_size,
            microbatches=microbatches,
        )

    assert dict(make(seed=2, seeds=2).shape) == {
        "seed": 2,
        "data": 4,
        "fsdp": 1,
        "tensor": 1,
    }
    assert make(data=2, fsdp=-1).shape["fsdp"] == 4
    with pytest.raises(ValueError, match=r"8 devices there are, got seed=3, data=-1"):
        make(seed=3, seeds=3)
    with pytest.raises(ValueError, match=r"fsdp=2, tensor=3"):
        make(fsdp=2, tensor=3, data=1)
    with pytest.raises(ValueError, match=r"trainer\.batch_size is 12.*8 devices"):
        make(batch_size=12)
    with pytest.raises(ValueError, match=r"trainer\.batch_size is 12.*data \* fsdp"):
        make(batch_size=12, data=4, fsdp=2)
    with pytest.raises(ValueError, match=r"trainer\.seeds is 3.*2 devices"):
        make(seed=2, seeds=3)
    with pytest.raises(ValueError, match=r"batch_size / trainer\.microbatches is 4,"):
        make(batch_size=16, microbatches=4)


def test_microbatches_average_gradients_of_their_parts() -> None:
    state = jax.jit(AGENT.init)(jax.random.key(0))
    batch = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), batches())
    key = jax.random.key(1)
    whole, metrics = jax.jit(make_update(AGENT, microbatches=2))(state, batch, key)

    @jax.jit
    @jax.grad
    def gradient(params: Any, rows: Any, key: jax.Array) -> jax.Array:
        return AGENT.total_loss(params, state.targets, rows, key)[0]

    gradients = [
        gradient(state.params, jax.tree.map(lambda x, n=n: x[n::2], batch), part_key)
        for n, part_key in enumerate(jax.random.split(key, 2))
    ]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *gradients)
    # Clipping and Adam undo a common factor: parameters alone would not show it.
    np.testing.assert_allclose(
        metrics.mean["gradient_norm"], optax.tree.norm(mean), rtol=1e-4
    )
    steps, _ = jax.jit(AGENT.optimizer.update)(mean, state.opt_state, state.params)
    expected = jax.tree.map(jnp.add, state.params, steps)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE),
        whole.params,
        expected,
    )
    assert metrics.total["windows_by_horizon"].sum() == BATCH
    assert find_local_part(mesh_of(MeshConfig()), seeds=1, batch_size=BATCH) == (
        slice(0, 1),
        slice(0, BATCH),
    )
