"""Measures updates: their speed, their share of the device's peak, and our overhead.

Data are random and lie on the devices, so that only updates are measured. The fused
call of the trainer takes turns with two others: a call for each update, and the same
fused updates jitted without a mesh. In the end the fused call is fed as the trainer
feeds it, which shows the share of the time that it waits for batches.

Dimensions: M updates per call, Q seeds, B batch.
"""

import dataclasses
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import jax
from jax.sharding import Mesh
from rich.table import Table

from pipeline.store.errors import UsageError
from trainer.agents.base import Agent, DataFacts, Metrics
from trainer.agents.registry import AGENTS
from trainer.costs import flops
from trainer.costs.accelerators import find_accelerator
from trainer.costs.compiled import read_memory
from trainer.costs.mesh_memory import count_devices, parse_mesh
from trainer.costs.network_shapes import optimised_layers, read_networks
from trainer.costs.random_data import draw_batches, make_random_table, make_shape_facts
from trainer.data.table import RowTable
from trainer.nn.choices import Precision
from trainer.parallel.mesh import batch_sharding, make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import CALLS_AHEAD, fold_updates, make_train_call, update_seeds
from trainer.step.state import TrainState, init_state
from trainer.step.update import make_update

# Turns that each of the three calls takes; the median is shown. They take turns because
# a machine's speed drifts, and ratios within one turn do not.
ROUNDS = 3
# Calls before waits are measured: the feed starts its threads at the first ones.
_WARM_UP = 2


@dataclass(frozen=True)
class StepFigures:
    """One row of the table; an update is one of every seed.

    Attributes:
        width: Width of the hidden layers.
        batch_size: Rows B of a batch.
        seeds: Number Q of seeds.
        precision: Precision of the hidden layers' products.
        mesh: Sizes of the mesh axes.
        updates_per_call: Number M of updates per call.
        updates_per_s: Updates per second of the trainer's call.
        single_updates_per_s: Updates per second with a call for each update.
        plain_updates_per_s: Updates per second without a mesh, on one device, fused
            in the same way.
        flops_per_s: Operations per second of the dense layers, of all seeds and
            devices; None if the agent's are not counted.
        peak_share: Share of the devices' peak; None if the peak is not known.
        compile_s: Seconds to compile the trainer's call.
        memory_bytes: Bytes on each device at the peak, as the compiler plans them; None
            if the compiler does not say.
        input_blocked_share: Share of the time that goes into waiting for batches and
            sending them, if Grain feeds rows from memory; None without Grain.
    """

    width: int
    batch_size: int
    seeds: int
    precision: str
    mesh: dict[str, int]
    updates_per_call: int
    updates_per_s: float
    single_updates_per_s: float
    plain_updates_per_s: float
    flops_per_s: float | None
    peak_share: float | None
    compile_s: float
    memory_bytes: int | None
    input_blocked_share: float | None


