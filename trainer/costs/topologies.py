"""Devices of machines that are not there, for JAX to compile for.

JAX reads how it is to start from the environment, so nothing here imports it before
``Topology.devices`` is asked for them.
"""

import contextlib
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.store.errors import UsageError
from trainer.costs.accelerators import ACCELERATORS, Accelerator
from trainer.costs.gpu_targets import TARGETS

if TYPE_CHECKING:
    import jax

CPU = "cpu"
# What clouds call the chips whose memory comes in two sizes.
_ALSO = {"a100": "a100-80gb"}
_GPUS_PER_HOST = 8
_LIBRARY = "TPU_LIBRARY_PATH"
_MOST_CPUS = 1024


@dataclass(frozen=True)
class Topology:
    """So many chips of one kind.

    Attributes:
        kind: Key in ``trainer.costs.accelerators.ACCELERATORS``, or ``"cpu"``.
        chips: How many.
    """

    kind: str
    chips: int

    @property
    def name(self) -> str:
        """As ``parse_topology`` reads it."""
        return f"{self.kind}-{self.chips}"

    @property
    def accelerator(self) -> Accelerator | None:
        """What a chip can do; None for CPUs."""
        return ACCELERATORS.get(self.kind)

    def devices(self) -> Sequence["jax.Device"]:
        """Describes the chips to JAX; they need not be there.

        Returns:
            Devices that can be compiled for.

        Raises:
            UsageError: If a compiler for them is not installed, or JAX has started
                with fewer CPUs.
        """
        if self.kind == CPU:
            return make_cpus(self.chips)
        if self.kind in TARGETS:
            return _gpus(self)
        return _tpus(self)


def parse_topology(text: str) -> Topology:
    """Reads a kind and a number of chips.

    Args:
        text: Such as ``v5e-16``, ``h100-8`` or ``cpu-8``.

    Returns:
        The topology.

    Raises:
        UsageError: If there is none such; the nearest are named.

    Example:
        >>> parse_topology("v5e-16").accelerator.name
        'TPU v5e'
    """
    kind, _, number = text.rpartition("-")
    kind = _ALSO.get(kind, kind)
    if kind not in (kinds := _kinds()):
        near = difflib.get_close_matches(kind or text, kinds, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"--topology: expected a kind of {', '.join(kinds)} and a number of chips, "
            f"such as v5e-16, got {text!r}; nearest: {_sizes_of(near)}"
        )
    chips = int(number) if re.fullmatch(r"\d{1,6}", number) else 0
    topology = Topology(kind, chips)
    if not _exists(topology):
        raise UsageError(
            f"--topology: {_sizes_of(kind)}; got {text!r}, choose one of these"
        )
    return topology


def _kinds() -> list[str]:
    tpus = [name for name, each in ACCELERATORS.items() if each.slices]
    return [*tpus, *TARGETS, CPU]


def _sizes_of(kind: str) -> str:
    """What numbers of a kind there are, in words."""
    slices = ACCELERATORS[kind].slices if kind in ACCELERATORS else {}
    if slices:
        sizes = sorted({1, *slices})
        return f"{kind} comes in {', '.join(map(str, sizes))} chips"
    if kind == CPU:
        return f"{kind} comes in 1 to {_MOST_CPUS}"
    return f"{kind} comes in 1 to {_GPUS_PER_HOST}, or a multiple of {_GPUS_PER_HOST}"


def _exists(topology: Topology) -> bool:
    chips = topology.chips
    if topology.accelerator is not None and topology.accelerator.slices:
        return chips == 1 or chips in topology.accelerator.slices
    if topology.kind == CPU:
        return 1 <= chips <= _MOST_CPUS
    return 1 <= chips <= _GPUS_PER_HOST or (chips > 0 and chips % _GPUS_PER_HOST == 0)


def make_cpus(count: int) -> Sequence["jax.Device"]:
    """Has this process see so many CPU devices, if JAX has not started yet.

    Raises:
        UsageError: If it has started, with fewer.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    with contextlib.suppress(RuntimeError):  # It has: with the devices it has.
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices()
    if len(devices) < count:
        raise UsageError(
            f"--mesh: expected a mesh of at most the {len(devices)} devices that "
            f"this process was started with, got one of {count}"
        )
    return devices[:count]


def find_libtpu() -> Path | None:
    """Finds the compiler for TPUs.

    Returns:
        What ``TPU_LIBRARY_PATH`` names, the one of ``make libtpu``, or that of the
        installed package; None without any.
    """
    package = importlib.util.find_spec("libtpu")
    folders = (package.submodule_search_locations if package else None) or ()
    # JAX tries each TPU that it finds a library for, and complains where there is
    # none; so `make libtpu` puts it beside the packages.
    places = [
        *((Path(os.environ[_LIBRARY]),) if _LIBRARY in os.environ else ()),
        Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so",
        *(Path(folder) / "libtpu.so" for folder in folders),
    ]
    return next((place for place in places if place.is_file()), None)


def _tpus(topology: Topology) -> Sequence["jax.Device"]:
    library = find_libtpu()
    if library is None:
        raise UsageError(
            f"--topology {topology.name}: the compiler for TPUs is not installed; "
            "install it with `make libtpu` in a clone, or `pip install "
            "'vast-rl[tpu]'` (0.7 GB, Linux on x86-64)"
        )
    os.environ |= {
        _LIBRARY: str(library),
        # Of the machine itself nothing is asked ...
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # ... nor is one of this kind: it has to be told some kind to start.
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        # Or else a second process that compiles is ended.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")
    options: dict[str, object] = {}
    if topology.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.kind == "v4":
        options["chip_config_name"] = "megacore"  # Both cores are one device.
    assert topology.accelerator is not None
    shape = topology.accelerator.slices.get(topology.chips, "1x1x1")
    described = topologies.get_topology_desc(
        f"{topology.kind}:{shape}", platform="tpu", **options
    )
    return described.devices


def find_cuda() -> bool:
    """Whether the compiler for GPUs is installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return importlib.util.find_spec("jax_plugins.xla_cuda12") is not None


def _gpus(topology: Topology) -> Sequence["jax.Device"]:
    if not find_cuda():
        raise UsageError(
            f"--topology {topology.name}: the compiler for GPUs is not installed; "
            "install it with `pip install 'jax[cuda12]'` (5.6 GB)"
        )
    # JAX looks for a device's driver before it registers CUDA.
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu,cuda")
    here = min(topology.chips, _GPUS_PER_HOST)
    described = topologies.get_topology_desc(
        "",
        platform="cuda",
        target_config=TARGETS[topology.kind],
        # Networks, machines of each, devices of each machine.
        topology=f"1x{topology.chips // here}x{here}",
    )
    return described.devices
