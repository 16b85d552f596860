"""``compile``: the training call, compiled for chips that are not there."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say, show, working
from pipeline.store.errors import EXIT_FAILED
from pipeline.store.units import format_size
from trainer.commands.arguments import check_counts, find_dims
from trainer.commands.fields import show_fields
from trainer.costs import published

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainer.config import Config
    from trainer.costs.call_costs import CallCosts
    from trainer.costs.topologies import Topology

# Columns of the table of collectives: wrapped, they would not be read.
_LEAST_WIDTH = 110


@dataclass(frozen=True)
class Compile:
    """Compile the training call for chips that need not be there; say what it takes.

    Any field of the configuration is an option, such as --agent.width 1024. Exit code
    1 if it does not fit. It needs the compiler for TPUs (pip install 'vast-rl[tpu]') or
    for GPUs (pip install 'jax[cuda12]').

    Attributes:
        config: Configuration: a file, or the name of one that is shipped.
        topology: Kind and number of chips: v4, v5e, v5p, v6e, h100, a100 or cpu, such
            as v5e-16.
        task: Task number, 1 if neither it nor the configuration's name says one.
        mesh: Sizes of the mesh's axes, such as data=2,fsdp=8; the configuration's own
            if not given.
        seeds: Seeds side by side; the configuration's own if not given.
        agent: Method, whose settings for the data set replace the configuration's.
        observation_dim: Components of an observation, for data of your own; known for
            published data sets.
        action_dim: Components of an action, likewise.
        rows: Rows of the store, for those that lie on the chips; known for published
            data sets.
        out: Folder for the compiled program's text and the figures.
        json: Print one JSON object, which `python -m infra` takes, instead of tables.
    """

    config: Annotated[Path, tyro.conf.Positional]
    topology: str
    task: int | None = None
    mesh: str | None = None
    seeds: int | None = None
    agent: str | None = None
    observation_dim: int | None = None
    action_dim: int | None = None
    rows: int | None = None
    out: Path | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    @classmethod
    def explain(cls, output: Output, words: Sequence[str]) -> None:
        """Adds to the help what can be overridden."""
        show_fields(output, words)

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Compiles, and prints tables or JSON."""
        from trainer import config as configuration
        from trainer.costs.topologies import parse_topology

        check_counts(self, "observation_dim", "action_dim", "seeds", "rows")
        resolved = configuration.resolve(
            self.config,
            task=self.task,
            agent=self.agent,
            overrides=more,
            prog="python -m trainer compile",
        )
        config = resolved.config
        if self.seeds is not None:
            trainer = dataclasses.replace(config.trainer, seeds=self.seeds)
            config = dataclasses.replace(config, trainer=trainer)
        dims = find_dims(config.dataset, self.observation_dim, self.action_dim)
        topology = parse_topology(self.topology)
        # JAX starts with what these devices need; nothing may import it before.
        devices = topology.devices()

        from trainer.agents import make_agent
        from trainer.costs.call_costs import cost_of
        from trainer.costs.compiled import compile_call
        from trainer.costs.mesh_memory import parse_mesh
        from trainer.costs.network_shapes import read_networks
        from trainer.costs.random_data import shape_facts
        from trainer.step.state import abstract_state

        mesh = config.mesh if self.mesh is None else parse_mesh(self.mesh)
        facts = shape_facts(*dims)
        rows = self._rows_on_chips(config, topology, dims)
        with working(output.progress, f"compiling for {topology.name}"):
            call = compile_call(config, facts, mesh, devices=devices, rows=rows)
        state = abstract_state(make_agent(config.agent, facts), seeds=1)
        costs = cost_of(call, config, read_networks(state.agent), topology.accelerator)
        sizes = dict(call.mesh.shape)
        figures = {
            "topology": topology.name,
            "accelerator": topology.kind,
            "chips": topology.chips,
            "mesh": sizes,
            "config": configuration.encode(config),
            "task": resolved.task,
            "rows_on_chips": rows,
        } | costs.to_json()
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "program.txt").write_text(call.text)
            (self.out / "costs.json").write_text(json.dumps(figures, indent=1) + "\n")
        if self.json:
            output.results.print_json(json.dumps(figures))
        else:
            _show(costs, topology, sizes, config, rows, output.results)
        share = costs.memory_share
        return EXIT_FAILED if share is not None and share > 1 else 0

    def _rows_on_chips(
        self, config: "Config", topology: "Topology", dims: tuple[int, int]
    ) -> int | None:
        """Rows that the feed would put on each chip; None where the host gathers."""
        facts = published.DATASETS.get(config.dataset)
        rows = self.rows or (facts.rows if facts else None)
        chip = topology.accelerator
        if rows is None or config.feed.gather == "host":
            return None
        if config.feed.gather == "auto" and (
            chip is None
            or config.feed.memory_limit_bytes is not None
            or rows * sum(dims) * 4 > config.feed.device_share * chip.memory_bytes
        ):
            return None
        return rows


