"""What an update of each method costs: ``python -m tests.benchmarks.methods``.

Prints one table: updates per second at the published sizes, on random data of
cube-double-play's shape, and times as multiples of FQL's beside the paper's. Methods
take turns and medians are shown, so that ratios hold on a noisy machine too.
"""

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from trainer import config
from trainer.agents.registry import AGENTS, make_agent
from trainer.costs import published
from trainer.costs.random_data import draw_batches, make_random_table, make_shape_facts
from trainer.parallel.mesh import batch_sharding, make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import init_state

DATASET = "cube-double-play"
CONFIG = Path(__file__).parents[2] / "configs" / f"{DATASET}.toml"
REFERENCE = "fql"
# Hours of a million updates on an A100, as published.
# Source: *Horizon Adaptive Offline Policy Learning via Value Stitching*, its comparison
# of training times.
PAPER_HOURS = {"fql": 0.67, "floq": 1.2, "qc": 2.25, "vast": 2.5, "value-flows": 3.75}


@dataclass
class Method:
    """One compiled method, with its state and the batches that every call uses."""

    name: str
    width: int
    batch_size: int
    parameters: int
    compile_s: float
    call: Callable[[Any, Any, Any], tuple[Any, Any]]
    state: Any
    batches: Any

    def run(self) -> float:
        """Makes one call; returns the seconds until the device has finished it."""
        started = time.perf_counter()
        self.state, metrics = self.call(self.state, None, self.batches)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - started


def prepare(name: str, *, width: int | None, updates: int) -> Method:
    """Compiles a method's call of several updates, and makes the first call."""
    settings = config.load(CONFIG, task=1, agent=name)
    agent_config, size = settings.agent, settings.trainer.batch_size
    if width is not None:
        agent_config = dataclasses.replace(agent_config, width=width)
    known = published.find_dataset(DATASET)
    facts = make_shape_facts(known.observation_dim, known.action_dim)
    agent = make_agent(agent_config, facts)
    table = make_random_table(facts, discount=agent_config.discount)
    mesh = make_mesh(MeshConfig(), seeds=1, batch_size=size, devices=jax.devices()[:1])
    batches = jax.device_put(
        draw_batches(agent, table, updates=updates, seeds=(0,), size=size),
        batch_sharding(mesh),
    )
    state = init_state(agent, mesh, (0,))
    started = time.perf_counter()
    call: Any = make_train_call(agent, mesh, seeds=1)
    compiled = call.lower(state, None, batches).compile()
    method = Method(
        name=name,
        width=agent_config.width,
        batch_size=size,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.agent.params)),
        compile_s=time.perf_counter() - started,
        call=compiled,
        state=state,
        batches=batches,
    )
    method.run()  # Warms up.
    return method


def rows(methods: list[Method], *, updates: int, rounds: int) -> Iterator[list[str]]:
    """Measures all methods in turn; yields rows of the table."""
    taken = [[method.run() for method in methods] for _ in range(rounds)]
    seconds = {
        method.name: statistics.median(times) / updates
        for method, times in zip(methods, zip(*taken, strict=True), strict=True)
    }
    for method in methods:
        took, paper = seconds[method.name], PAPER_HOURS.get(method.name)
        yield [
            method.name,
            str(method.width),
            str(method.batch_size),
            f"{method.parameters / 1e6:.2f}",
            f"{method.compile_s:.1f}",
            f"{1 / took:,.2f}",
            f"{took / seconds[REFERENCE]:.2f}",
            "" if paper is None else f"{paper / PAPER_HOURS[REFERENCE]:.1f}",
        ]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument(
        "--width", type=int, help="width of all methods; as configured by default"
    )
    parser.add_argument("--updates", type=int, default=5, help="updates of a call")
    parser.add_argument("--rounds", type=int, default=3, help="calls of each method")
    given = parser.parse_args()
    names = [name for name in AGENTS if name in {REFERENCE, *given.methods}]
    console = Console()
    console.width = max(console.width, 100)
    methods = []
    for name in names:
        console.print(f"compiling {name}")
        methods.append(prepare(name, width=given.width, updates=given.updates))
    device = jax.devices()[0]
    table = Table(
        *("method", "width", "batch", "parameters, M", "compile s", "updates/s"),
        *("time / FQL's", "the paper's"),
        title=f"{DATASET}, {device.device_kind} ({os.cpu_count()} cores), median of "
        f"{given.rounds} calls of {given.updates}",
    )
    for row in rows(methods, updates=given.updates, rounds=given.rounds):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
