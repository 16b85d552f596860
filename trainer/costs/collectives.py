"""What chips of a compiled program send each other, and along which axes of the mesh.

Dimensions: n chips of a group.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.costs import hlo

# Bytes a chip sends by those of the larger side, of n chips in a ring.
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
        kind: Such as ``all-gather``.
        axes: Mesh axes whose devices take part, such as ``("data", "fsdp")``.
        chips: Of a group.
        loops: How often each loop around it repeats, the outermost first.
        array_bytes: Of each array, at its larger side: what is gathered, reduced or
            scattered, whole.
    """

    kind: str
    axes: tuple[str, ...]
    chips: int
    loops: tuple[int, ...]
    array_bytes: tuple[int, ...]

    @property
    def times(self) -> int:
        """How often it runs in a call."""
        return math.prod(self.loops)

    @property
    def bytes(self) -> int:
        """Of all its arrays."""
        return sum(self.array_bytes)

    @property
    def sent(self) -> float:
        """Bytes that a chip sends each time, round a ring."""
        return _SENT[self.kind](self.chips) * self.bytes


def find_collectives(
    module: hlo.Module, mesh: Mapping[str, int]
) -> tuple[Collective, ...]:
    """Finds the collectives of a program.

    Those that XLA spreads over several fusions, to hide them behind arithmetic, count
    once; an all-reduce of which each chip keeps its part is a reduce-scatter.

    Args:
        module: The program.
        mesh: Sizes of the axes, in the order in which devices were arranged.

    Returns:
        The collectives, in the order in which they run; those of one chip left out.
    """
    found = []
    chains = set()
    for execution in hlo.executions(module, fused=True):
        each = execution.instruction
        kind = each.operation.removesuffix("-start")
        if kind not in _SENT:
            continue
        chain = re.search(r'chain_id="(\d+)"', each.rest)
        if chain and chain[1] in chains:
            continue
        if chain:
            chains.add(chain[1])
        if (execution.fused_into or "").startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        group = device_groups(each.rest, devices=math.prod(mesh.values()))[0]
        if len(group) == 1:
            continue
        sizes = hlo.array_bytes(each.result)
        if kind == "all-gather" and each.operation != kind:
            sizes = sizes[len(sizes) // 2 :]  # What it starts from stands there, too.
        elif kind == "reduce-scatter" and each.operation == kind:
            sizes = [size * len(group) for size in sizes]
        elif kind == "collective-permute" and each.operation != kind:
            sizes = sizes[:1]
        found.append(
            Collective(
                kind=kind,
                axes=_axes_of(group, mesh),
                chips=len(group),
                loops=execution.loops,
                array_bytes=tuple(sizes),
            )
        )
    return tuple(found)


def _axes_of(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Axes along which the members of a group differ."""
    places = np.unravel_index(np.asarray(group), tuple(mesh.values()))
    return tuple(
        axis
        for axis, place in zip(mesh, places, strict=True)
        if len(set(place.tolist())) > 1
    )


def device_groups(attributes: str, *, devices: int) -> list[list[int]]:
    """Reads which devices of the mesh take part together.

    Args:
        attributes: Of a collective, with its groups in any of XLA's ways to write
            them.
        devices: Of the program.

    Returns:
        Numbers of devices in the order of the mesh, by group.

    Raises:
        ValueError: If the groups are written in another way.

    Example:
        >>> device_groups("replica_groups=[2,2]<=[2,2]T(1,0)", devices=4)
        [[0, 2], [1, 3]]
        >>> device_groups("replica_groups=mesh['a'=2,'b'=2] {'b'}", devices=4)
        [[0, 1], [2, 3]]
    """
    pairs = re.search(r"source_target_pairs=\{(\{.*?\})\}", attributes)
    if pairs:
        return _lists(pairs[1])
    listed = re.search(r"replica_groups=\{(\{.*?\})?\}", attributes)
    if listed:
        return _lists(listed[1]) if listed[1] else [list(range(devices))]
    iota = re.search(r"replica_groups=(\[[\d,]+\]<=\S*)", attributes)
    if iota:
        groups: list[list[int]] = _iota(iota[1].rstrip(",")).tolist()
        return groups
    named = re.search(
        r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((\S*)\))? \{(.*?)\}", attributes
    )
    if named is None:
        raise ValueError(f"expected groups of devices in {attributes[:200]!r}")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    order = _iota(named[2]) if named[2] else np.arange(devices)
    return _along(order.reshape(-1), sizes, re.findall(r"'[^']+'[^,]*", named[3]))


def _lists(text: str) -> list[list[int]]:
    groups = re.findall(r"\{([\d,\s]*)\}", text)
    return [[int(number) for number in group.split(",")] for group in groups]


def _iota(text: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Reads ``[4,2]<=[2,4]T(1,0)`` and ``[2,4]T(1,0)``: numbers counted up, turned."""
    shape, _, source = text.rpartition("<=")
    found = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", source)
    if found is None:
        raise ValueError(f"expected an order of devices, got {text!r}")
    sizes = [int(size) for size in found[1].split(",")]
    order = np.arange(math.prod(sizes)).reshape(sizes)
    if found[2]:
        order = order.transpose([int(axis) for axis in found[2].split(",")])
    if shape:
        order = order.reshape([int(size) for size in shape.strip("[]").split(",")])
    return order


def _along(
    order: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    sizes: dict[str, int],
    chosen: Sequence[str],
) -> list[list[int]]:
    """Groups along some axes of a mesh, or along parts of them: ``'a':(2)4``.

    A part ``(p)s`` of an axis is the factor of size s after the first p.
    """
    shape: list[int] = []
    along: list[int] = []
    for name, size in sizes.items():
        parts = []
        for text in chosen:
            found = re.fullmatch(rf"'{re.escape(name)}'(?::\((\d+)\)(\d+))?", text)
            if found:
                parts.append((int(found[1]), int(found[2])) if found[1] else (1, size))
        before = 1
        for first, factor in sorted(parts):
            shape += [first // before, factor]
            along.append(len(shape) - 1)
            before = first * factor
        shape.append(size // before)
    across = [axis for axis in range(len(shape)) if axis not in along]
    turned = order.reshape(shape).transpose(across + along)
    groups: list[list[int]] = turned.reshape(
        -1, math.prod(shape[axis] for axis in along)
    ).tolist()
    return groups
