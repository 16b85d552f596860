"""The mesh, and what lies where on it.

Axes: ``seed``, runs trained side by side; ``data``, rows of a batch with a copy of
the state each; ``fsdp``, rows of a batch with a part of the state each, whose
parameters are brought together once an update; ``tensor``, parts of every
layer but the first.

Dimensions: M updates per call, Q seeds, B batch.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pipeline.store.errors import UsageError
from trainer.nn import networks, optimizers
from trainer.nn.choices import Precision
from trainer.parallel import gathering
from trainer.parallel.mesh_shape import (
    AXES,
    DATA,
    FSDP,
    SEED,
    TENSOR,
    MeshConfig,
    mesh_sizes,
)


@dataclass(frozen=True)
class Rule:
    """Where parameters lie whose path ends with a pattern.

    Attributes:
        pattern: Regular expression for the end of a path such as
            ``critic/hidden_0/kernel``, whole names only.
        axes: Mesh axes of each of the last dimensions; dimensions before them (of
            seeds apart) are whole.
        deep: Whether it is for a second hidden layer, which networks need not have.
    """

    pattern: str
    axes: tuple[tuple[str, ...], ...]
    deep: bool = False

    def matches(self, path: str) -> bool:
        """Whether a path ends with the pattern."""
        return re.search(rf"(^|/)({self.pattern})$", path) is not None


_EVEN, _ODD = r"\d*[02468]", r"\d*[13579]"
# The first layer is whole, as its inputs are few. Then layers take turns: one is split
# by its outputs, the next by its inputs, so that only every second layer has
# activations to sum up, after which the norm sees whole rows. Shoeybi et al. (2019),
# Megatron-LM, section 3.
RULES = (
    Rule(r"hidden_0/kernel", ((), (FSDP,))),
    Rule(rf"hidden_{_ODD}/kernel", ((), (TENSOR, FSDP)), deep=True),
    Rule(
        rf"hidden_{_ODD}/bias|norm_{_ODD}/(scale|bias)",
        ((TENSOR,),),
        deep=True,
    ),
    Rule(rf"(hidden_{_EVEN}|output)/kernel", ((TENSOR, FSDP), ())),
    Rule(r"bias|scale|keys", ((),)),
)


def make_mesh(
    config: MeshConfig,
    *,
    seeds: int,
    batch_size: int,
    microbatches: int = 1,
    width: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Arranges devices.

    Args:
        config: Sizes of the axes, at most one of them -1 for what is left.
        seeds: Runs trained side by side.
        batch_size: B of each.
        microbatches: Parts of a batch that are computed one after another.
        width: Of the agent's layers; None if no network is split.
        devices: Which; all there are, on all hosts, by default.

    Returns:
        A mesh with the four axes.

    Raises:
        UsageError: If the sizes do not multiply to the number of devices, or seeds,
            parts of a batch or layers cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(
        config,
        seeds=seeds,
        batch_size=batch_size,
        microbatches=microbatches,
        width=width,
        devices=len(devices),
    )
    # An axis may take part of a direction in which a TPU slice is wired: most sizes
    # would be impossible otherwise. `jax.make_mesh` allows that on v5e alone.
    arranged = mesh_utils.create_device_mesh(
        tuple(sizes.values()), devices, allow_split_physical_axes=True
    )
    if sizes[FSDP] == len(devices) and devices[0].platform == "tpu":
        # Row by row, not round a ring: gradients go along rows, then across them.
        order = sorted(devices, key=operator.attrgetter("coords"))
        arranged = np.array(order).reshape(arranged.shape)
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def state_shardings(shapes: Any, mesh: Mesh, rules: Sequence[Rule] = RULES) -> Any:
    """Says where every array of a training state lies.

    Targets and the optimiser's moments have the path of their parameter at the end of
    their own, so they lie beside it.

    Args:
        shapes: Tree of arrays or their shapes, ``[Q, ...]`` each.
        mesh: With the four axes.
        rules: The first that matches a path holds.

    Returns:
        The tree of shardings.

    Raises:
        UsageError: If an array cannot be split over so many devices.
        ValueError: If a rule matches nothing or fits no array, or no rule matches.
    """
    if _size(mesh, (FSDP, TENSOR)) == 1:
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(SEED)), shapes)
    used = set()

    def place(path: Any, leaf: Any) -> NamedSharding:
        if leaf.ndim == 1:  # A counter of each seed.
            return NamedSharding(mesh, PartitionSpec(SEED))
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        rule = _find_rule(rules, name, leaf.shape[1:])
        used.add(rule)
        return NamedSharding(mesh, _spec(rule, name, leaf.shape, mesh))

    placed = jax.tree_util.tree_map_with_path(place, shapes)
    idle = [rule for rule in rules if rule not in used and not rule.deep]
    if idle:
        raise ValueError(
            f"sharding: rule {idle[0].pattern!r} matches no array; it is spelled "
            "wrongly, or the networks have no such layer: leave it out"
        )
    return placed


def _spec(rule: Rule, path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    whole = len(shape) - 1 - len(rule.axes)
    if whole < 0:
        raise ValueError(
            f"sharding: rule {rule.pattern!r} is for at least {len(rule.axes)} "
            f"dimensions, and {path} is {list(shape[1:])} for each seed"
        )
    for size, axes in zip(shape[1 + whole :], rule.axes, strict=True):
        if size % _size(mesh, axes):
            raise UsageError(
                f"sharding: {path} {list(shape[1:])} cannot be split over "
                f"{' * '.join(axes)} = {_size(mesh, axes)} devices: {size} is no "
                "multiple of it; choose another agent.width or a smaller mesh axis"
            )
    return PartitionSpec(SEED, *_split(rule, len(shape) - 1, mesh))


def _find_rule(rules: Sequence[Rule], path: str, shape: Sequence[int]) -> Rule:
    for rule in rules:
        if rule.matches(path):
            return rule
    raise ValueError(
        f"sharding: no rule matches {path} {list(shape)}; add one to "
        "trainer.parallel.mesh.RULES"
    )


def _split(
    rule: Rule, ndim: int, mesh: Mesh, *, without: Sequence[str] = ()
) -> list[tuple[str, ...] | None]:
    """Axes of each dimension of one seed's array; those of one device left out."""
    kept = [
        tuple(axis for axis in axes if mesh.shape[axis] > 1 and axis not in without)
        for axes in rule.axes
    ]
    return [None] * (ndim - len(kept)) + [axes or None for axes in kept]


