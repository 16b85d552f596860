"""What more cores gain with narrow networks: ``python -m tests.benchmarks.cores``.

Four ways to use the cores take turns: one process as XLA threads it, one process with
one thread, and a process for each core, with XLA's threads or with one thread each, as
``sweep --jobs`` runs them. The processes of a way compute at the same time, each with
its own agent; the updates a second are summed over them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from trainer.cores import count_usable_cores
from trainer.sweep.devices import make_cpu_environment

CALL = 10  # Updates of a call.
OBSERVATION_DIM, ACTION_DIM = 29, 8


def work(width: int, batch_size: int, seconds: float) -> None:
    """Prints "ready", waits for a line, and prints its updates a second."""
    import jax

    from trainer.agents.vast import VAST
    from trainer.agents.vast_config import VASTConfig
    from trainer.costs.random_data import (
        draw_batches,
        make_random_table,
        make_shape_facts,
    )
    from trainer.parallel.mesh import make_mesh
    from trainer.parallel.mesh_shape import MeshConfig
    from trainer.step.call import make_train_call
    from trainer.step.state import init_state

    facts = make_shape_facts(OBSERVATION_DIM, ACTION_DIM)
    agent = VAST(VASTConfig(width=width), facts)
    mesh = make_mesh(
        MeshConfig(data=1), seeds=1, batch_size=batch_size, devices=jax.devices()[:1]
    )
    table = make_random_table(facts, discount=agent.config.discount)
    batches = draw_batches(agent, table, updates=CALL, seeds=(0,), size=batch_size)
    call = make_train_call(agent, mesh, seeds=1)
    state = init_state(agent, mesh, [0])
    state, metrics = call(state, None, batches)
    jax.block_until_ready(metrics)
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        state, metrics = call(state, None, batches)
        jax.block_until_ready(metrics)
        calls += 1
    print(calls * CALL / (time.perf_counter() - started))  # noqa: T201


def measure(
    processes: int, *, one_thread: bool, arguments: Sequence[str]
) -> list[float]:
    """Measures updates a second of processes that compute at the same time."""
    variables = make_cpu_environment(1) if one_thread else {}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.cores", "--work", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **variables, "JAX_PLATFORMS": "cpu"},
        )
        for _ in range(processes)
    ]
    for worker in workers:
        if worker.stdout is None or worker.stdout.readline() != "ready\n":
            raise RuntimeError("a worker ended before it was ready")
    # All start before the first is waited for, or they would take turns.
    for worker in workers:
        if worker.stdin is not None:
            worker.stdin.write("go\n")
            worker.stdin.flush()
    return [float(worker.communicate()[0]) for worker in workers]


def main() -> None:
    """Measures the ways in turns, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 512])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each turn"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.widths[0], given.batch_size, given.seconds)
        return
    cores = count_usable_cores()
    ways = {
        "one process": (1, False),
        "one process, one thread": (1, True),
        f"{cores} processes": (cores, False),
        f"{cores} processes, one thread each": (cores, True),
    }
    table = Table("width", *ways, title=f"VAST, updates/s in all, {cores} cores")
    for width in given.widths:
        options = ["--widths", str(width), "--batch-size", str(given.batch_size)]
        options += ["--seconds", str(given.seconds)]
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, (processes, one_thread) in ways.items():
                rates = measure(processes, one_thread=one_thread, arguments=options)
                found[way].append(sum(rates))
        medians = {way: statistics.median(rates) for way, rates in found.items()}
        base = medians["one process"]
        table.add_row(
            str(width),
            *(f"{rate:.1f} ({rate / base:.2f})" for rate in medians.values()),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
