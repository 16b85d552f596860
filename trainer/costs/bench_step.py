"""Measuring updates: how fast, at what share of the device, at what cost of our own.

Data are random and lie on the devices, so nothing but updates is measured. The fused
call of the trainer takes turns with two it is compared with: one call an update, and
the same updates jitted without a mesh. At last it is fed as the trainer feeds it, which
tells what share of the time it waits for batches.

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
from trainer.agents import AGENTS
from trainer.agents.base import Agent, DataFacts, Metrics
from trainer.costs import flops
from trainer.costs.accelerators import find_device
from trainer.costs.compiled import memory_of
from trainer.costs.mesh_memory import devices_of, parse_mesh
from trainer.costs.network_shapes import optimised_layers, read_networks
from trainer.costs.random_data import draw_batches, random_table, shape_facts
from trainer.data.table import RowTable
from trainer.nn.choices import Precision
from trainer.parallel.mesh import batch_sharding, make_mesh
from trainer.parallel.mesh_shape import MeshConfig
from trainer.step.call import CALLS_AHEAD, fold_updates, make_train_call, update_seeds
from trainer.step.state import TrainState, init_state
from trainer.step.update import make_update

# Turns that the three ways take; the median of each is shown.
ROUNDS = 3
# Calls fed before the time that they wait is taken.
_WARM_UP = 2


@dataclass(frozen=True)
class StepFigures:
    """One row of the table. An update is one of every seed.

    Attributes:
        width: Of hidden layers.
        batch_size: B.
        seeds: Q.
        precision: Of hidden layers' products.
        mesh: Sizes of the axes.
        updates_per_call: M.
        updates_per_s: Of the trainer's call.
        single_updates_per_s: With one call an update.
        plain_updates_per_s: Without a mesh, on one device, fused alike.
        flops_per_s: Operations of dense layers, of all seeds and devices; None where
            the agent's are not counted.
        peak_share: Of what the devices can do at most; None where that is not known.
        compile_s: Of the trainer's call.
        memory_bytes: On each device at its peak, as the compiler plans it; None where
            it does not say.
        input_blocked_share: Of the time, fed by Grain from rows in memory, that goes
            into waiting for batches and sending them; None without Grain.
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
        agent: Its name.
        widths: Of hidden layers.
        batches: B.
        seeds: Q.
        precisions: Of hidden layers' products.
        meshes: As ``parse_mesh`` reads them; one device if there are none.
        updates: To measure, see ``measure``.
        updates_per_call: M.
        observation_dim: S.
        action_dim: A.
        settings: Further ones of the agent.
        progress: Called with what is being done.

    Returns:
        The figures, the last of these changing fastest.

    Raises:
        UsageError: If a setting cannot be.
    """
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
    for _, batch, count, _, mesh in settings_of_all:  # Refused before any is measured.
        _make_mesh(mesh, seeds=count, batch_size=batch)
    facts = shape_facts(observation_dim, action_dim)
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
        agent: The algorithm.
        facts: Of data of the right shape.
        config: The agent's.
        batch_size: B.
        seeds: Q.
        mesh: Sizes, all given, of at most the devices there are.
        updates: To measure, of each way; the first of each, which are not timed,
            apart.
        updates_per_call: M.
        progress: Called with what is being done.

    Returns:
        The figures.

    Raises:
        UsageError: If there are fewer devices.
    """
    made = _make_mesh(mesh, seeds=seeds, batch_size=batch_size)
    first = jax.devices()[0]
    numbers = tuple(range(seeds))
    table = random_table(facts, discount=agent.sampler.discount)
    drawn = draw_batches(
        agent, table, updates=updates_per_call, seeds=numbers, size=batch_size
    )
    setting = f"width {config.width}, batch {batch_size}, {seeds} seed(s)"
    call: Any = make_train_call(agent, made, seeds=seeds)
    placed = partial(jax.device_put, device=batch_sharding(made))
    fused, one = placed(drawn), [placed(part) for part in _cut(drawn)]

    progress(f"{setting}: compiling")
    state = init_state(agent, made, numbers)
    # Calls take their state's memory: each way has one of its own.
    host = jax.device_get(state)
    another = jax.device_put(host, jax.tree.map(lambda leaf: leaf.sharding, state))
    began = time.perf_counter()
    compiled = call.lower(state, None, fused).compile()
    compile_s = time.perf_counter() - began
    memory = memory_of(compiled, platform=first.platform)
    single = call.lower(state, None, one[0]).compile()
    plain_state, plain_batches = jax.device_put((host, drawn), first)
    plain = make_plain_call(agent).lower(plain_state, plain_batches).compile()

    progress(f"{setting}: measuring")
    ways = (
        _Way(lambda state, batch: compiled(state, None, batch), state, [fused]),
        _Way(lambda state, batch: single(state, None, batch), another, one),
        _Way(plain, plain_state, [plain_batches]),
    )
    for way in ways:
        way.run(1)
    calls = max(1, round(updates / updates_per_call / ROUNDS))
    seconds = [[way.run(calls) for way in ways] for _ in range(ROUNDS)]
    rates = [
        calls * updates_per_call / statistics.median(taken)
        for taken in zip(*seconds, strict=True)
    ]
    operations = count_operations(agent, config, batch_size=batch_size)
    rate = None if operations is None else operations * seeds * rates[0]
    peak = peak_of(first.device_kind, config.precision)
    return StepFigures(
        width=config.width,
        batch_size=batch_size,
        seeds=seeds,
        precision=config.precision,
        mesh=dict(made.shape),
        updates_per_call=updates_per_call,
        updates_per_s=rates[0],
        single_updates_per_s=rates[1],
        plain_updates_per_s=rates[2],
        flops_per_s=rate,
        peak_share=None if rate is None or peak is None else rate / (peak * made.size),
        compile_s=compile_s,
        memory_bytes=None if memory is None else memory.peak,
        input_blocked_share=_blocked_share(
            ways[0],
            _feed(
                agent,
                table,
                seeds=numbers,
                batch_size=batch_size,
                updates_per_call=updates_per_call,
                calls=_WARM_UP + calls * ROUNDS,
            ),
            placed,
            calls=calls * ROUNDS,
        ),
    )


