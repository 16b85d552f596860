"""The toys from end to end: solved by table and by network, drawn, written down."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

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

HORIZON = 3
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ToyResult:
    """What became of the grid and the chain.

    Attributes:
        maps: Value maps in the order of the picture.
        error: Largest distance of the networks' V from the optimum, along the
            spliced path.
        seconds: Training time of the networks on the grid.
        chain: Values on the chain.
        chain_seconds: Training time of the networks on the chain.
    """

    maps: tuple[ValueMap, ...]
    error: float
    seconds: float
    chain: ChainResult
    chain_seconds: float

    def lines(self) -> list[str]:
        """Says what each way of solving does at the fork, and how far networks came."""
        lines = []
        for one in self.maps:
            spliced = one.path == grid.SPLICED_PATH
            lines.append(
                f"{one.title:20} V(1, 0) {one.values[1, 0]:+.2f}, follows "
                f"{'the spliced path' if spliced else 'another path'}, return "
                f"{one.collected:.2f}"
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
    """Solves grid and chain every way; writes ``toy.png``, ``chain.png``, ``toy.json``.

    Args:
        out: Folder; made if it does not exist.
        seed: Of the networks.
        console: For progress.

    Returns:
        Value maps, errors and times.
    """
    data = grid.recorded(neural.DISCOUNT)
    optimum = fixed_point(one_step(data), data.state_count)
    (found,), seconds = _timed(
        "train on the grid",
        neural.PHASES,
        lambda progress: neural.train_networks((seed,), progress=progress),
        console,
    )
    (chain,), chain_seconds = _timed(
        "train on the chain",
        chain_values.PHASES,
        lambda progress: chain_values.solve_chain((seed,), progress=progress),
        console,
    )
    error = max(
        abs(found.values[cell] - optimum[grid.state_index(cell)])
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
            grid.rollout(lambda cell: _greedy(data, optimum, cell, 1, False)),
        ),
        _map(
            "VAST, networks",
            f"largest error on the path {error:.2f}",
            found.values,
            found.path,
        ),
    )
    out.mkdir(parents=True, exist_ok=True)
    picture.draw(maps, out / "toy.png")
    picture.draw_chain(chain, out / "chain.png")
    result = ToyResult(maps, error, seconds, chain, chain_seconds)
    (out / "toy.json").write_text(json.dumps(_plain(result, seed), indent=1) + "\n")
    return result


def _timed(
    title: str,
    phases: tuple[tuple[int, float], ...],
    work: Callable[[Callable[[int], None]], _Found],
    console: Console,
) -> tuple[_Found, float]:
    """Trains under a bar of progress; what became of it, and the seconds it took."""
    started = time.perf_counter()
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=sum(updates for updates, _ in phases))
        found = work(lambda updates: bar.advance(task, updates))
    return found, time.perf_counter() - started


def _map(
    title: str, caption: str, values: dict[grid.Cell, float], path: grid.Path
) -> ValueMap:
    """A panel, with what its rollout collects."""
    collected = grid.path_return(path, neural.DISCOUNT)
    return ValueMap(title, caption, values, path, collected)


def _tabular_map(data: FiniteData, title: str, *, chunked: bool) -> ValueMap:
    operator = fixed_horizon(data, steps=HORIZON, chunked=chunked)
    fixed = fixed_point(operator, data.state_count)
    return _map(
        title,
        "the first move goes wrong, (1, 0) looks bad",
        _by_cell(fixed),
        grid.rollout(lambda cell: _greedy(data, fixed, cell, HORIZON, chunked)),
    )


def _greedy(
    data: FiniteData, values: Float64, cell: grid.Cell, steps: int, chunked: bool
) -> tuple[int, ...]:
    pairs = backup(data, values, steps=steps, chunked=chunked)
    return pairs.best(grid.state_index(cell))


def _by_cell(values: Float64) -> dict[grid.Cell, float]:
    return {cell: float(values[grid.state_index(cell)]) for cell in grid.VISITED}


def _plain(result: ToyResult, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "seconds": round(result.seconds, 1),
        "error": result.error,
        "maps": [
            {
                "title": one.title,
                "path": one.path,
                "values": [[*cell, value] for cell, value in one.values.items()],
            }
            for one in result.maps
        ],
        "chain": {
            "seconds": round(result.chain_seconds, 1),
            "value_error": result.chain.value_error,
            "compared": COMPARED,
            "before": CHAIN.before,
            "solved": CHAIN.solved,
            "truth": result.chain.truth.tolist(),
            "exact": {name: one.tolist() for name, one in result.chain.exact.items()},
            "networks": result.chain.networks.tolist(),
        },
    }
