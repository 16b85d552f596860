"""Parameters brought together over ``fsdp``, and their gradients scattered again."""

import itertools
import math
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from trainer.parallel.mesh_shape import FSDP

# Groups of places on an axis, that cover it; None for one of all.
Groups = tuple[tuple[int, ...], ...] | None


def scatter_stages(mesh: Mesh) -> tuple[Groups, ...]:
    """Over which groups of ``fsdp`` a gradient is scattered, stage by stage.

    Over all at once as a rule. Where ``fsdp`` takes all chips of a TPU slice that are
    wired in several directions, it is one direction after the other: libtpu sums whole
    gradients over such a slice, twice the bytes, and cuts them. Flat slices that are
    longer one way, such as 2x4, are the exception.

    Args:
        mesh: With the four axes.

    Returns:
        Groups of each stage.
    """
    at_once: tuple[Groups, ...] = (None,)
    line = mesh.devices[0, 0, :, 0]
    if line[0].platform != "tpu" or len(line) != mesh.devices.size:
        return at_once
    places = np.array([device.coords for device in line])
    # Where each direction is first gone in: every so many chips.
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
    # Chips of a group lie in a row.
    if any((np.ptp(places[stage], axis=1) > 0).sum(1).max() > 1 for stage in stages):
        return at_once
    return tuple(tuple(map(tuple, stage.tolist())) for stage in stages)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(part: jax.Array, axis: int, stages: tuple[Groups, ...]) -> jax.Array:
    """Brings the parts of an array together, whose gradient goes back in stages.

    Args:
        part: Of each device of ``fsdp``, within ``shard_map``.
        axis: That is in parts.
        stages: As ``scatter_stages`` gives them.

    Returns:
        The array.
    """
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