def bench_step(
    agent: str,
    *,
    widths: Sequence[int],
    batches: Sequence[int],
    seeds: Sequence[int],
    precisions: Sequence[str] = ("float32",),
    meshes: Sequence[str] = (),
    updates: int = 100,
    updates_per_call: int = 10,
    observation_dim: int = 83,
    action_dim: int = 5,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[StepFigures]:
    """Measures one agent in every combination of settings.

    Args:
        agent: Name of the agent.
        widths: Widths of the hidden layers.
        batches: Batch sizes B.
        seeds: Numbers Q of seeds.
        precisions: Precisions of the hidden layers' products.
        meshes: Texts that ``parse_mesh`` reads; empty for one device.
        updates: Number of updates to measure, see ``measure``.
        updates_per_call: Number M of updates per call.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
        settings: Further settings of the agent.
        progress: Callback for the name of each measurement.

    Returns:
        Figures of every combination; of the settings above, later ones change faster.

    Raises:
        UsageError: If the agent, a setting or a mesh does not exist.
    """
    # Names such as fql-n stand for returns of several steps, with updates as fast.
    if agent not in AGENTS or AGENTS[agent].config().name != agent:
        known = [name for name, kind in AGENTS.items() if kind.config().name == name]
        raise UsageError(f"--agent: expected one of {', '.join(known)}, got {agent!r}")
    for precision in precisions:
        if precision not in get_args(Precision):
            raise UsageError(
                f"--precisions: expected some of {', '.join(get_args(Precision))}, "
                f"got {precision!r}"
            )
    settings = dict(settings or {})
    fields = {field.name for field in dataclasses.fields(AGENTS[agent].config)}
    for name in settings.keys() - fields:
        raise UsageError(
            f"--{name.replace('_', '-')}: {agent} has no such setting; leave it out"
        )
    sizes = [parse_mesh(mesh) for mesh in meshes] or [MeshConfig(data=1)]
    settings_of_all = list(itertools.product(widths, batches, seeds, precisions, sizes))
    # A mesh that cannot be made is refused before minutes of measuring the others.
    for _, batch, count, _, mesh in settings_of_all:
        _make_mesh(mesh, seeds=count, batch_size=batch)
    facts = make_shape_facts(observation_dim, action_dim)
    figures = []
    for width, batch, count, precision, mesh in settings_of_all:
        config = AGENTS[agent].config(width=width, precision=precision, **settings)
        figures.append(
            measure(
                AGENTS[agent].agent(config, facts),
                facts,
                config,
                batch_size=batch,
                seeds=count,
                mesh=mesh,
                updates=updates,
                updates_per_call=updates_per_call,
                progress=progress,
            )
        )
    return figures


def measure(
    agent: Agent[Any],
    facts: DataFacts,
    config: Any,
    *,
    batch_size: int,
    seeds: int,
    mesh: MeshConfig,
    updates: int,
    updates_per_call: int,
    progress: Callable[[str], None] = lambda _: None,
) -> StepFigures:
    """Measures one agent in one setting.

    Args:
        agent: Agent whose updates are measured.
        facts: Facts of data with the right shapes.
        config: Hyperparameters of the agent.
        batch_size: Rows B of a batch.
        seeds: Number Q of seeds.
        mesh: Sizes of the mesh axes, none of them -1.
        updates: Number of updates to measure with each of the three calls, besides a
            first call of each, which is not timed.
        updates_per_call: Number M of updates per call.
        progress: Callback for the name of each measurement.

    Returns:
        The figures.

    Raises:
        UsageError: If the mesh needs more devices than this process has.
    """
    device_mesh = _make_mesh(mesh, seeds=seeds, batch_size=batch_size)
    # The call without a mesh runs on one device, whatever the mesh is.
    first = jax.devices()[0]
    numbers = tuple(range(seeds))
    table = make_random_table(facts, discount=agent.sampler.discount)
    batches = draw_batches(
        agent, table, updates=updates_per_call, seeds=numbers, size=batch_size
    )
    setting = f"width {config.width}, batch {batch_size}, {seeds} seed(s)"
    call: Any = make_train_call(agent, device_mesh, seeds=seeds)
    send = partial(jax.device_put, device=batch_sharding(device_mesh))
    fused, singles = send(batches), [send(part) for part in _split_updates(batches)]

    progress(f"{setting}: compiling")
    state = init_state(agent, device_mesh, numbers)
    # Calls donate their state, so each of the three has a copy of its own.
    host = jax.device_get(state)
    another = jax.device_put(host, jax.tree.map(lambda leaf: leaf.sharding, state))
    began = time.perf_counter()
    compiled = call.lower(state, None, fused).compile()
    compile_s = time.perf_counter() - began
    memory = read_memory(compiled, platform=first.platform)
    single = call.lower(state, None, singles[0]).compile()
    plain_state, plain_batches = jax.device_put((host, batches), first)
    plain = make_plain_call(agent).lower(plain_state, plain_batches).compile()

    progress(f"{setting}: measuring")
    contestants = (
        _Contestant(lambda state, batch: compiled(state, None, batch), state, [fused]),
        _Contestant(lambda state, batch: single(state, None, batch), another, singles),
        _Contestant(plain, plain_state, [plain_batches]),
    )
    for contestant in contestants:
        contestant.run(1)
    # Each of the three does a third of the updates in each of its turns.
    calls = max(1, round(updates / updates_per_call / ROUNDS))
    seconds = [
        [contestant.run(calls) for contestant in contestants] for _ in range(ROUNDS)
    ]
    rates = [
        calls * updates_per_call / statistics.median(turns)
        for turns in zip(*seconds, strict=True)
    ]
    operations = count_operations(agent, config, batch_size=batch_size)
    rate = None if operations is None else operations * seeds * rates[0]
    peak = find_peak(first.device_kind, config.precision)
    return StepFigures(
        width=config.width,
        batch_size=batch_size,
        seeds=seeds,
        precision=config.precision,
        mesh=dict(device_mesh.shape),
        updates_per_call=updates_per_call,
        updates_per_s=rates[0],
        single_updates_per_s=rates[1],
        plain_updates_per_s=rates[2],
        flops_per_s=rate,
        peak_share=None
        if rate is None or peak is None
        else rate / (peak * device_mesh.size),
        compile_s=compile_s,
        memory_bytes=None if memory is None else memory.peak,
        input_blocked_share=_measure_blocked_share(
            contestants[0],
            _make_feed(
                agent,
                table,
                seeds=numbers,
                batch_size=batch_size,
                updates_per_call=updates_per_call,
                calls=_WARM_UP + calls * ROUNDS,
            ),
            send,
            calls=calls * ROUNDS,
        ),
    )


def _make_mesh(mesh: MeshConfig, *, seeds: int, batch_size: int) -> Mesh:
    """Makes a mesh of the first devices of this process."""
    count, devices = count_devices(mesh), jax.devices()
    if count > len(devices):
        raise UsageError(
            f"--mesh: expected at most the {len(devices)} devices here, got {count}"
        )
    return make_mesh(mesh, seeds=seeds, batch_size=batch_size, devices=devices[:count])


@dataclass
class _Contestant:
    """A compiled call, its state, and the batches of one round of it."""

    call: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batches: list[Any]

    def run(self, times: int) -> float:
        """Calls each batch ``times`` times; returns seconds until the devices end."""
        began = time.perf_counter()
        for _ in range(times):
            for batch in self.batches:
                self.state, metrics = self.call(self.state, batch)
        # Calls return at once, before the devices have computed anything.
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - began


def _make_feed(
    agent: Agent[Any],
    table: RowTable,
    *,
    seeds: Sequence[int],
    batch_size: int,
    updates_per_call: int,
    calls: int,
) -> Iterator[Any] | None:
    """Makes the trainer's feed of these rows; None if Grain is not installed.

    Machines that only measure GPUs have JAX's packages and nothing else.
    """
    try:
        from trainer.data.feed import BatchSource, make_feed
        from trainer.data.feed_config import FeedConfig
    except ImportError:
        return None
    source = BatchSource(
        table,
        agent.sampler,
        seeds=seeds,
        batch_size=batch_size,
        steps=calls * updates_per_call,
        gather=True,
    )
    return make_feed(source, FeedConfig(), updates_per_call=updates_per_call)


def _measure_blocked_share(
    contestant: _Contestant,
    feed: Iterator[Any] | None,
    send: Callable[[Any], Any],
    *,
    calls: int,
) -> float | None:
    """Measures the share of the time that a loop like the trainer's waits for batches.

    Args:
        contestant: The trainer's call.
        feed: Iterator of batches ``[M, Q, B, ...]``; None if Grain is not installed.
        send: Function that sends batches to the devices.
        calls: Number of calls to measure, after a few to warm up.

    Returns:
        The share; None without a feed.
    """
    if feed is None:
        return None
    blocked, began = 0.0, 0.0
    running: deque[Any] = deque()
    for number in range(_WARM_UP + calls):
        if number == _WARM_UP:
            jax.block_until_ready(contestant.state)
            blocked, began = 0.0, time.perf_counter()
        waited = time.perf_counter()
        batches = send(next(feed))
        blocked += time.perf_counter() - waited
        contestant.state, metrics = contestant.call(contestant.state, batches)
        running.append(metrics)
        # As in the trainer, the host is only a few calls ahead of the devices.
        if len(running) > CALLS_AHEAD:
            jax.block_until_ready(running.popleft())
    jax.block_until_ready(contestant.state)
    return blocked / (time.perf_counter() - began)


def make_plain_call(agent: Agent[Any]) -> Any:
    """Makes the trainer's call without a mesh, to see what sharding costs.

    Args:
        agent: Agent whose updates it does.

    Returns:
        ``call(state, batches [M, Q, B, ...])``, jitted; the state is donated.
    """
    update = partial(update_seeds, make_update(agent))

    @partial(jax.jit, donate_argnums=0)
    def call(state: TrainState, batches: Any) -> tuple[TrainState, Metrics]:
        return fold_updates(update, state, batches)

    return call


def count_operations(agent: Agent[Any], config: Any, *, batch_size: int) -> int | None:
    """Counts the operations of the dense layers in one update of one seed.

    Args:
        agent: Agent whose updates are measured.
        config: Hyperparameters of the agent.
        batch_size: Rows B of a batch.

    Returns:
        Number of operations; None if the agent's are not counted.
    """
    list_calls = flops.CALLS.get(config.name)
    if list_calls is None:
        return None
    # Shapes are enough, and nothing is drawn.
    state = jax.eval_shape(agent.init, jax.random.key(0))
    layers = optimised_layers(read_networks(state))
    return flops.update_flops(list_calls(config, batch_size), layers)


def find_peak(device: str, precision: str) -> float | None:
    """Finds the peak operations per second of a device, by JAX's name for it."""
    accelerator = find_accelerator(device)
    if accelerator is None:
        return None
    # Hidden layers are cast to bfloat16; float32 products have JAX's default precision.
    if precision == "bfloat16":
        return accelerator.peaks["bfloat16"]
    return accelerator.default_peak


def make_table(rows: Sequence[StepFigures], *, title: str) -> Table:
    """Makes a table of figures, with a dash for each unknown one."""
    table = Table(
        *("width", "batch", "seeds", "precision", "mesh", "compile s", "updates/s"),
        *("one a call", "no mesh", "GFLOP/s", "of peak", "input", "MiB"),
        title=title,
    )
    for row in rows:
        axes = [f"{axis} {size}" for axis, size in row.mesh.items() if size > 1]
        table.add_row(
            str(row.width),
            str(row.batch_size),
            str(row.seeds),
            row.precision,
            " × ".join(axes) or "one device",
            f"{row.compile_s:.1f}",
            f"{row.updates_per_s:,.1f}",
            f"{row.single_updates_per_s:,.1f}",
            f"{row.plain_updates_per_s:,.1f}",
            "—" if row.flops_per_s is None else f"{row.flops_per_s / 1e9:,.1f}",
            "—" if row.peak_share is None else f"{row.peak_share:.1%}",
            "—"
            if row.input_blocked_share is None
            else f"{row.input_blocked_share:.1%}",
            "—" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:,.0f}",
        )
    return table


def _split_updates(batches: Any) -> Iterator[Any]:
    """Splits batches ``[M, ...]`` into M batches ``[1, ...]``."""
    count = len(jax.tree.leaves(batches)[0])
    for update in range(count):
        yield jax.tree.map(lambda leaf, at=update: leaf[at : at + 1], batches)
