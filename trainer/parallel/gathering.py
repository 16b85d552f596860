"""Gathers parameters over the mesh axis ``fsdp``, and scatters their gradients."""

import itertools
import math
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from trainer.parallel.mesh_shape import FSDP

# Groups of positions on a mesh axis that cover the axis; None for one group of all.
Groups = tuple[tuple[int, ...], ...] | None


def scatter_stages(mesh: Mesh) -> tuple[Groups, ...]:
    """Chooses the stages in which a gradient is scattered over ``fsdp``.

    As a rule, there is one stage over the whole axis. If ``fsdp`` takes all chips of a
    TPU slice with several physical axes, there is a stage for each physical axis.

    Args:
        mesh: Mesh with the four axes.

    Returns:
        Groups of positions on ``fsdp``, for each stage.
    """
    # Over such a slice at once, libtpu sums whole gradients, twice the bytes, and cuts
    # them afterwards. Flat slices that are longer one way, such as 2x4, are an
    # exception: it scatters over them at once.
    at_once: tuple[Groups, ...] = (None,)
    line = mesh.devices[0, 0, :, 0]
    if line[0].platform != "tpu" or len(line) != mesh.devices.size:
        return at_once
    places = np.array([device.coords for device in line])
    # The number of chips after which each coordinate first changes.
    steps = {int(np.argmax(along != along[0])) for along in places.T} - {0}
    ends = [len(line), *sorted(steps, reverse=True)]
    sizes = [end // step for end, step in itertools.pairwise(ends)]
    flat = len(sizes) == 2 and sizes[0] != sizes[1]
    if len(sizes) < 2 or flat or math.prod(sizes) != len(line):
        return at_once
    numbers = np.arange(len(line)).reshape(sizes)
    stages = [
        np.moveaxis(numbers, axis, -1).reshape(-1, size)
        for axis, size in enumerate(sizes)
    ]
    # Stages only pay off if the chips of a group lie in a row of the slice.
    if any((np.ptp(places[stage], axis=1) > 0).sum(1).max() > 1 for stage in stages):
        return at_once
    return tuple(tuple(map(tuple, stage.tolist())) for stage in stages)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(part: jax.Array, axis: int, stages: tuple[Groups, ...]) -> jax.Array:
    """Gathers the shards of an array, and scatters the gradient in stages.

    Args:
        part: Shard of this device, within ``shard_map`` over ``fsdp``.
        axis: Axis of the array that is sharded.
        stages: Stages of ``scatter_stages``.

    Returns:
        The whole array.
    """
    # The derivative of `all_gather` scatters over the whole axis at once, so the
    # derivative is given by hand.
    return jax.lax.all_gather(part, FSDP, axis=axis, tiled=True)


def _forward(
    part: jax.Array, axis: int, stages: tuple[Groups, ...]
) -> tuple[jax.Array, None]:
    return gather(part, axis, stages), None


def _backward(
    axis: int, stages: tuple[Groups, ...], _: None, gradient: jax.Array
) -> tuple[jax.Array]:
    for groups in stages:
        gradient = jax.lax.psum_scatter(
            gradient,
            FSDP,
            scatter_dimension=axis,
            tiled=True,
            axis_index_groups=groups,
        )
    return (gradient,)


gather.defvjp(_forward, _backward)
