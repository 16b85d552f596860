"""The collectives of a compiled program, with their bytes and axes of the mesh.

Dimensions: n chips of a group.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.costs import hlo

# Bytes that a chip sends for each byte of the larger side, with n chips in a ring.
_SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
    "collective-broadcast": lambda n: 1.0,
}


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: Kind of the collective, such as ``all-gather``.
        axes: Mesh axes whose devices take part, such as ``("data", "fsdp")``.
        chips: Number n of chips of a group.
        loops: Number of turns of each loop around it, the outermost first.
        array_bytes: Bytes of each whole array that is gathered, reduced or scattered.
    """

    kind: str
    axes: tuple[str, ...]
    chips: int
    loops: tuple[int, ...]
    array_bytes: tuple[int, ...]

    @property
    def times(self) -> int:
        """Number of times that it runs in a call."""
        return math.prod(self.loops)

    @property
    def bytes(self) -> int:
        """Bytes of all its arrays."""
        return sum(self.array_bytes)

    @property
    def sent(self) -> float:
        """Bytes that a chip sends each time, if the chips form a ring."""
        return _SENT[self.kind](self.chips) * self.bytes


def find_collectives(
    module: hlo.Module, mesh: Mapping[str, int]
) -> tuple[Collective, ...]:
    """Finds the collectives of a program.

    Args:
        module: The program.
        mesh: Sizes of the axes, in the order in which the devices were arranged.

    Returns:
        The collectives in the order in which they run, without those of one chip.
    """
    collectives = []
    chains = set()
    for execution in hlo.walk_executions(module, fused=True):
        instruction = execution.instruction
        kind = instruction.operation.removesuffix("-start")
        if kind not in _SENT:
            continue
        # XLA spreads one collective over several fusions, to hide it behind arithmetic;
        # all of its parts have the same chain.
        chain = re.search(r'chain_id="(\d+)"', instruction.rest)
        if chain and chain[1] in chains:
            continue
        if chain:
            chains.add(chain[1])
        # TPUs write a reduce-scatter as the fusion of an all-reduce, of which each chip
        # keeps its part.
        if (execution.fused_into or "").startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        group = read_device_groups(instruction.rest, devices=math.prod(mesh.values()))[
            0
        ]
        if len(group) == 1:
            continue
        sizes = hlo.array_bytes(instruction.result)
        # The result of an asynchronous start also holds its operands, which come first.
        if kind == "all-gather" and instruction.operation != kind:
            sizes = sizes[len(sizes) // 2 :]
        elif kind == "reduce-scatter" and instruction.operation == kind:
            sizes = [size * len(group) for size in sizes]
        elif kind == "collective-permute" and instruction.operation != kind:
            sizes = sizes[:1]
        collectives.append(
            Collective(
                kind=kind,
                axes=_find_axes(group, mesh),
                chips=len(group),
                loops=execution.loops,
                array_bytes=tuple(sizes),
            )
        )
    return tuple(collectives)


def _find_axes(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Finds the axes along which the members of a group differ."""
    places = np.unravel_index(np.asarray(group), tuple(mesh.values()))
    return tuple(
        axis
        for axis, place in zip(mesh, places, strict=True)
        if len(set(place.tolist())) > 1
    )


def read_device_groups(attributes: str, *, devices: int) -> list[list[int]]:
    """Reads the groups of devices that take part in a collective together.

    Args:
        attributes: Attributes of the collective; XLA writes groups in several ways.
        devices: Number of devices of the program.

    Returns:
        The groups: numbers of devices in the order of the mesh.

    Raises:
        ValueError: If the groups are written in an unknown way.

    Example:
        >>> read_device_groups("replica_groups=[2,2]<=[2,2]T(1,0)", devices=4)
        [[0, 2], [1, 3]]
        >>> read_device_groups("replica_groups=mesh['a'=2,'b'=2] {'b'}", devices=4)
        [[0, 1], [2, 3]]
    """
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", attributes)
    if pairs:
        return _read_lists(pairs[1])
    listed = re.search(r"replica_groups=\{(\{.*?\})?\}", attributes)
    if listed:
        # Empty braces stand for one group of all devices.
        return _read_lists(listed[1]) if listed[1] else [list(range(devices))]
    iota = re.search(r"replica_groups=(\[[\d,]+\]<=\S*)", attributes)
    if iota:
        groups: list[list[int]] = _read_iota(iota[1].rstrip(",")).tolist()
        return groups
    named = re.search(
        r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((\S*)\))? \{(.*?)\}", attributes
    )
    if named is None:
        raise ValueError(f"expected groups of devices in {attributes[:200]!r}")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    order = _read_iota(named[2]) if named[2] else np.arange(devices)
    return _group_along(order.reshape(-1), sizes, re.findall(r"'[^']+'[^,]*", named[3]))


def _read_lists(text: str) -> list[list[int]]:
    """Reads groups that are written out, such as ``{0,1},{2,3}``."""
    groups = re.findall(r"\{([\d,\s]*)\}", text)
    return [[int(number) for number in group.split(",")] for group in groups]


def _read_iota(text: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Reads an array of device numbers, such as ``[4,2]<=[2,4]T(1,0)``.

    The example counts up in the shape 2 × 4, transposes, and reshapes to 4 × 2.
    """
    shape, _, source = text.rpartition("<=")
    parts = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", source)
    if parts is None:
        raise ValueError(f"expected an order of devices, got {text!r}")
    sizes = [int(size) for size in parts[1].split(",")]
    order = np.arange(math.prod(sizes)).reshape(sizes)
    if parts[2]:
        order = order.transpose([int(axis) for axis in parts[2].split(",")])
    if shape:
        order = order.reshape([int(size) for size in shape.strip("[]").split(",")])
    return order


def _group_along(
    order: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    sizes: dict[str, int],
    chosen: Sequence[str],
) -> list[list[int]]:
    """Groups devices along some axes of a mesh, or along parts of axes.

    Args:
        order: Devices in the order of the mesh.
        sizes: Sizes of the axes.
        chosen: Axes of the groups, such as ``'a'``, or parts such as ``'a':(2)4``. A
            part ``(p)s`` of an axis is the factor of size s after a factor of size p.

    Returns:
        The groups.
    """
    shape: list[int] = []
    along: list[int] = []
    for name, size in sizes.items():
        parts = []
        for text in chosen:
            part = re.fullmatch(rf"'{re.escape(name)}'(?::\((\d+)\)(\d+))?", text)
            if part:
                parts.append((int(part[1]), int(part[2])) if part[1] else (1, size))
        before = 1
        for first, factor in sorted(parts):
            shape += [first // before, factor]
            along.append(len(shape) - 1)
            before = first * factor
        shape.append(size // before)
    across = [axis for axis in range(len(shape)) if axis not in along]
    transposed = order.reshape(shape).transpose(across + along)
    groups: list[list[int]] = transposed.reshape(
        -1, math.prod(shape[axis] for axis in along)
    ).tolist()
    return groups
