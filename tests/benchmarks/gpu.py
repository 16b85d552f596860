"""How fast an accelerator updates VAST: ``python tests/benchmarks/gpu.py``.

It needs the trainer's packages, but no data, Grain, environment or network: random
batches of the paper's shapes (puzzle-4x4-play: S = 83, A = 5) lie on the device. It
prints tables of measurements, and one line of JSON after each.
"""

import argparse
import dataclasses
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from rich.console import Console

from trainer.costs.bench_step import StepFigures, bench_step, make_table

OUT = Console(width=140)
PAPER = {"widths": (512,), "batches": (512,), "seeds": (1,), "updates": 1500}
# Tables by name, with the settings that differ from the paper's.
TABLES: dict[str, dict[str, Any]] = {
    "precision": PAPER | {"precisions": ("float32", "bfloat16")},
    "seeds": PAPER | {"seeds": (1, 8), "precisions": ("float32", "bfloat16")},
    "batches": PAPER | {"batches": (256, 1024, 4096)},
    "widths": PAPER
    | {
        "widths": (1024, 2048, 4096, 8192),
        "precisions": ("float32", "bfloat16"),
        "updates": 60,
        "updates_per_call": 5,
    },
}


def run(name: str, settings: dict[str, Any], *, shrink: int) -> None:
    """Measures one table row by row, so that a row that does not fit loses no other."""
    rows: list[StepFigures] = []
    settings = {"updates_per_call": 50, "precisions": ("float32",)} | settings
    fixed = {
        key: max(1, settings[key] // shrink) for key in ("updates", "updates_per_call")
    }
    for width in settings["widths"]:
        for batch in settings["batches"]:
            for seeds in settings["seeds"]:
                for precision in settings["precisions"]:
                    try:
                        rows += bench_step(
                            "vast",
                            widths=(max(4, width // shrink),),
                            batches=(max(4, batch // shrink),),
                            seeds=(seeds,),
                            precisions=(precision,),
                            **fixed,
                        )
                    except jax.errors.JaxRuntimeError as error:
                        OUT.print(
                            f"width {width}, batch {batch}, {seeds} seed(s), "
                            f"{precision}: {str(error).splitlines()[0]}",
                            markup=False,
                        )
    device = jax.devices()[0].device_kind
    OUT.print(make_table(rows, title=f"{name}: VAST on {device}"))
    line = json.dumps({name: [dataclasses.asdict(row) for row in rows]})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measures the tables that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument(
        "--shrink",
        type=int,
        default=1,
        help="divide widths, batches and updates by this, to try the script on a CPU",
    )
    given = parser.parse_args()
    unknown = set(given.tables) - set(TABLES)
    if unknown:
        parser.error(f"no such table: {min(unknown)}; expected {', '.join(TABLES)}")
    OUT.print(
        f"{len(jax.devices())} {jax.devices()[0].device_kind}, JAX {jax.__version__}, "
        f"Python {platform.python_version()}"
    )
    started = time.perf_counter()
    for name in given.tables or TABLES:
        run(name, TABLES[name], shrink=given.shrink)
    OUT.print(f"{time.perf_counter() - started:,.0f} s in all")


if __name__ == "__main__":
    main()
