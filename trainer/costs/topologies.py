"""Devices that JAX can compile for although this machine does not have them.

JAX reads environment variables when it starts. Nothing here imports JAX before
``Topology.make_devices`` has set them.
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
# Names that clouds use for chips that exist with two sizes of memory.
_ALIASES = {"a100": "a100-80gb"}
_GPUS_PER_HOST = 8
_LIBRARY = "TPU_LIBRARY_PATH"
_MOST_CPUS = 1024


@dataclass(frozen=True)
class Topology:
    """A number of chips of one kind.

    Attributes:
        kind: Key in ``trainer.costs.accelerators.ACCELERATORS``, or ``"cpu"``.
        chips: Number of chips.
    """

    kind: str
    chips: int

    @property
    def name(self) -> str:
        """Name that ``parse_topology`` parses."""
        return f"{self.kind}-{self.chips}"

    @property
    def accelerator(self) -> Accelerator | None:
        """Figures of the chips; None for CPUs."""
        return ACCELERATORS.get(self.kind)

    def make_devices(self) -> Sequence["jax.Device"]:
        """Makes JAX devices of the chips, which need not be present.

        Returns:
            Devices that JAX can compile for.

        Raises:
            UsageError: If no compiler for the chips is installed, or JAX has already
                started with fewer CPUs.
        """
        if self.kind == CPU:
            return make_cpus(self.chips)
        if self.kind in TARGETS:
            return _make_gpus(self)
        return _make_tpus(self)


def parse_topology(text: str) -> Topology:
    """Parses a kind and a number of chips.

    Args:
        text: Kind and number, such as ``v5e-16``, ``h100-8`` or ``cpu-8``.

    Returns:
        The topology.

    Raises:
        UsageError: If the kind does not exist, or not with that number of chips.

    Example:
        >>> parse_topology("v5e-16").accelerator.name
        'TPU v5e'
    """
    kind, _, number = text.rpartition("-")
    kind = _ALIASES.get(kind, kind)
    if kind not in (kinds := _list_kinds()):
        near = difflib.get_close_matches(kind or text, kinds, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"--topology: expected a kind of {', '.join(kinds)} and a number of chips, "
            f"such as v5e-16, got {text!r}; nearest: {_describe_sizes(near)}"
        )
    chips = int(number) if re.fullmatch(r"\d{1,6}", number) else 0
    topology = Topology(kind, chips)
    if not _exists(topology):
        raise UsageError(
            f"--topology: {_describe_sizes(kind)}; got {text!r}, choose one of these"
        )
    return topology


def _list_kinds() -> list[str]:
    """Lists the kinds of chips that can be compiled for."""
    tpus = [name for name, chip in ACCELERATORS.items() if chip.slices]
    return [*tpus, *TARGETS, CPU]


def _describe_sizes(kind: str) -> str:
    """Describes the numbers of chips in which a kind can be had."""
    slices = ACCELERATORS[kind].slices if kind in ACCELERATORS else {}
    if slices:
        sizes = sorted({1, *slices})
        return f"{kind} comes in {', '.join(map(str, sizes))} chips"
    if kind == CPU:
        return f"{kind} comes in 1 to {_MOST_CPUS}"
    return f"{kind} comes in 1 to {_GPUS_PER_HOST}, or a multiple of {_GPUS_PER_HOST}"


def _exists(topology: Topology) -> bool:
    """Says whether a kind can be had with that number of chips."""
    chips = topology.chips
    if topology.accelerator is not None and topology.accelerator.slices:
        return chips == 1 or chips in topology.accelerator.slices
    if topology.kind == CPU:
        return 1 <= chips <= _MOST_CPUS
    return 1 <= chips <= _GPUS_PER_HOST or (chips > 0 and chips % _GPUS_PER_HOST == 0)


def make_cpus(count: int) -> Sequence["jax.Device"]:
    """Makes JAX simulate a number of CPU devices in this process.

    Raises:
        UsageError: If JAX has already started with fewer devices.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    # Raised if JAX has started; it may then have enough devices.
    with contextlib.suppress(RuntimeError):
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
        The library that ``TPU_LIBRARY_PATH`` names, else that of ``make libtpu``, else
        that of the installed package; None if none of them exists.
    """
    package = importlib.util.find_spec("libtpu")
    folders = (package.submodule_search_locations if package else None) or ()
    # JAX looks for a TPU whenever it finds the installed package, and logs an error on
    # a machine without one. `make libtpu` therefore keeps it apart from the packages.
    places = [
        *((Path(os.environ[_LIBRARY]),) if _LIBRARY in os.environ else ()),
        Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so",
        *(Path(folder) / "libtpu.so" for folder in folders),
    ]
    return next((place for place in places if place.is_file()), None)


def _make_tpus(topology: Topology) -> Sequence["jax.Device"]:
    """Makes TPU devices that libtpu compiles for."""
    library = find_libtpu()
    if library is None:
        raise UsageError(
            f"--topology {topology.name}: the compiler for TPUs is not installed; "
            "install it with `make libtpu` in a clone, or `pip install "
            "'vast-rl[tpu]'` (0.7 GB, Linux on x86-64)"
        )
    os.environ |= {
        _LIBRARY: str(library),
        # Without these two, libtpu asks Google's metadata server about this machine,
        # and waits for an answer.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # libtpu does not start without some kind; the one compiled for is given below.
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        # Otherwise libtpu ends a second process that compiles at the same time.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")
    options: dict[str, object] = {}
    if topology.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.kind == "v4":
        # Both cores of a chip are then one device, as on machines with TPUs.
        options["chip_config_name"] = "megacore"
    assert topology.accelerator is not None
    # A single chip is no slice of the table; libtpu describes it in three dimensions.
    shape = topology.accelerator.slices.get(topology.chips, "1x1x1")
    description = topologies.get_topology_desc(
        f"{topology.kind}:{shape}", platform="tpu", **options
    )
    return description.devices


def has_cuda() -> bool:
    """Says whether the compiler for GPUs is installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return importlib.util.find_spec("jax_plugins.xla_cuda12") is not None


def _make_gpus(topology: Topology) -> Sequence["jax.Device"]:
    """Makes GPU devices that JAX's CUDA plugin compiles for."""
    if not has_cuda():
        raise UsageError(
            f"--topology {topology.name}: the compiler for GPUs is not installed; "
            "install it with `pip install 'jax[cuda12]'` (5.6 GB)"
        )
    # Otherwise JAX looks for a driver, finds none, and does not register CUDA.
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu,cuda")
    per_host = min(topology.chips, _GPUS_PER_HOST)
    description = topologies.get_topology_desc(
        "",
        platform="cuda",
        target_config=TARGETS[topology.kind],
        # Numbers of networks, of machines in a network, and of devices in a machine.
        topology=f"1x{topology.chips // per_host}x{per_host}",
    )
    return description.devices
