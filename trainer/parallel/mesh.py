"""The mesh, and the sharding of parameters, states and batches on it.

The mesh has four axes. ``seed`` shards the runs that are trained side by side.
``data`` shards the rows of a batch, and every shard has a copy of the state. ``fsdp``
shards the rows and the state, whose parameters are gathered once an update.
``tensor`` shards every layer but the first.

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
import numpy.typing as npt
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
    compute_mesh_sizes,
)


@dataclass(frozen=True)
class Rule:
    """Sharding of the parameters whose path ends with a pattern.

    Attributes:
        pattern: Regular expression for the end of a path such as
            ``critic/hidden_0/kernel``, whole names only.
        axes: Mesh axes of each of the last dimensions. Earlier dimensions are not
            sharded, except the dimension of seeds.
        deep: Whether the rule is for a second hidden layer, which networks may lack.
    """

    pattern: str
    axes: tuple[tuple[str, ...], ...]
    deep: bool = False

    def matches(self, path: str) -> bool:
        """Says whether a path ends with the pattern."""
        return re.search(rf"(^|/)({self.pattern})$", path) is not None


_EVEN, _ODD = r"\d*[02468]", r"\d*[13579]"
# The first layer is not sharded over `tensor`, because it has few inputs. Later layers
# alternate: one is sharded by its outputs, the next by its inputs, so that only every
# second layer needs a sum of activations over devices, after which its norm sees whole
# rows. With the first layer whole, a flow step takes four collectives instead of six
# and sends a third less. Shoeybi et al. (2019), Megatron-LM, section 3.
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
    """Arranges devices in a mesh.

    Args:
        config: Sizes of the axes; at most one is -1 and takes the remaining devices.
        seeds: Number Q of runs that are trained side by side.
        batch_size: Rows B of each seed's batch.
        microbatches: Parts of a batch that are computed one after another.
        width: Width of the agent's layers; None if no network is sharded.
        devices: Devices to use; all devices of all hosts by default.

    Returns:
        A mesh with the four axes.

    Raises:
        UsageError: If the product of the sizes is not the number of devices, or seeds,
            rows or layers cannot be shared evenly.
    """
    devices = jax.devices() if devices is None else devices
    sizes = compute_mesh_sizes(
        config,
        seeds=seeds,
        batch_size=batch_size,
        microbatches=microbatches,
        width=width,
        devices=len(devices),
    )
    # A mesh axis may take a part of a physical axis of a TPU slice; otherwise 155 of
    # the 165 meshes of v6e-256 would be impossible. `jax.make_mesh` allows it on v5e
    # only.
    arranged = mesh_utils.create_device_mesh(
        tuple(sizes.values()), devices, allow_split_physical_axes=True
    )
    if sizes[FSDP] == len(devices) and devices[0].platform == "tpu":
        # Row by row and not around a ring: gradients are scattered along the rows of
        # the slice first, then across them.
        order = sorted(devices, key=operator.attrgetter("coords"))
        arranged = np.array(order).reshape(arranged.shape)
    # With automatic axes, the compiler places all arrays that no constraint names.
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def state_shardings(shapes: Any, mesh: Mesh, rules: Sequence[Rule] = RULES) -> Any:
    """Finds the sharding of every array of a training state.

    Args:
        shapes: Tree of arrays or of their shapes, ``[Q, ...]`` each.
        mesh: Mesh with the four axes.
        rules: Rules; the first one that matches a path holds.

    Returns:
        The tree of shardings.

    Raises:
        UsageError: If the size of an array is no multiple of its number of shards.
        ValueError: If a rule matches no array or has too many dimensions, or an array
            has no rule.
    """
    # Paths of targets and of the optimiser's moments end with the path of their
    # parameter, so a rule shards them like the parameter.
    if _size(mesh, (FSDP, TENSOR)) == 1:
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(SEED)), shapes)
    used = set()

    def place(path: Any, leaf: Any) -> NamedSharding:
        if leaf.ndim == 1:
            # A counter, with an element for each seed.
            return NamedSharding(mesh, PartitionSpec(SEED))
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        rule = _find_rule(rules, name, leaf.shape[1:])
        used.add(rule)
        return NamedSharding(mesh, _spec(rule, name, leaf.shape, mesh))

    placed = jax.tree_util.tree_map_with_path(place, shapes)
    # A misspelled rule would otherwise leave its arrays to a later, weaker rule, and
    # nothing but the memory of the devices would show it.
    unused = [rule for rule in rules if rule not in used and not rule.deep]
    if unused:
        raise ValueError(
            "sharding: expected every rule to match an array, got "
            f"{unused[0].pattern!r}, which matches none; correct its pattern, or leave "
            "it out if the networks have no such layer"
        )
    return placed


def _spec(rule: Rule, path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Applies a rule to an array ``[Q, ...]``, or refuses its shape."""
    whole = len(shape) - 1 - len(rule.axes)
    if whole < 0:
        raise ValueError(
            f"sharding: rule {rule.pattern!r}: expected arrays of at least "
            f"{len(rule.axes)} dimensions, got {path} {list(shape[1:])} for each seed; "
            "add a rule for it before this one"
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
    # There is no default: an array that nobody has thought of would be copied to every
    # device.
    raise ValueError(
        f"sharding: no rule matches {path} {list(shape)}; add one to "
        "trainer.parallel.mesh.RULES"
    )


def _split(
    rule: Rule, ndim: int, mesh: Mesh, *, without: Sequence[str] = ()
) -> list[tuple[str, ...] | None]:
    """Lists the mesh axes of each dimension of one seed's array.

    Axes of one device are left out, because they shard nothing.
    """
    kept = [
        tuple(axis for axis in axes if mesh.shape[axis] > 1 and axis not in without)
        for axes in rule.axes
    ]
    return [None] * (ndim - len(kept)) + [axes or None for axes in kept]


def gather_params(params: Any, *, mesh: Mesh, precision: Precision = "float32") -> Any:
    """Gathers the ``fsdp`` shards of one seed's parameters.

    Each group of rows of the batch gets its own copy of the parameters, and so its own
    gradient. On the way back, gradients are first scattered over ``fsdp`` and then
    summed over ``data``.

    Args:
        params: Parameters of one seed, sharded as between updates.
        mesh: Mesh with the four axes.
        precision: Precision of the networks. Hidden layers of bfloat16 are cast before
            they are gathered, which halves the bytes that are sent.

    Returns:
        Parameters that are sharded over ``tensor`` only. On a mesh with ``fsdp``, those
        of a network have an additional axis of ``data * fsdp`` copies, which
        ``trainer.nn.networks.apply`` expects.
    """
    if mesh.shape[FSDP] == 1:
        return _constrain(params, mesh)
    # One array that is replicated over all rows would be simpler, but compilers then
    # sum each whole gradient over all devices and cut it afterwards, which sends more.
    return _map_rules(partial(_copy, mesh), networks.cast_hidden(params, precision))


def _copy(mesh: Mesh, rule: Rule, leaf: jax.Array) -> jax.Array:
    """Gathers an array of one seed into a copy for each group of rows."""
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
        replicated_axes = (DATA,) if scattered else (DATA, FSDP)
        # The transpose of this cast is the sum over `data`. Because gradients run in
        # reverse, the sum comes last if the cast comes first: when each device has only
        # its shard of the gradient.
        part = jax.lax.pcast(part, replicated_axes, to="varying")
        for axis in scattered:
            part = gathering.gather(part, axis, stages)
        return jnp.expand_dims(part, first)

    return copy(leaf)


def scatter_params(params: Any, *, mesh: Mesh) -> Any:
    """Shards one seed's parameters, or their gradient, as in the state.

    Args:
        params: Parameters of one seed, or their gradient.
        mesh: Mesh with the four axes.

    Returns:
        The same values, with the sharding of the state.
    """
    return _constrain(params, mesh)


def global_norm(gradient: Any, *, mesh: Mesh) -> jax.Array:
    """Computes the norm of one seed's gradient.

    Args:
        gradient: Gradient of one seed, sharded as in the state.
        mesh: Mesh with the four axes.

    Returns:
        ``f32[]``.
    """
    # `optimizers.global_norm` concatenates small leaves, because that takes fewer
    # kernels; leaves that are sharded would have to be gathered for it.
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
    """Returns the sharding of batches ``[M, Q, B, ...]``, over seeds and rows."""
    return NamedSharding(mesh, PartitionSpec(None, SEED, (DATA, FSDP)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def find_local_part(mesh: Mesh, *, seeds: int, batch_size: int) -> tuple[slice, slice]:
    """Finds the part of a batch ``[M, Q, B, ...]`` that this process's devices hold.

    Args:
        mesh: Mesh of all processes.
        seeds: Number Q of seeds.
        batch_size: Rows B of each seed's batch.

    Returns:
        Seeds and rows: the smallest ranges that cover the shards of all its devices.
    """
    held = batch_sharding(mesh).addressable_devices_indices_map((1, seeds, batch_size))
    # A sharding may give a device no part at all.
    parts = [part for part in held.values() if part is not None]
    return (
        _cover([part[1] for part in parts], seeds),
        _cover([part[2] for part in parts], batch_size),
    )


def assemble_batch(mesh: Mesh, local: Any, *, seeds: int, batch_size: int) -> Any:
    """Makes whole arrays of a batch of the parts that the processes hold.

    Args:
        mesh: Mesh of all processes.
        local: Tree of arrays ``[M, q, b, ...]``, the part of ``find_local_part``.
        seeds: Number Q of seeds.
        batch_size: Rows B of each seed's batch.

    Returns:
        Tree of arrays ``[M, Q, B, ...]``, sharded over seeds and rows.
    """
    # Devices of one process need not hold neighbouring rows: on a TPU slice a host has
    # a square of chips. So each device takes its rows out of the range that covers all
    # of this process's rows. `jax.make_array_from_process_local_data` would expect
    # these rows alone, and make a longer batch of a range with gaps.
    sharding = batch_sharding(mesh)
    held, rows = find_local_part(mesh, seeds=seeds, batch_size=batch_size)

    def assemble(part: npt.NDArray[Any]) -> jax.Array:
        def take(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert index is not None  # Only keys have none.
            of_held = _shift(index[1], held.start, seeds)
            of_rows = _shift(index[2], rows.start, batch_size)
            return part[index[0], of_held, of_rows]

        shape = (len(part), seeds, batch_size, *part.shape[3:])
        return jax.make_array_from_callback(shape, sharding, take)

    return jax.tree.map(assemble, local)


def _shift(asked: slice, first: int, size: int) -> slice:
    start, end, _ = asked.indices(size)
    return slice(start - first, end - first)


def _cover(parts: Sequence[slice], size: int) -> slice:
    ranges = [part.indices(size) for part in parts]
    return slice(min(first for first, _, _ in ranges), max(end for _, end, _ in ranges))


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