def _make_mesh(mesh: MeshConfig, *, seeds: int, batch_size: int) -> Mesh:
    """The mesh on the first of this process's devices."""
    count, devices = devices_of(mesh), jax.devices()
    if count > len(devices):
        raise UsageError(
            f"--mesh: expected at most the {len(devices)} devices here, got {count}"
        )
    return make_mesh(mesh, seeds=seeds, batch_size=batch_size, devices=devices[:count])


@dataclass
class _Way:
    """One way to do updates: a compiled call, its state and what it is fed in turn."""

    call: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batches: list[Any]

    def run(self, times: int) -> float:
        """Feeds every batch so often; seconds until the devices have done it."""
        began = time.perf_counter()
        for _ in range(times):
            for batch in self.batches:
                self.state, metrics = self.call(self.state, batch)
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - began


def _feed(
    agent: Agent[Any],
    table: RowTable,
    *,
    seeds: Sequence[int],
    batch_size: int,
    updates_per_call: int,
    calls: int,
) -> Iterator[Any] | None:
    """What the trainer would be fed from these rows; None without Grain."""
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


def _blocked_share(
    way: _Way, feed: Iterator[Any] | None, placed: Callable[[Any], Any], *, calls: int
) -> float | None:
    """Share of the time that goes into waiting for batches, in a loop as the trainer's.

    Args:
        way: The trainer's call.
        feed: Of batches ``[M, Q, B, ...]``.
        placed: Sends them to the devices.
        calls: To measure, after some to warm up.

    Returns:
        The share; None without a feed.
    """
    if feed is None:
        return None
    blocked, began = 0.0, 0.0
    under_way: deque[Any] = deque()
    for number in range(_WARM_UP + calls):
        if number == _WARM_UP:
            jax.block_until_ready(way.state)
            blocked, began = 0.0, time.perf_counter()
        waited = time.perf_counter()
        batches = placed(next(feed))
        blocked += time.perf_counter() - waited
        way.state, metrics = way.call(way.state, batches)
        under_way.append(metrics)
        if len(under_way) > CALLS_AHEAD:
            jax.block_until_ready(under_way.popleft())
    jax.block_until_ready(way.state)
    return blocked / (time.perf_counter() - began)


def make_plain_call(agent: Agent[Any]) -> Any:
    """The trainer's call without a mesh: what its sharding must not be slower than.

    Args:
        agent: The algorithm.

    Returns:
        ``call(state, batches [M, Q, B, ...])``, jitted; the state is donated.
    """
    update = partial(update_seeds, make_update(agent))

    @partial(jax.jit, donate_argnums=0)
    def call(state: TrainState, batches: Any) -> tuple[TrainState, Metrics]:
        return fold_updates(update, state, batches)

    return call


def count_operations(agent: Agent[Any], config: Any, *, batch_size: int) -> int | None:
    """Operations of the dense layers in one update of one seed.

    Args:
        agent: The algorithm.
        config: The agent's.
        batch_size: B.

    Returns:
        Operations; None where the agent's evaluations are not counted.
    """
    calls = flops.CALLS.get(config.name)
    if calls is None:
        return None
    state = jax.eval_shape(agent.init, jax.random.key(0))
    layers = optimised_layers(read_networks(state))
    return flops.update_flops(calls(config, batch_size), layers)


def peak_of(device: str, precision: str) -> float | None:
    """Most products per second of a device by JAX's name for it; None if not known."""
    accelerator = find_device(device)
    if accelerator is None:
        return None
    if precision == "bfloat16":
        return accelerator.peaks["bfloat16"]
    return accelerator.default_peak


def table_of(rows: Sequence[StepFigures], *, title: str) -> Table:
    """Figures of updates as a table; a dash where one is not known."""
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


def _cut(batches: Any) -> Iterator[Any]:
    """Batches ``[M, ...]`` as M times ``[1, ...]``."""
    count = len(jax.tree.leaves(batches)[0])
    for update in range(count):
        yield jax.tree.map(lambda leaf, at=update: leaf[at : at + 1], batches)
