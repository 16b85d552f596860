"""What each device of a mesh holds of a run, before there is such a mesh."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from pipeline.store.errors import UsageError
from trainer.agents import make_agent
from trainer.agents.base import DataFacts
from trainer.agents.vast_config import VASTConfig
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.call_memory import Shape, Spread, call_bytes
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import AXES, MeshConfig
from trainer.step.state import TrainState, abstract_state, layout

if TYPE_CHECKING:  # It brings Grain, which measuring updates does without.
    from trainer.config import Config

# Kinds of accelerators whose memory differs by the formula, and one of each.
_KINDS = {"TPU": "v5e", "GPU": "h100"}


@dataclass(frozen=True)
class Placed:
    """One array of the training state.

    Attributes:
        path: Such as ``params/value/hidden_0/kernel``.
        shape: Of all seeds, on a leading axis.
        spec: Mesh axes of each dimension; those of one device are left out.
        device_bytes: On each device.
    """

    path: str
    shape: tuple[int, ...]
    spec: str
    device_bytes: int


@dataclass(frozen=True)
class MeshDescription:
    """What each device holds.

    Attributes:
        mesh: Sizes of the axes.
        arrays: Of the training state.
        params_bytes: Of parameters, on each device.
        rest_bytes: Of targets, optimiser, counters and keys, on each device.
        expected_bytes: Memory that the training call takes of each accelerator, a TPU
            or a GPU, without rows of the store, by a formula
            (``call_memory.call_bytes``); None where the agent is not VAST.
    """

    mesh: dict[str, int]
    arrays: tuple[Placed, ...]
    params_bytes: int
    rest_bytes: int
    expected_bytes: dict[str, float] | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def parse_mesh(text: str) -> MeshConfig:
    """Reads sizes such as ``seed=2,fsdp=4``; axes that are not named have 1.

    Args:
        text: As given.

    Returns:
        The sizes, all at least 1.

    Raises:
        UsageError: If an axis or size cannot be.
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


def devices_of(mesh: MeshConfig) -> int:
    """Devices that a mesh of given sizes takes."""
    return math.prod(getattr(mesh, axis) for axis in AXES)


def describe_mesh(
    config: "Config",
    facts: DataFacts,
    mesh: MeshConfig,
    *,
    devices: Sequence[jax.Device],
) -> MeshDescription:
    """Works out what each device of a mesh holds.

    Args:
        config: As resolved for a task.
        facts: Of data of the right shape.
        mesh: Sizes, all given.
        devices: As many, of any kind.

    Returns:
        The description.

    Raises:
        UsageError: If the mesh cannot be.
    """
    trainer = config.trainer
    agent = make_agent(config.agent, facts)
    made = make_mesh(
        mesh,
        seeds=trainer.seeds,
        batch_size=trainer.batch_size,
        microbatches=trainer.microbatches,
        devices=devices,
    )
    shapes = abstract_state(agent, seeds=trainer.seeds)
    arrays = place(shapes, layout(agent, made, seeds=trainer.seeds))
    params = sum(one.device_bytes for one in arrays if one.path.startswith("params/"))
    return MeshDescription(
        mesh=dict(made.shape),
        arrays=arrays,
        params_bytes=params,
        rest_bytes=sum(one.device_bytes for one in arrays) - params,
        expected_bytes=_expected_bytes(config, facts, dict(made.shape)),
    )


def _expected_bytes(
    config: "Config", facts: DataFacts, mesh: dict[str, int]
) -> dict[str, float] | None:
    if not isinstance(config.agent, VASTConfig):
        return None
    shape = Shape(
        config.agent,
        config.trainer.batch_size // config.trainer.microbatches,
        observation_dim=facts.observation_dim,
        action_dim=facts.action_dim,
    )
    return {
        kind: call_bytes(
            shape, Spread(**mesh), ACCELERATORS[one], seeds=config.trainer.seeds
        )
        for kind, one in _KINDS.items()
    }


def place(shapes: TrainState, placed: TrainState) -> tuple[Placed, ...]:
    """What a device holds of each array.

    Args:
        shapes: Of the state.
        placed: Its shardings.

    Returns:
        The arrays, parameters first.
    """
    return tuple(
        Placed(
            path=jax.tree_util.keystr(path, simple=True, separator="/").removeprefix(
                "agent/"
            ),
            shape=tuple(leaf.shape),
            spec=_spec(where),
            device_bytes=math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        )
        for (path, leaf), where in zip(
            jax.tree_util.tree_leaves_with_path(shapes),
            jax.tree.leaves(placed),
            strict=True,
        )
    )


def _spec(where: Any) -> str:
    """Mesh axes by dimension, such as ``-, -, tensor+fsdp``; one device's left out."""
    names = []
    for axes in where.spec:
        several = [
            axis
            for axis in ((axes,) if isinstance(axes, str) else axes or ())
            if where.mesh.shape[axis] > 1
        ]
        names.append("+".join(several) or "-")
    return ", ".join(names)