def gather_params(params: Any, *, mesh: Mesh, precision: Precision = "float32") -> Any:
    """Brings the ``fsdp`` parts of one seed's parameters together.

    Each device gets a copy of its own, for its rows of the batch alone, so that a
    gradient is its rows' until all of them are known. Then it goes the way back: it is
    scattered over ``fsdp``, and what is left is summed over ``data``. Were parameters
    the same everywhere, compilers would sum each whole gradient over all devices.

    Args:
        params: Of one seed, as they lie between updates.
        mesh: With the four axes.
        precision: Of the networks. Hidden layers of bfloat16 are cast before they
            travel, so that half the bytes do.

    Returns:
        Parameters, ``tensor`` apart whole. On a mesh with ``fsdp`` those of a network
        have an axis of ``data * fsdp`` copies before their own, as
        ``trainer.nn.networks.apply`` takes them.
    """
    if mesh.shape[FSDP] == 1:
        return _constrain(params, mesh)
    return _map_rules(partial(_copy, mesh), networks.cast_hidden(params, precision))


def _copy(mesh: Mesh, rule: Rule, leaf: jax.Array) -> jax.Array:
    """An array of one seed, whole, for each group of rows."""
    parts = _split(rule, leaf.ndim, mesh)
    whole = _split(rule, leaf.ndim, mesh, without=(FSDP,))
    first = leaf.ndim - len(rule.axes)
    whole.insert(first, (DATA, FSDP))
    scattered = [axis for axis, axes in enumerate(parts) if FSDP in (axes or ())]
    stages = gathering.scatter_stages(mesh)

    @jax.shard_map(
        mesh=mesh,
        in_specs=PartitionSpec(*parts),
        out_specs=PartitionSpec(*whole),
    )
    def copy(part: jax.Array) -> jax.Array:
        same = (DATA,) if scattered else (DATA, FSDP)
        # First, for its gradient to be the last to be summed: when it is in parts.
        part = jax.lax.pcast(part, same, to="varying")
        for axis in scattered:
            part = gathering.gather(part, axis, stages)
        return jnp.expand_dims(part, first)

    return copy(leaf)


def scatter_params(params: Any, *, mesh: Mesh) -> Any:
    """Lays one seed's parameters, or their gradient, out as the state has them."""
    return _constrain(params, mesh)


def global_norm(gradient: Any, *, mesh: Mesh) -> jax.Array:
    """Norm of one seed's gradient, without joining leaves that lie in parts."""
    split = _size(mesh, (FSDP, TENSOR)) > 1
    norm = optax.tree.norm if split else optimizers.global_norm
    return norm(gradient)


def _constrain(params: Any, mesh: Mesh) -> Any:
    if _size(mesh, (FSDP, TENSOR)) == 1:
        return params

    def constrain(rule: Rule, leaf: jax.Array) -> jax.Array:
        spec = PartitionSpec(*_split(rule, leaf.ndim, mesh))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    return _map_rules(constrain, params)


def _map_rules(function: Callable[[Rule, jax.Array], jax.Array], params: Any) -> Any:
    def apply(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return function(_find_rule(RULES, name, leaf.shape), leaf)

    return jax.tree_util.tree_map_with_path(apply, params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Batches ``[M, Q, B, ...]``: seeds and rows spread."""
    return NamedSharding(mesh, PartitionSpec(None, SEED, (DATA, FSDP)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Values every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def local_part(mesh: Mesh, *, seeds: int, batch_size: int) -> tuple[slice, slice]:
    """Finds what of a batch ``[M, Q, B, ...]`` this process's devices hold.

    Args:
        mesh: Of all processes.
        seeds: Q.
        batch_size: B.

    Returns:
        Seeds and rows, the smallest ranges that cover all of its devices.
    """
    held = batch_sharding(mesh).addressable_devices_indices_map((1, seeds, batch_size))
    parts = [part for part in held.values() if part is not None]
    return (
        _cover([part[1] for part in parts], seeds),
        _cover([part[2] for part in parts], batch_size),
    )


def _cover(parts: Sequence[slice], size: int) -> slice:
    ranges = [part.indices(size) for part in parts]
    return slice(min(first for first, _, _ in ranges), max(end for _, end, _ in ranges))


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
