"""``compile``: the training call, compiled for chips that this machine lacks."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from pipeline.output import Output, say, show, working
from pipeline.store.errors import EXIT_FAILED
from pipeline.store.units import format_size
from trainer.commands.arguments import ConfigPath, check_counts, find_dims
from trainer.commands.fields import show_fields
from trainer.costs import published

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainer.config import Config
    from trainer.costs.accelerators import Accelerator
    from trainer.costs.call_costs import CallCosts
    from trainer.costs.topologies import Topology

# Width of the table of collectives in characters. On a narrower console, rich would
# break numbers in two, and nobody could read the columns.
_TABLE_WIDTH = 110


@dataclass(frozen=True)
class Compile:
    """Compile the training call for any chips; print its memory, traffic and bounds.

    The chips need not be present. Any field of the configuration is an option, such as
    --agent.width 1024. The exit code is 1 if the program does not fit the chips. The
    command needs the compiler for TPUs (pip install 'vast-rl[tpu]') or for GPUs (pip
    install 'jax[cuda12]').

    Attributes:
        config: Configuration file, or the name of a shipped one.
        topology: Kind and number of chips, such as v5e-16; kinds are v4, v5e, v5p, v6e,
            h100, a100 and cpu.
        task: Task number; if not given, the one in the configuration's name, else 1.
        mesh: Sizes of the mesh's axes, such as data=2,fsdp=8; the configuration's if
            not given.
        seeds: Number of seeds trained side by side; the configuration's if not given.
        agent: Agent whose settings for the data set replace the configuration's.
        observation_dim: Components of an observation, for data of your own; known for
            published data sets.
        action_dim: Components of an action, for data of your own; known for published
            data sets.
        rows: Rows of the store, which may lie on the chips; known for published data
            sets.
        out: Folder for the text of the compiled program and the figures.
        json: Print one JSON object, which `python -m infra` takes, instead of tables.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("out",)

    config: ConfigPath
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
        """Prints below the help the fields that can be overridden."""
        show_fields(output, words)

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Compiles the call, and prints tables or JSON."""
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
        # This sets the environment variables that the devices need. JAX reads them when
        # it is first imported, so every import below is made only now.
        devices = topology.make_devices()

        from pipeline.store import files
        from trainer.agents.registry import make_agent
        from trainer.costs.call_costs import read_costs
        from trainer.costs.compiled import compile_call
        from trainer.costs.mesh_memory import parse_mesh
        from trainer.costs.network_shapes import read_networks
        from trainer.costs.random_data import make_shape_facts
        from trainer.step.state import abstract_state

        mesh = config.mesh if self.mesh is None else parse_mesh(self.mesh)
        facts = make_shape_facts(*dims)
        rows = self._rows_on_chips(config, topology, dims)
        with working(output.progress, f"compiling for {topology.name}"):
            call = compile_call(config, facts, mesh, devices=devices, rows=rows)
        # One seed's state has the networks of all: seeds are a leading axis.
        state = abstract_state(make_agent(config.agent, facts), seeds=1)
        networks = read_networks(state.agent)
        costs = read_costs(call, config, networks, topology.accelerator)
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
            files.write_local(self.out / "program.txt", call.text.encode())
            text = json.dumps(figures, indent=1) + "\n"
            files.write_local(self.out / "costs.json", text.encode())
        if self.json:
            output.results.print_json(json.dumps(figures))
        else:
            _show(costs, topology, sizes, config, rows, output.results)
        # By this exit code, `infra launch` knows a program that does not fit.
        share, chip = costs.memory_share, topology.accelerator
        if share is None or chip is None:
            return 0
        return EXIT_FAILED if share > chip.usable_share else 0

    def _rows_on_chips(
        self, config: "Config", topology: "Topology", dims: tuple[int, int]
    ) -> int | None:
        """Counts the rows of the store that the feed would put on each chip.

        Returns:
            The number of rows; None if the host would gather the batches.
        """
        dataset = published.DATASETS.get(config.dataset)
        rows = self.rows or (dataset.rows if dataset else None)
        chip = topology.accelerator
        if rows is None or config.feed.gather == "host":
            return None
        # The same rule as the feed's, which asks the devices that it runs on. Rows lie
        # there as float32, which has four bytes.
        if config.feed.gather == "auto" and (
            chip is None
            or config.feed.memory_limit_bytes is not None
            or rows * sum(dims) * 4
            > config.feed.device_share * chip.usable_share * chip.memory_bytes
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
    """Prints what a compiled call takes, in lines and a table of collectives."""
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
        say(out, _describe_memory(costs, topology.accelerator))
    if costs.traffic:
        out.width = max(out.width, _TABLE_WIDTH)
        show(out, _make_traffic_table(costs))
    for line in _describe_work(costs):
        say(out, line)


def _describe_memory(costs: "CallCosts", chip: "Accelerator | None") -> str:
    """Describes the memory of a chip in one line."""
    memory = costs.memory
    assert memory is not None
    # Donated arguments are the state; the other arguments are batches and rows.
    parts = (
        (memory.donated, "of state" if costs.donated else "of state in place"),
        (memory.arguments - memory.donated, "of batches and rows"),
        (memory.temporaries, "of intermediate arrays"),
        (memory.program, "of program"),
    )
    share = costs.memory_share
    share_text = (
        f", {share:.1%} of the chip's {format_size(costs.memory_bytes or 0)}"
        if share is not None
        else ""
    )
    if chip is not None and chip.usable_share < 1:
        share_text += f", of which JAX uses {chip.usable_share:.0%} by default"
    listed = ", ".join(f"{format_size(size)} {what}" for size, what in parts)
    return (
        f"memory of a chip: {listed}; "
        f"{format_size(memory.total)} at its peak{share_text}"
        + ("" if costs.donated else "; NOT all of the state is updated in place")
    )


def _make_traffic_table(costs: "CallCosts") -> "Table":
    """Makes a table with a row for each kind of collective and its axes."""
    from rich.table import Table

    table = Table(
        *("collective", "over", "flow loops", "an update", "bytes", "largest"),
        *("sent by a chip", "ms at links"),
        title="what chips send each other in an update",
    )
    for traffic in costs.traffic:
        table.add_row(
            traffic.kind,
            " × ".join(traffic.axes),
            "inside" if traffic.in_loops else "—",
            f"{traffic.times:,.3g}",
            format_size(traffic.bytes),
            format_size(traffic.largest_bytes),
            format_size(traffic.sent_bytes),
            "—" if traffic.link_ms is None else f"{traffic.link_ms:.4f}",
        )
    return table


def _describe_work(costs: "CallCosts") -> list[str]:
    """Describes kernels, arithmetic and the least time of an update, a line each."""
    lines = []
    cycles = costs.estimated_cycles
    estimate = f"; {cycles:,.0f} cycles by XLA's estimate" if cycles else ""
    lines.append(
        f"an update: {costs.kernels:,.0f} kernels, copies and collectives{estimate}"
    )
    if costs.flops is not None:
        lines.append(f"arithmetic: {costs.flops / 1e9:,.1f} GFLOP in dense layers")
    if costs.bound is not None:
        resource, ms = costs.bound
        others = ", ".join(
            f"{name} {other_ms:.4f} ms"
            for name, other_ms in costs.least_ms.items()
            if name != resource
        )
        lines.append(
            f"at least {ms:.4f} ms an update, bound by {resource}"
            + (f" ({others})" if others else "")
        )
    return lines
