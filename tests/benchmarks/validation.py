"""What measuring on held-out windows costs: ``python -m tests.benchmarks.validation``.

Trains each agent for a hundred updates on made-up rows of cube-single's sizes, measures
every twenty updates, and prints how many updates of the same run a measurement takes.
On a busy machine this ratio varies less than either time.
"""

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.store.reader import Store
from tests.stores import write_store
from trainer import config as configuration
from trainer.data.held_out import load_held_out
from trainer.data.table import load_table
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import describe_run
from trainer.training import loop

CONFIG = "configs/cpu-evidence.toml"  # Width 128, B 256.
DISCOUNTS = (0.99, 0.995)


def measure(agent: str, store: Store, out: Path) -> tuple[float, float]:
    """Measures seconds of an update and of a measurement, medians of five points."""
    config = configuration.load(CONFIG, task=1, agent=agent)
    trainer = dataclasses.replace(
        config.trainer,
        steps=100,
        updates_per_call=10,
        log_every=20,
        checkpoint_every=100,
        validate_every=20,
        seeds=1,
    )
    settings = dataclasses.replace(config.agent, width=128)
    config = dataclasses.replace(config, agent=settings, trainer=trainer)
    discount = config.agent.discount
    table = load_table(store, task=1, discount=discount)
    run = describe_run(config, store, 1, fingerprint=table.fingerprint)
    folder = RunFolder.open(out)
    loop.train(
        run,
        table,
        folder,
        held_out=load_held_out(store, task=1, discount=discount),
        console=Console(quiet=True),
    )
    lines = folder.read_lines(METRICS_FILE)
    return (
        statistics.median(1 / line["updates_per_s"] for line in lines),
        statistics.median(line["validation_s"] for line in lines),
    )


def main() -> None:
    """Prints a row for each agent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["vast", "iql", "fql"])
    agents = parser.parse_args().agents
    table = Table("agent", "ms an update", "ms a measurement", "in updates")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(
            str(
                write_store(
                    Path(folder) / "store",
                    [[1000] * 20],
                    val=[[1000] * 4],
                    S=28,
                    A=5,
                    dataset="cube-single-play",
                    discounts=DISCOUNTS,
                )
            )
        )
        for agent in agents:
            update_s, measured_s = measure(agent, store, Path(folder) / agent)
            figures = (1e3 * update_s, 1e3 * measured_s, measured_s / update_s)
            table.add_row(agent, *(f"{figure:.1f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