def _show(
    costs: "CallCosts",
    topology: "Topology",
    mesh: dict[str, int],
    config: "Config",
    rows: int | None,
    out: "Console",
) -> None:
    axes = [f"{axis} {size}" for axis, size in mesh.items() if size > 1]
    where = f"; {rows:,} rows of the store on each chip" if rows else ""
    say(
        out,
        f"{config.agent.name} at width {config.agent.width}, batch "
        f"{config.trainer.batch_size:,}, {config.trainer.seeds} seed(s), "
        f"{config.trainer.updates_per_call} updates a call, for {topology.name}, mesh "
        f"{' × '.join(axes) or 'of one chip'}{where}",
    )
    if costs.memory is not None:
        say(out, _memory_line(costs))
    if costs.traffic:
        out.width = max(out.width, _LEAST_WIDTH)
        show(out, _traffic_table(costs))
    for line in _other_lines(costs):
        say(out, line)


def _memory_line(costs: "CallCosts") -> str:
    memory = costs.memory
    assert memory is not None
    parts = (
        (memory.donated, "of state" if costs.donated else "of state in place"),
        (memory.arguments - memory.donated, "of batches and rows"),
        (memory.temporaries, "in between"),
        (memory.program, "of program"),
    )
    share = costs.memory_share
    of = (
        f", {share:.1%} of the chip's {format_size(costs.memory_bytes or 0)}"
        if share is not None
        else ""
    )
    listed = ", ".join(f"{format_size(size)} {what}" for size, what in parts)
    return (
        f"memory of a chip: {listed}; "
        f"{format_size(memory.total)} at its peak{of}"
        + ("" if costs.donated else "; NOT all of the state is updated in place")
    )


def _traffic_table(costs: "CallCosts") -> "Table":
    from rich.table import Table

    table = Table(
        *("collective", "over", "flow loops", "an update", "bytes", "largest"),
        *("sent by a chip", "ms at links"),
        title="what chips send each other in an update",
    )
    for each in costs.traffic:
        table.add_row(
            each.kind,
            " × ".join(each.axes),
            "inside" if each.in_loops else "—",
            f"{each.times:,.3g}",
            format_size(each.bytes),
            format_size(each.largest_bytes),
            format_size(each.sent_bytes),
            "—" if each.link_ms is None else f"{each.link_ms:.4f}",
        )
    return table


def _other_lines(costs: "CallCosts") -> list[str]:
    lines = []
    cycles = costs.estimated_cycles
    estimate = f"; {cycles:,.0f} cycles by XLA's estimate" if cycles else ""
    lines.append(
        f"an update: {costs.kernels:,.0f} kernels, copies and collectives{estimate}"
    )
    if costs.flops is not None:
        lines.append(f"arithmetic: {costs.flops / 1e9:,.1f} GFLOP in dense layers")
    if costs.bound is not None:
        what, ms = costs.bound
        others = ", ".join(
            f"{name} {each:.4f} ms"
            for name, each in costs.least_ms.items()
            if name != what
        )
        lines.append(
            f"at least {ms:.4f} ms an update, bound by {what}"
            + (f" ({others})" if others else "")
        )
    return lines
