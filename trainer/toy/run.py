"""Runs both toys from end to end: solves them by table and network, and draws both."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

from pipeline.store import files
from trainer.toy import chain_values, grid, neural, picture
from trainer.toy.chain_values import CHAIN, COMPARED, ChainResult
from trainer.toy.picture import ValueMap
from trainer.toy.tabular import (
    FiniteData,
    Float64,
    backup,
    fixed_horizon,
    fixed_point,
    one_step,
    stitching,
)

# The penalty lies three moves from the start, so a backup of three steps includes it.
HORIZON = 3
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ToyResult:
    """Results on the grid and on the chain.

    Attributes:
        maps: Value maps in the order of the picture.
        error: Largest error of the networks' V along the spliced path.
        seconds: Training time of the networks on the grid, in seconds.
        chain: Values on the chain.
        chain_seconds: Training time of the networks on the chain, in seconds.
    """

    maps: tuple[ValueMap, ...]
    error: float
    seconds: float
    chain: ChainResult
    chain_seconds: float

    def lines(self) -> list[str]:
        """Describes the first move of each solution, and the errors of the networks."""
        lines = []
        for value_map in self.maps:
            spliced = value_map.path == grid.SPLICED_PATH
            lines.append(
                f"{value_map.title:20} V(1, 0) {value_map.values[1, 0]:+.2f}, follows "
                f"{'the spliced path' if spliced else 'another path'}, return "
                f"{value_map.collected:.2f}"
            )
        lines.append(
            f"networks: V within {self.error:.2f} of the optimum along the path, after "
            f"{self.seconds:.0f} s"
        )
        steps = ", ".join(map(str, COMPARED))
        lines.append(
            f"chain: V within {self.chain.value_error:.2f} of the truth at {steps} "
            f"steps before the goal, after {self.chain_seconds:.0f} s"
        )
        return lines


def run_toy(out: Path, *, seed: int = 0, console: Console) -> ToyResult:
    """Solves grid and chain exactly and by networks, and writes the results.

    The files are ``toy.png``, ``chain.png`` and ``toy.json``.

    Args:
        out: Folder to write into; it is made if it does not exist.
        seed: Seed of the networks.
        console: Console for progress.

    Returns:
        Value maps, errors and times.
    """
    # Made first, so that a wrong path is noticed before minutes of training.
    out.mkdir(parents=True, exist_ok=True)
    data = grid.make_episodes(neural.DISCOUNT)
    # The optimum within the data, not of the grid: for an offline agent, a cell that no
    # path visits has no value.
    optimum = fixed_point(one_step(data), data.state_count)
    (networks,), seconds = _time(
        "train on the grid",
        neural.PHASES,
        lambda progress: neural.train_networks((seed,), progress=progress),
        console,
    )
    (chain,), chain_seconds = _time(
        "train on the chain",
        chain_values.PHASES,
        lambda progress: chain_values.solve_chain((seed,), progress=progress),
        console,
    )
    error = max(
        abs(networks.values[cell] - optimum[grid.state_index(cell)])
        for cell in grid.SPLICED_PATH
    )
    stitched = stitching(data, max_horizon=neural.CONFIG.max_horizon)
    maps = (
        _tabular_map(data, "3-step backups", chunked=False),
        _tabular_map(data, "3-step chunks", chunked=True),
        _map(
            "Stitching, by table",
            "the optimum: both paths spliced",
            _by_cell(fixed_point(stitched, data.state_count)),
            grid.roll_out(lambda cell: _greedy(data, optimum, cell, 1, False)),
        ),
        _map(
            "VAST, networks",
            f"largest error on the path {error:.2f}",
            networks.values,
            networks.path,
        ),
    )
    picture.draw(maps, out / "toy.png")
    picture.draw_chain(chain, out / "chain.png")
    result = ToyResult(maps, error, seconds, chain, chain_seconds)
    text = json.dumps(_plain(result, seed), indent=1) + "\n"
    files.write_local(out / "toy.json", text.encode())
    return result


def _time(
    title: str,
    phases: tuple[tuple[int, float], ...],
    train: Callable[[Callable[[int], None]], _Result],
    console: Console,
) -> tuple[_Result, float]:
    """Trains with a progress bar; returns the result and the seconds it took."""
    started = time.perf_counter()
    # In a log, a bar would be a line of noise for each redraw.
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=sum(updates for updates, _ in phases))
        result = train(lambda updates: bar.advance(task, updates))
    return result, time.perf_counter() - started


def _map(
    title: str, caption: str, values: dict[grid.Cell, float], path: grid.Path
) -> ValueMap:
    """Makes a value map, with the return of its rollout."""
    collected = grid.compute_return(path, neural.DISCOUNT)
    return ValueMap(title, caption, values, path, collected)


def _tabular_map(data: FiniteData, title: str, *, chunked: bool) -> ValueMap:
    """Solves the grid with backups of a fixed horizon, by table."""
    operator = fixed_horizon(data, steps=HORIZON, chunked=chunked)
    values = fixed_point(operator, data.state_count)
    return _map(
        title,
        "the first move goes wrong, (1, 0) looks bad",
        _by_cell(values),
        grid.roll_out(lambda cell: _greedy(data, values, cell, HORIZON, chunked)),
    )


def _greedy(
    data: FiniteData, values: Float64, cell: grid.Cell, steps: int, chunked: bool
) -> tuple[int, ...]:
    """Chooses the best recorded move, or chunk of moves, at a cell."""
    pairs = backup(data, values, steps=steps, chunked=chunked)
    return pairs.best(grid.state_index(cell))


def _by_cell(values: Float64) -> dict[grid.Cell, float]:
    # Operators give 0 to states without data; a map shows such cells as unseen.
    return {cell: float(values[grid.state_index(cell)]) for cell in grid.VISITED}


def _plain(result: ToyResult, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "seconds": round(result.seconds, 1),
        "error": result.error,
        "maps": [
            {
                "title": value_map.title,
                "path": value_map.path,
                # JSON's keys are strings, so a cell and its value are a row instead.
                "values": [[*cell, value] for cell, value in value_map.values.items()],
            }
            for value_map in result.maps
        ],
        "chain": {
            "seconds": round(result.chain_seconds, 1),
            "value_error": result.chain.value_error,
            "compared": COMPARED,
            "before": CHAIN.before,
            "solved": CHAIN.solved,
            "truth": result.chain.truth.tolist(),
            "exact": {
                success: values.tolist()
                for success, values in result.chain.exact.items()
            },
            "networks": result.chain.networks.tolist(),
        },
    }
