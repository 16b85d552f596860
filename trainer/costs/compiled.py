"""The trainer's own call, compiled for devices that need not be there.

Dimensions: M updates per call, Q seeds, B batch.
"""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from trainer.agents import make_agent
from trainer.agents.base import DataFacts
from trainer.costs import hlo
from trainer.costs.collectives import Collective, find_collectives
from trainer.costs.random_data import batch_shapes
from trainer.errors import RunError
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import make_train_call
from trainer.step.state import abstract_state

if TYPE_CHECKING:  # It brings Grain, which measuring updates does without.
    from collections.abc import Sequence

    from trainer.config import Config


# Without a GPU XLA cannot try which matrix product is fastest, and its own products of
# Triton, untried, are more kernels than those that a tuned program has.
_UNTUNED: dict[str, Any] = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
}
_OPTIONS = {"gpu": _UNTUNED, "cuda": _UNTUNED}


class DoesNotFitError(RunError):
    """A program that needs more memory than a chip has."""


@dataclass(frozen=True)
class Memory:
    """What the compiler plans for the call on each device.

    Attributes:
        arguments: Bytes of state, batches and rows.
        donated: Of them bytes whose place the results take: the state.
        temporaries: Bytes of everything in between, at the worst moment.
        program: Bytes of the program itself.
        peak: Bytes at the worst moment, less the program; the state's new values take
            its place.
    """

    arguments: int
    donated: int
    temporaries: int
    program: int
    peak: int

    @property
    def total(self) -> int:
        """Bytes that a device has to have."""
        return self.peak + self.program


@dataclass(frozen=True)
class CompiledCall:
    """The call, compiled.

    Attributes:
        mesh: Devices that it is for.
        updates: M.
        microbatches: Parts of a batch, computed one after another.
        state_arrays: Arrays of the state.
        executable: What JAX returned.
    """

    mesh: Mesh
    updates: int
    microbatches: int
    state_arrays: int
    executable: jax.stages.Compiled

    @functools.cached_property
    def text(self) -> str:
        """The program after all of the compiler's passes."""
        text = self.executable.as_text()
        assert text is not None
        return text

    @functools.cached_property
    def module(self) -> hlo.Module:
        """The program, read."""
        return hlo.parse(self.text)

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """What devices send each other, with all loops around it."""
        return find_collectives(self.module, dict(self.mesh.shape))

    @property
    def memory(self) -> Memory | None:
        """What the compiler planned; None where it does not say."""
        return memory_of(self.executable, platform=self.mesh.devices.flat[0].platform)

    @property
    def donated(self) -> bool:
        """Whether all of the state's new values take the place of the old ones."""
        return self.module.donated >= self.state_arrays

    def inner_loops(self, loops: tuple[int, ...]) -> tuple[int, ...]:
        """Loops within an update, those over flow steps, of loops within a call."""
        inner = [count for count in loops if count > 1]
        for count in (self.updates, self.microbatches):
            if count > 1 and inner[:1] == [count]:
                inner.pop(0)
        return tuple(inner)

    def per_update(self, times: float) -> float:
        """How often something is done in an update that is done so often in a call."""
        return times / self.updates


def compile_call(
    config: "Config",
    facts: DataFacts,
    mesh: MeshConfig,
    *,
    devices: "Sequence[jax.Device]",
    rows: int | None = None,
) -> CompiledCall:
    """Compiles what training calls: the same function, shardings and donation.

    Args:
        config: As resolved for a task.
        facts: Of data of the right shape.
        mesh: Sizes of the axes.
        devices: As many, of any kind.
        rows: Rows of the store that lie on each device, to be gathered there; None
            where the host gathers.

    Returns:
        The compiled call.

    Raises:
        UsageError: If the mesh cannot be.
        DoesNotFitError: If the compiler finds that the devices have too little memory.
    """
    made, lowered, arrays = _lower(config, facts, mesh, devices, rows)
    try:
        executable = lowered.compile(_OPTIONS.get(devices[0].platform))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = re.search(r"Used (\S+) of (\S+) (\w+)", str(error))
        what = f"{used[1]} of {used[2]} of {used[3]}" if used else "too much memory"
        raise DoesNotFitError(
            f"the call does not fit: the compiler gives up at {what} on each device; "
            "split state and batch over more of them (--mesh fsdp=N), or set "
            "trainer.microbatches or agent.rematerialise"
        ) from error
    return CompiledCall(
        mesh=made,
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
    """As ``trainer.training.session`` makes and calls it, of shapes alone."""
    trainer = config.trainer
    agent = make_agent(config.agent, facts)
    made = make_mesh(
        mesh,
        seeds=trainer.seeds,
        batch_size=trainer.batch_size,
        microbatches=trainer.microbatches,
        width=config.agent.width,
        devices=devices,
    )
    call: Any = make_train_call(
        agent, made, seeds=trainer.seeds, microbatches=trainer.microbatches
    )
    state = abstract_state(agent, seeds=trainer.seeds)
    batches = batch_shapes(
        agent,
        facts,
        updates=trainer.updates_per_call,
        seeds=trainer.seeds,
        size=trainer.batch_size,
        gathered=rows is None,
    )
    table = None
    if rows is not None:
        table = tuple(
            jax.ShapeDtypeStruct((rows, size), "float32")
            for size in (facts.observation_dim, facts.action_dim)
        )
    return made, call.lower(state, table, batches), len(jax.tree.leaves(state))


def memory_of(compiled: jax.stages.Compiled, *, platform: str) -> Memory | None:
    """What a compiler planned on each device; None where it does not say.

    Args:
        compiled: The program.
        platform: Of the devices, such as ``"tpu"``.

    Returns:
        The plan.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    arguments = found.argument_size_in_bytes
    new = found.output_size_in_bytes - found.alias_size_in_bytes
    peak = arguments + found.temp_size_in_bytes + new
    if platform == "tpu":  # Others' compilers give no peak, or one without temporaries.
        peak = found.peak_memory_in_bytes or peak
    return Memory(
        arguments=arguments,
        donated=found.alias_size_in_bytes,
        temporaries=max(0, peak - arguments - new),
        program=found.generated_code_size_in_bytes,
        peak=peak,
    )
