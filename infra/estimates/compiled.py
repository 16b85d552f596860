"""Figures of compiled programs, as ``python -m trainer compile`` writes them."""

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

# Of a configuration: what another program would be compiled for.
_TRAINER = ("batch_size", "microbatches", "seeds", "updates_per_call")


@dataclass(frozen=True)
class Compiled:
    """What was compiled, and what it takes.

    Attributes:
        topology: Kind and number of chips, such as ``v5e-16``.
        accelerator: Kind.
        chips: Number.
        mesh: Sizes of the axes.
        config: The configuration's plain values.
        rows: Of the store, on each chip.
        memory_bytes: Of a chip, at its peak, the program included; None where the
            compiler does not say.
        memory_share: Of the chip's memory; None for CPUs.
        sent_bytes: That a chip sends in an update.
        kernels: Of an update.
        estimated_cycles: Of an update, by XLA; None where it makes no estimate.
        least_ms: Least time of an update; None where nothing is known.
        bound: By what.
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
        """Of the hidden layers."""
        return int(self.config["agent"]["width"])

    @property
    def batch_size(self) -> int:
        """B, of each seed."""
        return int(self.config["trainer"]["batch_size"])

    @property
    def seeds(self) -> int:
        """Trained side by side."""
        return int(self.config["trainer"]["seeds"])

    @property
    def axes(self) -> str:
        """Mesh axes of more than one chip, such as ``data=4,fsdp=16``."""
        sizes = [f"{axis}={size}" for axis, size in self.mesh.items() if size > 1]
        return ",".join(sizes) or "one chip"


def read(path: Path) -> Compiled:
    """Reads the figures of one program.

    Args:
        path: File, as ``compile --json`` or ``--out`` wrote it.

    Returns:
        The figures.

    Raises:
        LaunchError: If it holds none.
    """
    try:
        return parse(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"{path}: expected figures of `python -m trainer compile --json`, found "
            f"none ({type(error).__name__}: {error})"
        ) from error


def parse(figures: Mapping[str, Any]) -> Compiled:
    """Takes from the command's JSON what estimates need.

    Raises:
        KeyError: If something is missing.
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
        sent_bytes=sum(each["sent_bytes"] for each in figures["traffic"]),
        kernels=figures["kernels"],
        estimated_cycles=figures["estimated_cycles"],
        least_ms=None if bound is None else figures["least_ms"][bound],
        bound=bound,
    )


@dataclass(frozen=True)
class Expected:
    """What the formulas give for the same; None where they know nothing of it.

    Attributes:
        memory_bytes: As ``trainer.costs.call_memory.call_bytes``.
        sent_bytes: As ``scale.sent_bytes``.
    """

    memory_bytes: float | None
    sent_bytes: float | None


def expect(call: Compiled) -> Expected:
    """Computes what ``scale`` expects of a program that was compiled."""
    agent, facts = call.config["agent"], published.DATASETS.get(call.config["dataset"])
    if agent["name"] != "vast" or facts is None:
        return Expected(None, None)
    shape = call_memory.Shape(
        VASTConfig(**agent),
        batch_size=call.batch_size,
        observation_dim=facts.observation_dim,
        action_dim=facts.action_dim,
    )
    spread = call_memory.Spread(**call.mesh)
    chip = ACCELERATORS.get(call.accelerator)  # CPUs are none.
    return Expected(
        call_memory.call_bytes(shape, spread, chip, seeds=call.seeds, rows=call.rows),
        scale.sent_bytes(shape, spread, chip, seeds=call.seeds),
    )


def differences(
    call: Compiled,
    config: Mapping[str, Any],
    *,
    accelerator: str,
    mesh: Mapping[str, int],
) -> list[str]:
    """Lists what differs between a program and what is about to be launched.

    Args:
        call: The program.
        config: Plain values of the configuration to launch.
        accelerator: Kind of its chips.
        mesh: Sizes of its axes.

    Returns:
        Settings, such as ``agent.width: 512, launched 1024``.
    """
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
