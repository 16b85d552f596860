"""Reads figures of compiled programs, which ``python -m trainer compile`` writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import LaunchError
from infra.estimates import scale
from trainer.agents.vast_config import VASTConfig
from trainer.costs import call_memory, published
from trainer.costs.accelerators import ACCELERATORS

# Fields of `trainer` that change the compiled program.
_TRAINER = ("batch_size", "microbatches", "seeds", "updates_per_call")


@dataclass(frozen=True)
class Compiled:
    """Figures of one compiled training call.

    Attributes:
        topology: Kind and number of chips, such as ``v5e-16``.
        accelerator: Kind of the chips.
        chips: Number of chips.
        mesh: Sizes of the mesh axes.
        config: Plain values of the configuration.
        rows: Rows of the store that lie on each chip.
        memory_bytes: Peak memory of a chip, including the program; None if the compiler
            does not report it.
        memory_share: Share of the chip's memory; None for CPUs.
        sent_bytes: Bytes that a chip sends in an update.
        kernels: Number of kernels of an update.
        estimated_cycles: XLA's estimate of the cycles of an update; None if it makes
            none.
        least_ms: Lower bound of the time of an update, in ms; None if there is none.
        bound: Resource that sets the lower bound.
    """

    topology: str
    accelerator: str
    chips: int
    mesh: Mapping[str, int]
    config: Mapping[str, Any]
    rows: int
    memory_bytes: float | None
    memory_share: float | None
    sent_bytes: float
    kernels: float
    estimated_cycles: float | None
    least_ms: float | None
    bound: str | None

    @property
    def width(self) -> int:
        """Width of the hidden layers."""
        return int(self.config["agent"]["width"])

    @property
    def batch_size(self) -> int:
        """Rows B of each seed's batch."""
        return int(self.config["trainer"]["batch_size"])

    @property
    def seeds(self) -> int:
        """Number of seeds that are trained side by side."""
        return int(self.config["trainer"]["seeds"])

    @property
    def axes(self) -> str:
        """Mesh axes of more than one chip, such as ``data=4,fsdp=16``."""
        sizes = [f"{axis}={size}" for axis, size in self.mesh.items() if size > 1]
        return ",".join(sizes) or "one chip"


def read_figures(path: Path) -> Compiled:
    """Reads the figures of one program.

    Args:
        path: File, as ``compile --json`` or ``--out`` wrote it.

    Returns:
        The figures.

    Raises:
        LaunchError: If the file has no such figures.
    """
    try:
        return parse_figures(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"{path}: expected figures of `python -m trainer compile --json`, got none "
            f"({type(error).__name__}: {error}); compile the run again"
        ) from error


def parse_figures(figures: Mapping[str, Any]) -> Compiled:
    """Parses the command's JSON.

    Args:
        figures: The JSON object.

    Returns:
        The figures that estimates need.

    Raises:
        KeyError: If a figure is missing.
    """
    memory, bound = figures["memory"], figures["bound"]
    return Compiled(
        topology=figures["topology"],
        accelerator=figures["accelerator"],
        chips=figures["chips"],
        mesh=figures["mesh"],
        config=figures["config"],
        rows=figures["rows_on_chips"] or 0,
        memory_bytes=None if memory is None else memory["total"],
        memory_share=figures["memory_share"],
        sent_bytes=sum(kind["sent_bytes"] for kind in figures["traffic"]),
        kernels=figures["kernels"],
        estimated_cycles=figures["estimated_cycles"],
        least_ms=None if bound is None else figures["least_ms"][bound],
        bound=bound,
    )


@dataclass(frozen=True)
class Expected:
    """Results of the formulas for a compiled program; None if they do not cover it.

    Attributes:
        memory_bytes: Result of ``trainer.costs.call_memory.call_bytes``.
        sent_bytes: Result of ``scale.sent_bytes``.
    """

    memory_bytes: float | None
    sent_bytes: float | None


def compute_expected(call: Compiled) -> Expected:
    """Evaluates the formulas for a compiled program.

    Args:
        call: Figures of the program.

    Returns:
        Results of the formulas.
    """
    # The formulas are those of VAST's networks, and need the dimensions of the data.
    agent, data = call.config["agent"], published.DATASETS.get(call.config["dataset"])
    if agent["name"] != "vast" or data is None:
        return Expected(None, None)
    shape = call_memory.Shape(
        VASTConfig(**agent),
        batch_size=call.batch_size,
        observation_dim=data.observation_dim,
        action_dim=data.action_dim,
    )
    spread = call_memory.Spread(**call.mesh)
    chip = ACCELERATORS.get(call.accelerator)  # None for CPUs.
    return Expected(
        call_memory.call_bytes(shape, spread, chip, seeds=call.seeds, rows=call.rows),
        scale.sent_bytes(shape, spread, chip, seeds=call.seeds),
    )


def find_differences(
    call: Compiled,
    config: Mapping[str, Any],
    *,
    accelerator: str,
    mesh: Mapping[str, int],
) -> list[str]:
    """Lists the differences between a compiled program and the run to launch.

    Args:
        call: Figures of the program.
        config: Plain values of the configuration to launch.
        accelerator: Kind of the chips to launch on.
        mesh: Sizes of the mesh axes to launch with.

    Returns:
        Settings that differ, such as ``agent.width: 512, launched 1024``.
    """
    # Other settings, such as the number of steps, change no program and may differ.
    pairs: list[tuple[str, Any, Any]] = [("accelerator", call.accelerator, accelerator)]
    pairs += [(f"mesh.{axis}", call.mesh[axis], size) for axis, size in mesh.items()]
    ours, theirs = config["agent"], call.config["agent"]
    pairs += [
        (f"agent.{name}", theirs.get(name), ours.get(name))
        for name in sorted({*ours, *theirs})
    ]
    pairs += [
        (f"trainer.{name}", call.config["trainer"][name], config["trainer"][name])
        for name in _TRAINER
    ]
    return [
        f"{name}: {compiled!r}, launched {launched!r}"
        for name, compiled, launched in pairs
        if compiled != launched
    ]
