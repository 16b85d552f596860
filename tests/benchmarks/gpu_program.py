"""What a GPU would run, without one: ``python tests/benchmarks/gpu_program.py``.

XLA compiles for a GPU from a description of it. At the paper's size the kernels of an
update are so small that their number says more about its time than its operations do.
So this script counts kernels, and shows on any machine how a change of networks or
losses affects them. It needs ``pip install "jax[cuda12]"`` beside the trainer's
packages. Without a device XLA cannot try which matrix product is fastest, so it uses
its default ones.

Dimensions: M updates per call.
"""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
# Otherwise JAX looks for a driver before it registers CUDA.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu,cuda"

import jax
from jax.experimental import topologies
from rich.console import Console
from rich.table import Table

from trainer.agents.registry import AGENTS
from trainer.costs.bench_step import make_plain_call
from trainer.costs.gpu_targets import TARGETS
from trainer.costs.random_data import draw_batches, make_random_table, make_shape_facts
from trainer.step.state import abstract_state

# Sizes of puzzle-4x4-play, for which the paper has times; and M.
OBSERVATION_DIM, ACTION_DIM, BATCH, UPDATES = 83, 5, 512, 50
# Instructions that launch nothing.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


@dataclass(frozen=True)
class Program:
    """Kernels of one update.

    Attributes:
        kernels: Number of all kernels.
        sampling: Number of kernels in the loops that integrate flows.
        products: Number of matrix products, with the operations fused into them.
        temporary_bytes: Memory of a call besides its arguments and results.
    """

    kernels: int
    sampling: int
    products: int
    temporary_bytes: int


def compile_update(
    name: str, *, seeds: int, precision: str, device: jax.sharding.Sharding
) -> Program:
    """Compiles M updates of an agent for a device that need not be there.

    Args:
        name: Name of the agent, which has its default width.
        seeds: Number of seeds that are updated together.
        precision: Precision of the hidden layers' products.
        device: Device of all arrays.

    Returns:
        The kernels of one update.
    """
    facts = make_shape_facts(OBSERVATION_DIM, ACTION_DIM)
    kind = AGENTS[name]
    agent = kind.agent(kind.config(precision=precision), facts)
    batches = draw_batches(
        agent,
        make_random_table(facts, discount=agent.sampler.discount),
        updates=UPDATES,
        seeds=tuple(range(seeds)),
        size=BATCH,
    )
    state, batches = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        (abstract_state(agent, seeds=seeds), batches),
    )
    compiled = (
        make_plain_call(agent)
        .lower(state, batches)
        .compile(compiler_options={"xla_gpu_autotune_level": 0})
    )
    computations = _computations(compiled.as_text())
    (update,) = (
        body
        for lines in computations.values()
        for body, times in _loops(lines)
        if times == UPDATES
    )
    outside = _launched(computations[update])
    inside = Counter[str]()
    for body, times in _loops(computations[update]):
        for kernel, count in _launched(computations[body]).items():
            inside[kernel] += times * count
    both = outside + inside
    return Program(
        kernels=both.total(),
        sampling=inside.total(),
        products=both["product"],
        temporary_bytes=compiled.memory_analysis().temp_size_in_bytes,
    )


def _computations(text: str) -> dict[str, list[str]]:
    """Parses a module's text: the instructions of every computation, by its name."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line)
        if head:
            lines = found.setdefault(head[1], [])
        elif " = " in line and line.startswith(" "):
            lines.append(line)
    return found


def _loops(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Finds loops among instructions: the computation that each repeats, how often."""
    for line in lines:
        times = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
        body = re.search(r"\bbody=%?([\w.\-]+)", line)
        if times and body:
            yield body[1], int(times[1])


def _launched(lines: list[str]) -> Counter[str]:
    """Counts kernels by kind: matrix products and others."""
    kinds = Counter[str]()
    for line in lines:
        operation = _operation(line)
        if operation in _FREE or operation == "while":
            continue
        product = re.search(r'"kind":"__triton\w*gemm|target="__cublas', line)
        kinds["product" if product else "other"] += 1
    return kinds


def _operation(line: str) -> str:
    """Name of an instruction's operation, which follows the type of its result."""
    result = line.split(" = ", 1)[1]
    depth = 0
    for at, character in enumerate(result):
        depth += (character == "(") - (character == ")")
        if character == " " and depth == 0:
            return result[at + 1 :].split("(")[0]
    raise ValueError(f"expected an instruction, got {line!r}")


def main() -> None:
    """Compiles and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=["vast"], metavar="AGENT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    given = parser.parse_args()
    described = topologies.get_topology_desc(
        "", platform="cuda", target_config=TARGETS["h100"], topology="1x1x1"
    )
    device = jax.sharding.SingleDeviceSharding(described.devices[0])
    kind = described.devices[0].device_kind
    shown = Table(
        *("agent", "seeds", "precision", "kernels", "sampling", "products", "MiB"),
        title=f"kernels of an update on {kind}, batch {BATCH}",
    )
    for name in given.agents:
        for seeds in given.seeds:
            for precision in given.precisions:
                program = compile_update(
                    name, seeds=seeds, precision=precision, device=device
                )
                shown.add_row(
                    *(name, str(seeds), precision, f"{program.kernels:,}"),
                    *(f"{program.sampling:,}", f"{program.products:,}"),
                    f"{program.temporary_bytes / 2**20:,.0f}",
                )
    Console().print(shown)


if __name__ == "__main__":
    main()
