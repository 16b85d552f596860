"""Compiles a run before it is launched, because a run that does not fit costs money."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.errors import LaunchError
from infra.estimates import compiled
from infra.estimates.machines import Slice
from infra.submission import make_command
from pipeline.store.errors import EXIT_FAILED
from pipeline.store.units import format_size
from trainer.costs.accelerators import ACCELERATORS


def check_given(
    file: Path, config: Mapping[str, Any], chips: Slice, mesh: Mapping[str, int]
) -> str:
    """Checks the figures of a program that was compiled earlier, here or elsewhere.

    Args:
        file: Output of ``python -m trainer compile``.
        config: Plain values of the configuration to launch.
        chips: Chips to launch on.
        mesh: Sizes of the mesh axes.

    Returns:
        A line to report.

    Raises:
        LaunchError: If the figures belong to another program, or it does not fit.
    """
    call = compiled.read_figures(file)
    others = compiled.find_differences(
        call, config, accelerator=chips.accelerator.name, mesh=mesh
    )
    if others:
        raise LaunchError(
            f"{file}: expected figures of what is launched, got figures compiled for "
            f"{'; '.join(others[:3])}; compile it again"
        )
    return _check_fits(call)


def compile_first(
    config: Path, arguments: Sequence[str], chips: Slice, *, task: int
) -> str:
    """Compiles the run for the chips that it is launched on.

    Args:
        config: Configuration file.
        arguments: Overrides and the agent, as options of `trainer compile`.
        chips: Chips to launch on.
        task: Task number.

    Returns:
        A line to report; without a compiler on this machine, it says so.

    Raises:
        LaunchError: If the run does not fit.
    """
    # Another process compiles, because a machine that launches need not have JAX.
    # Without JAX the process says so, and the launch continues.
    topology = f"{chips.accelerator.name}-{chips.chips}"
    given = (str(config), "--topology", topology, "--task", str(task), "--json")
    done = subprocess.run(
        make_command("trainer", "compile", *given, *arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.lstrip().startswith("{"):
        return _check_fits(compiled.parse_figures(json.loads(done.stdout)))
    reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    # This exit code means that the compiler refused the program. Any other one means
    # that this machine has no compiler for these chips, which need not stop the launch.
    if done.returncode == EXIT_FAILED:
        raise LaunchError(f"{topology}: {reason}")
    return f"not compiled before it is launched: {reason}"


def _check_fits(call: compiled.Compiled) -> str:
    if call.memory_bytes is None or call.memory_share is None:
        return f"compiled for {call.topology}; its compiler does not say what it takes"
    share = f"{format_size(call.memory_bytes)}, {call.memory_share:.0%} of a chip's"
    usable = ACCELERATORS[call.accelerator].usable_share
    if call.memory_share > usable:
        used = f", of which JAX uses {usable:.0%}" if usable < 1 else ""
        raise LaunchError(
            f"the training call does not fit {call.topology}: it takes {share} memory"
            f"{used}; take more chips and split the state over them (--mesh.fsdp N), "
            "or set --trainer.microbatches N or --agent.rematerialise"
        )
    least = (
        f"; at least {call.least_ms:.3f} ms an update, bound by {call.bound}"
        if call.least_ms is not None
        else ""
    )
    return f"compiled for {call.topology}: {share} memory{least}"
