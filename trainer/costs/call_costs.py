"""Costs of the compiled call on a chip: memory, traffic, kernels and least time.

Dimensions: M updates per call.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.costs import flops, hlo
from trainer.costs.accelerators import Accelerator
from trainer.costs.collectives import Collective
from trainer.costs.compiled import CompiledCall, Memory
from trainer.costs.network_shapes import Network, optimised_layers

if TYPE_CHECKING:
    from trainer.config import Config


@dataclass(frozen=True)
class Traffic:
    """The collectives of an update that are of one kind and along the same axes.

    Attributes:
        kind: Kind of the collectives, such as ``all-gather``.
        axes: Mesh axes whose devices take part.
        in_loops: Whether they run inside loops over flow steps.
        times: Number of collectives.
        bytes: Bytes of the whole arrays that are gathered or reduced.
        largest_bytes: Bytes of the largest array.
        sent_bytes: Bytes that a chip sends if the chips form a ring.
        link_ms: Milliseconds for these bytes at the link's rate in one direction; None
            if chips have no links of their own.
    """

    kind: str
    axes: tuple[str, ...]
    in_loops: bool
    times: float
    bytes: float
    largest_bytes: int
    sent_bytes: float
    link_ms: float | None


@dataclass(frozen=True)
class CallCosts:
    """Costs of an update of all seeds, read from the compiled program.

    Attributes:
        memory: Memory that the compiler plans on each chip; None if it does not say.
        memory_bytes: Memory that a chip has; None for CPUs.
        donated: Whether all of the state is updated in place.
        traffic: Sums over the collectives.
        kernels: Number of kernels, copies and collectives that are launched.
        estimated_cycles: XLA's own estimate of the cycles; None if it makes none.
        flops: Operations of the dense layers on all chips; None if the agent's are not
            counted.
        least_ms: Least milliseconds by resource, ``"arithmetic"``, ``"memory"`` or
            ``"links"``, as far as they are known.
    """

    memory: Memory | None
    memory_bytes: int | None
    donated: bool
    traffic: tuple[Traffic, ...]
    kernels: float
    estimated_cycles: float | None
    flops: int | None
    least_ms: dict[str, float]

    @property
    def memory_share(self) -> float | None:
        """Share of a chip's memory that the call takes; None if it is not known."""
        if self.memory is None or self.memory_bytes is None:
            return None
        return self.memory.total / self.memory_bytes

    @property
    def bound(self) -> tuple[str, float] | None:
        """Resource that takes longest, and its milliseconds; None if none is known."""
        if not self.least_ms:
            return None
        longest = max(self.least_ms, key=self.least_ms.__getitem__)
        return longest, self.least_ms[longest]

    def to_json(self) -> dict[str, Any]:
        """Makes plain values that JSON can hold."""
        bound = self.bound
        memory = self.memory
        return dataclasses.asdict(self) | {
            "memory": None
            if memory is None
            else dataclasses.asdict(memory) | {"total": memory.total},
            "memory_share": self.memory_share,
            "bound": None if bound is None else bound[0],
        }


def read_costs(
    call: CompiledCall,
    config: "Config",
    networks: tuple[Network, ...],
    chip: Accelerator | None,
) -> CallCosts:
    """Reads the costs of a compiled call.

    Args:
        call: The compiled call.
        config: Configuration that it was compiled for.
        networks: Networks of the agent.
        chip: Accelerator that it was compiled for; None for CPUs.

    Returns:
        The costs.
    """
    traffic = sum_traffic(call, chip)
    operations = count_operations(config, networks)
    memory = call.memory
    cycles = hlo.sum_estimated_cycles(call.module)
    least = {}
    if chip is not None:
        if operations is not None:
            # float32 products have JAX's default precision, which is no more than
            # TensorFloat-32 or bfloat16.
            peak = chip.default_peak
            if config.agent.precision == "bfloat16":
                peak = chip.peaks["bfloat16"]
            least["arithmetic"] = 1e3 * operations / (call.mesh.size * peak)
        if memory is not None:
            # Each update reads the state once and writes it once.
            least["memory"] = 1e3 * 2 * memory.donated / chip.bandwidth
        # Traffic may overlap with arithmetic, so these times are not added up.
        if chip.link_bytes_per_s is not None and call.mesh.size > 1:
            least["links"] = sum(group.link_ms or 0.0 for group in traffic)
    return CallCosts(
        memory=memory,
        memory_bytes=None if chip is None else chip.memory_bytes,
        donated=call.donated,
        traffic=traffic,
        kernels=call.per_update(hlo.count_kernels(call.module)),
        estimated_cycles=None if cycles is None else call.per_update(cycles),
        flops=operations,
        least_ms=least,
    )


def count_operations(config: "Config", networks: tuple[Network, ...]) -> int | None:
    """Counts the operations of the dense layers in an update of all seeds.

    Args:
        config: Configuration of the run.
        networks: Networks of the agent.

    Returns:
        Number of operations; None if the agent's are not counted.
    """
    # The compiler's own count is no substitute: it counts the body of a loop once, and
    # flows are sampled in loops.
    list_calls = flops.CALLS.get(config.agent.name)
    if list_calls is None:
        return None
    calls = list_calls(config.agent, config.trainer.batch_size)
    return config.trainer.seeds * flops.update_flops(calls, optimised_layers(networks))


def sum_traffic(call: CompiledCall, chip: Accelerator | None) -> tuple[Traffic, ...]:
    """Sums the collectives of an update by kind, axes and place in or outside loops.

    Args:
        call: The compiled call.
        chip: Accelerator with the links' rate; None for CPUs.

    Returns:
        The sums, in descending order of the bytes that a chip sends.
    """
    groups: dict[tuple[str, tuple[str, ...], bool], list[Collective]] = {}
    for collective in call.collectives:
        inside = bool(call.select_inner_loops(collective.loops))
        key = (collective.kind, collective.axes, inside)
        groups.setdefault(key, []).append(collective)
    # The figure in the table is for both directions together; a ring sends in one.
    rate = chip.link_bytes_per_s if chip is not None else None
    sums = []
    # A collective in a loop runs in every turn, and a call has several updates.
    for (kind, axes, inside), members in groups.items():
        sent = call.per_update(sum(member.times * member.sent for member in members))
        sums.append(
            Traffic(
                kind=kind,
                axes=axes,
                in_loops=inside,
                times=call.per_update(sum(member.times for member in members)),
                bytes=call.per_update(
                    sum(member.times * member.bytes for member in members)
                ),
                largest_bytes=max(max(member.array_bytes) for member in members),
                sent_bytes=sent,
                link_ms=None if rate is None else 1e3 * sent / (rate / 2),
            )
        )
    return tuple(sorted(sums, key=lambda traffic: -traffic.sent_bytes))
