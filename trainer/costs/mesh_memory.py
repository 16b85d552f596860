"""The arrays of a run on each device of a mesh that need not be present."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from pipeline.store.errors import UsageError
from trainer.agents.base import DataFacts
from trainer.agents.registry import make_agent
from trainer.agents.vast_config import VASTConfig
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.call_memory import Shape, Spread, call_bytes
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import AXES, MeshConfig
from trainer.step.state import TrainState, abstract_state, layout

# `trainer.config` imports pydantic, which machines that only measure updates lack.
if TYPE_CHECKING:
    from trainer.config import Config

# Kinds of accelerators that differ in the formula of the memory, with one of each kind.
_KINDS = {"TPU": "v5e", "GPU": "h100"}


@dataclass(frozen=True)
class PlacedArray:
    """One array of the training state, and its sharding.

    Attributes:
        path: Path of the array, such as ``params/value/hidden_0/kernel``.
        shape: Shape of the array of all seeds, which are the leading axis.
        spec: Mesh axes of each dimension, without axes of one device.
        device_bytes: Bytes on each device.
    """

    path: str
    shape: tuple[int, ...]
    spec: str
    device_bytes: int


@dataclass(frozen=True)
class MeshDescription:
    """Memory of a run on each device of a mesh.

    Attributes:
        mesh: Sizes of the mesh axes.
        arrays: Arrays of the training state.
        params_bytes: Bytes of the parameters on each device.
        rest_bytes: Bytes of targets, optimiser, counters and keys on each device.
        expected_bytes: Memory that the training call takes without rows of the store,
            for a TPU and for a GPU, by the formula of ``call_memory.call_bytes``; None
            if the agent is not VAST.
    """

    mesh: dict[str, int]
    arrays: tuple[PlacedArray, ...]
    params_bytes: int
    rest_bytes: int
    expected_bytes: dict[str, float] | None

    def to_json(self) -> dict[str, Any]:
        """Makes plain values that JSON can hold."""
        return dataclasses.asdict(self)


def parse_mesh(text: str) -> MeshConfig:
    """Parses the sizes of a mesh, such as ``seed=2,fsdp=4``.

    Args:
        text: Sizes by axis; axes that are not named have size 1.

    Returns:
        The sizes, all at least 1.

    Raises:
        UsageError: If an axis does not exist, or a size is not a number from 1.
    """
    sizes = dict.fromkeys(AXES, 1)
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in sizes or not size.isdecimal() or int(size) < 1:
            raise UsageError(
                f"--mesh: expected sizes of {', '.join(AXES)} such as "
                f"seed=1,fsdp=8, got {part!r}"
            )
        sizes[axis] = int(size)
    return MeshConfig(**sizes)


def count_devices(mesh: MeshConfig) -> int:
    """Counts the devices of a mesh, none of whose sizes is -1."""
    return math.prod(getattr(mesh, axis) for axis in AXES)


def describe_mesh(
    config: "Config",
    facts: DataFacts,
    mesh: MeshConfig,
    *,
    devices: Sequence[jax.Device],
) -> MeshDescription:
    """Describes the memory of a run on each device of a mesh.

    Args:
        config: Configuration of the run.
        facts: Facts of data with the right shapes.
        mesh: Sizes of the mesh axes, none of them -1.
        devices: Devices of the mesh, of any kind.

    Returns:
        The description.

    Raises:
        UsageError: If the mesh cannot be made of the devices, or shares the work
            unevenly.
    """
    trainer = config.trainer
    agent = make_agent(config.agent, facts)
    device_mesh = make_mesh(
        mesh,
        seeds=trainer.seeds,
        batch_size=trainer.batch_size,
        microbatches=trainer.microbatches,
        devices=devices,
    )
    # Nothing is drawn or compiled: shapes and shardings say all of it.
    shapes = abstract_state(agent, seeds=trainer.seeds)
    arrays = list_arrays(shapes, layout(agent, device_mesh, seeds=trainer.seeds))
    params = sum(
        array.device_bytes for array in arrays if array.path.startswith("params/")
    )
    return MeshDescription(
        mesh=dict(device_mesh.shape),
        arrays=arrays,
        params_bytes=params,
        rest_bytes=sum(array.device_bytes for array in arrays) - params,
        expected_bytes=_estimate_bytes(config, facts, dict(device_mesh.shape)),
    )


def _estimate_bytes(
    config: "Config", facts: DataFacts, mesh: dict[str, int]
) -> dict[str, float] | None:
    """Estimates the memory of the training call, by kind of accelerator."""
    if not isinstance(config.agent, VASTConfig):
        return None
    shape = Shape(
        config.agent,
        # The activations of one microbatch are in memory at a time.
        config.trainer.batch_size // config.trainer.microbatches,
        observation_dim=facts.observation_dim,
        action_dim=facts.action_dim,
    )
    return {
        kind: call_bytes(
            shape, Spread(**mesh), ACCELERATORS[example], seeds=config.trainer.seeds
        )
        for kind, example in _KINDS.items()
    }


def list_arrays(shapes: TrainState, shardings: TrainState) -> tuple[PlacedArray, ...]:
    """Lists the arrays of a state, with the bytes that each device holds.

    Args:
        shapes: Abstract arrays of the state.
        shardings: Sharding of each array.

    Returns:
        The arrays, parameters first.
    """
    return tuple(
        PlacedArray(
            path=jax.tree_util.keystr(path, simple=True, separator="/").removeprefix(
                "agent/"
            ),
            shape=tuple(leaf.shape),
            spec=_format_spec(sharding),
            # Every device has as much, because the mesh shares all axes evenly.
            device_bytes=math.prod(sharding.shard_shape(leaf.shape))
            * leaf.dtype.itemsize,
        )
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(shapes),
            jax.tree.leaves(shardings),
            strict=True,
        )
    )


def _format_spec(sharding: Any) -> str:
    """Formats the mesh axes of each dimension, such as ``-, -, tensor+fsdp``."""
    names = []
    for axes in sharding.spec:
        # An axis of one device shards nothing.
        sharded = [
            axis
            for axis in ((axes,) if isinstance(axes, str) else axes or ())
            if sharding.mesh.shape[axis] > 1
        ]
        names.append("+".join(sharded) or "-")
    return ", ".join(names)
