"""What the compiled call costs a chip: memory, traffic, kernels, and the least time.

Dimensions: M updates per call.
"""

import dataclasses
from collections.abc import Sequence
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
    """Collectives of one kind along the same axes, in an update.

    Attributes:
        kind: Such as ``all-gather``.
        axes: Mesh axes.
        in_loops: Whether inside loops over flow steps.
        times: How often.
        bytes: Of what is gathered or reduced, whole.
        largest_bytes: Of the largest array.
        sent_bytes: That a chip sends, round a ring.
        link_ms: What that takes at the link's rate one way; None where chips have no
            links of their own.
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
    """What an update of all seeds costs, as compiled.

    Attributes:
        memory: As planned on each chip.
        memory_bytes: That a chip has; None for CPUs.
        donated: Whether the state's new values take the place of the old ones.
        traffic: What chips send each other.
        kernels: Kernels, copies and collectives, one after another.
        estimated_cycles: XLA's own estimate; None where it makes none.
        flops: Operations of dense layers, by all chips; None where the agent's are not
            counted.
        least_ms: Least time by what bounds it: ``"arithmetic"``, ``"memory"`` and
            ``"links"``, as far as known.
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
        """Of a chip's memory that the call takes; None where either is not known."""
        if self.memory is None or self.memory_bytes is None:
            return None
        return self.memory.total / self.memory_bytes

    @property
    def bound(self) -> tuple[str, float] | None:
        """What takes longest, and its milliseconds; None where nothing is known."""
        if not self.least_ms:
            return None
        longest = max(self.least_ms, key=self.least_ms.__getitem__)
        return longest, self.least_ms[longest]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        bound = self.bound
        memory = self.memory
        return dataclasses.asdict(self) | {
            "memory": None
            if memory is None
            else dataclasses.asdict(memory) | {"total": memory.total},
            "memory_share": self.memory_share,
            "bound": None if bound is None else bound[0],
        }


def cost_of(
    call: CompiledCall,
    config: "Config",
    networks: tuple[Network, ...],
    chip: Accelerator | None,
) -> CallCosts:
    """Reads a compiled call's costs.

    Args:
        call: The call.
        config: That it was compiled for.
        networks: Of the agent.
        chip: What each device can do; None for CPUs.

    Returns:
        The costs.
    """
    traffic = sum_traffic(call, chip)
    operations = count_operations(config, networks)
    memory = call.memory
    cycles = hlo.estimated_cycles(call.module)
    least = {}
    if chip is not None:
        if operations is not None:
            peak = chip.default_peak
            if config.agent.precision == "bfloat16":
                peak = chip.peaks["bfloat16"]
            least["arithmetic"] = 1e3 * operations / (call.mesh.size * peak)
        if memory is not None:
            # The state is read and written once an update.
            least["memory"] = 1e3 * 2 * memory.donated / chip.bandwidth
        if chip.link_bytes_per_s is not None and call.mesh.size > 1:
            least["links"] = sum(each.link_ms or 0.0 for each in traffic)
    return CallCosts(
        memory=memory,
        memory_bytes=None if chip is None else chip.memory_bytes,
        donated=call.donated,
        traffic=traffic,
        kernels=call.per_update(hlo.kernels(call.module)),
        estimated_cycles=None if cycles is None else call.per_update(cycles),
        flops=operations,
        least_ms=least,
    )


def count_operations(config: "Config", networks: tuple[Network, ...]) -> int | None:
    """Operations of the dense layers in an update of all seeds.

    A compiler's own count is no substitute: it counts the body of a loop once.

    Args:
        config: As resolved for a task.
        networks: Of the agent.

    Returns:
        Operations; None where the agent's evaluations are not counted.
    """
    count_calls = flops.CALLS.get(config.agent.name)
    if count_calls is None:
        return None
    calls = count_calls(config.agent, config.trainer.batch_size)
    return config.trainer.seeds * flops.update_flops(calls, optimised_layers(networks))


def sum_traffic(call: CompiledCall, chip: Accelerator | None) -> tuple[Traffic, ...]:
    """Adds up an update's collectives by kind, axes, and whether in a flow's loop.

    Args:
        call: The call.
        chip: For the links' rate; None for CPUs.

    Returns:
        The sums, those that send most first.
    """
    groups: dict[tuple[str, tuple[str, ...], bool], list[Collective]] = {}
    for each in call.collectives:
        inside = bool(call.inner_loops(each.loops))
        groups.setdefault((each.kind, each.axes, inside), []).append(each)
    rate = chip.link_bytes_per_s if chip is not None else None
    sums = []
    for (kind, axes, inside), members in groups.items():
        sent = call.per_update(sum(each.times * each.sent for each in members))
        sums.append(
            Traffic(
                kind=kind,
                axes=axes,
                in_loops=inside,
                times=call.per_update(sum(each.times for each in members)),
                bytes=call.per_update(sum(each.times * each.bytes for each in members)),
                largest_bytes=max(_largest(members)),
                sent_bytes=sent,
                link_ms=None if rate is None else 1e3 * sent / (rate / 2),
            )
        )
    return tuple(sorted(sums, key=lambda each: -each.sent_bytes))


def _largest(members: Sequence[Collective]) -> list[int]:
    return [max(each.array_bytes) for each in members]
