"""The trainer's own call, compiled for devices that need not be present.

Dimensions: M updates per call, Q seeds, B batch.
"""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from trainer.agents.base import DataFacts
from trainer.agents.registry import make_agent
from trainer.costs import hlo
from trainer.costs.collectives import Collective, find_collectives
from trainer.costs.random_data import make_batch_shapes
from trainer.errors import RunError
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import abstract_state

# `trainer.config` imports pydantic, which machines that only measure updates lack.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.config import Config


# Without a GPU, XLA cannot try which matrix product is fastest. Its products by Triton,
# if they are not tried, have more kernels than the tuned program would have.
_UNTUNED: dict[str, Any] = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
}
_OPTIONS = {"gpu": _UNTUNED, "cuda": _UNTUNED}


class DoesNotFitError(RunError):
    """A program needs more memory than a chip has."""


@dataclass(frozen=True)
class Memory:
    """Memory of the call on each device, as the compiler plans it.

    Attributes:
        arguments: Bytes of state, batches and rows.
        donated: Bytes of the arguments whose memory the results reuse: the state.
        temporaries: Bytes of intermediate arrays, at the worst moment.
        program: Bytes of the program itself.
        peak: Bytes at the worst moment, without the program. The new state takes the
            place of the old one.
    """

    arguments: int
    donated: int
    temporaries: int
    program: int
    peak: int

    @property
    def total(self) -> int:
        """Bytes of memory that a device must have."""
        return self.peak + self.program


@dataclass(frozen=True)
class CompiledCall:
    """The compiled training call.

    Attributes:
        mesh: Mesh that it was compiled for.
        updates: Number M of updates per call.
        microbatches: Parts of a batch that are computed one after another.
        state_arrays: Number of arrays of the state.
        executable: Compiled program of JAX.
    """

    mesh: Mesh
    updates: int
    microbatches: int
    state_arrays: int
    executable: jax.stages.Compiled

    @functools.cached_property
    def text(self) -> str:
        """Text of the program after all of the compiler's passes."""
        text = self.executable.as_text()
        assert text is not None
        return text

    @functools.cached_property
    def module(self) -> hlo.Module:
        """The program, parsed."""
        return hlo.parse_module(self.text)

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Collectives of the program, each with the loops around it."""
        return find_collectives(self.module, dict(self.mesh.shape))

    @property
    def memory(self) -> Memory | None:
        """Memory that the compiler plans; None if it does not say."""
        return read_memory(self.executable, platform=self.mesh.devices.flat[0].platform)

    @property
    def donated(self) -> bool:
        """Whether all of the state is updated in place."""
        return self.module.donated >= self.state_arrays

    def select_inner_loops(self, loops: tuple[int, ...]) -> tuple[int, ...]:
        """Selects the loops within an update, which are those over flow steps.

        Args:
            loops: Turns of each loop around an instruction, the outermost first. Those
                over updates and microbatches come before the others.

        Returns:
            Turns of the loops within an update.
        """
        # XLA removes loops of one turn.
        inner = [count for count in loops if count > 1]
        for count in (self.updates, self.microbatches):
            if count > 1 and inner[:1] == [count]:
                inner.pop(0)
        return tuple(inner)

    def per_update(self, times: float) -> float:
        """Converts a number of times in a call to the mean number in an update."""
        return times / self.updates


def compile_call(
    config: "Config",
    facts: DataFacts,
    mesh: MeshConfig,
    *,
    devices: "Sequence[jax.Device]",
    rows: int | None = None,
) -> CompiledCall:
    """Compiles the call of a training: the same function, shardings and donation.

    Args:
        config: Configuration of the run.
        facts: Facts of data with the right shapes.
        mesh: Sizes of the mesh axes.
        devices: Devices of the mesh, of any kind.
        rows: Rows of the store that lie on each device and are gathered there; None if
            the host gathers.

    Returns:
        The compiled call.

    Raises:
        UsageError: If the mesh cannot be made of the devices, or shares the work
            unevenly.
        DoesNotFitError: If the compiler gives up because a device has too little
            memory.
    """
    device_mesh, lowered, arrays = _lower(config, facts, mesh, devices, rows)
    try:
        executable = lowered.compile(_OPTIONS.get(devices[0].platform))
    except jax.errors.JaxRuntimeError as error:
        # JAX has no class of its own for this error.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = re.search(r"Used (\S+) of (\S+) (\w+)", str(error))
        need = f"{used[1]} of {used[2]} of {used[3]}" if used else "too much memory"
        raise DoesNotFitError(
            f"the call does not fit: the compiler gives up at {need} on each device; "
            "split state and batch over more of them (--mesh fsdp=N), or set "
            "trainer.microbatches or agent.rematerialise"
        ) from error
    return CompiledCall(
        mesh=device_mesh,
        updates=config.trainer.updates_per_call,
        microbatches=config.trainer.microbatches,
        state_arrays=arrays,
        executable=executable,
    )


def _lower(
    config: "Config",
    facts: DataFacts,
    mesh: MeshConfig,
    devices: "Sequence[jax.Device]",
    rows: int | None,
) -> tuple[Mesh, jax.stages.Lowered, int]:
    """Lowers the call with abstract shapes, as ``trainer.training.session`` makes it.

    Returns:
        The mesh, the lowered call, and the number of arrays of the state.
    """
    trainer = config.trainer
    agent = make_agent(config.agent, facts)
    device_mesh = make_mesh(
        mesh,
        seeds=trainer.seeds,
        batch_size=trainer.batch_size,
        microbatches=trainer.microbatches,
        width=config.agent.width,
        devices=devices,
    )
    call: Any = make_train_call(
        agent, device_mesh, seeds=trainer.seeds, microbatches=trainer.microbatches
    )
    state = abstract_state(agent, seeds=trainer.seeds)
    batches = make_batch_shapes(
        agent,
        facts,
        updates=trainer.updates_per_call,
        seeds=trainer.seeds,
        size=trainer.batch_size,
        gathered=rows is None,
    )
    # With rows on the devices, batches hold only the numbers of rows.
    table = None
    if rows is not None:
        table = tuple(
            jax.ShapeDtypeStruct((rows, size), "float32")
            for size in (facts.observation_dim, facts.action_dim)
        )
    return device_mesh, call.lower(state, table, batches), len(jax.tree.leaves(state))


def read_memory(compiled: jax.stages.Compiled, *, platform: str) -> Memory | None:
    """Reads the memory that a compiler plans on each device.

    Args:
        compiled: Compiled program.
        platform: Platform of the devices, such as ``"tpu"``.

    Returns:
        The plan; None if the compiler does not say.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    # Results that alias an argument take no memory of their own.
    arguments = analysis.argument_size_in_bytes
    new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    peak = arguments + analysis.temp_size_in_bytes + new
    # Other compilers give no peak, or one without temporaries.
    if platform == "tpu":
        peak = analysis.peak_memory_in_bytes or peak
    return Memory(
        arguments=arguments,
        donated=analysis.alias_size_in_bytes,
        temporaries=max(0, peak - arguments - new),
        program=analysis.generated_code_size_in_bytes,
        peak=peak,
    )
