"""``describe``: what a configuration comes to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say, show
from pipeline.store.errors import UsageError
from pipeline.store.units import format_size
from trainer.commands.arguments import check_counts, find_dims, read_sizes
from trainer.commands.fields import make_fields_table
from trainer.costs import published
from trainer.shipped import list_configurations

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainer.config import Config
    from trainer.costs.describe import Cost, Description
    from trainer.costs.mesh_memory import MeshDescription


@dataclass(frozen=True)
class Describe:
    """Print a configuration as resolved for a task, its networks and what they cost.

    Attributes:
        config: Configuration: a file, or the name of one that is shipped. That of the
            store's data set if not given; of data of your own, the agent's defaults.
        store: Trajectory store to take sizes from, a local path or gs://bucket/path.
        agent: Name of a method, whose settings replace the configuration's.
        task: Task number, 1 if neither it nor the configuration's name says one.
        observation_dim: Components of an observation, for data of your own; known for
            published data sets.
        action_dim: Components of an action, likewise.
        mesh: Say what each device of a mesh holds, such as seed=1,fsdp=8, and what
            memory that takes by a formula; the command compile asks a compiler. The
            devices need not be there.
        json: Print one JSON object instead of tables.
    """

    config: Annotated[Path | None, tyro.conf.Positional] = None
    store: str | None = None
    agent: str | None = None
    task: int | None = None
    observation_dim: int | None = None
    action_dim: int | None = None
    mesh: str | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Prints tables or JSON."""
        from trainer import config as configuration
        from trainer.costs.describe import describe

        check_counts(self, "observation_dim", "action_dim")
        sizes = None if self.store is None else read_sizes(self.store)
        if self.config is None and sizes is None:
            raise UsageError(
                "expected a configuration, its name, or --store and --agent, got none; "
                f"shipped are {', '.join(list_configurations())}"
            )
        resolved = configuration.resolve(
            self.config,
            task=self.task,
            agent=self.agent,
            dataset=None if sizes is None else sizes.dataset,
            prog="describe",
        )
        config = resolved.config
        if resolved.remark:
            say(output.progress, resolved.remark)
        if sizes is None:
            observation_dim, action_dim = find_dims(
                config.dataset, self.observation_dim, self.action_dim
            )
        else:
            observation_dim = self.observation_dim or sizes.observation_dim
            action_dim = self.action_dim or sizes.action_dim
        out = output.results
        if self.mesh is not None:
            found = self._on_mesh(self.mesh, config, (observation_dim, action_dim))
            if self.json:
                out.print_json(json.dumps(found.to_json()))
            else:
                _show_mesh(found, out)
            return 0
        description = describe(
            config, observation_dim=observation_dim, action_dim=action_dim
        )
        if self.json:
            out.print_json(json.dumps(description.to_json()))
            return 0
        title = f"configuration, task {resolved.task}"
        show(out, make_fields_table(config, title=title))
        say(out, _data_line(description))
        show(out, _networks(description))
        say(out, _parameters_line(description))
        if description.cost is None:
            say(out, f"operations of {config.agent.name} are not counted")
        else:
            say(out, _cost_line(description.cost, seeds=config.trainer.seeds))
            show(out, _bounds(description.cost))
        return 0

    def _on_mesh(
        self, mesh: str, config: "Config", dims: tuple[int, int]
    ) -> "MeshDescription":
        """What each device holds, found on as many made-up devices of this CPU."""
        from trainer.costs import mesh_memory, topologies
        from trainer.costs.random_data import shape_facts

        sizes = mesh_memory.parse_mesh(mesh)
        return mesh_memory.describe_mesh(
            config,
            shape_facts(*dims),
            sizes,
            devices=topologies.make_cpus(mesh_memory.devices_of(sizes)),
        )


def _show_mesh(found: "MeshDescription", out: "Console") -> None:
    from rich.table import Table

    table = Table("array", "shape", "split over", "bytes a device")
    table.columns[0].overflow = "fold"
    for array in found.arrays:
        table.add_row(
            array.path,
            " × ".join(map(str, array.shape)),
            array.spec,
            f"{array.device_bytes:,}",
        )
    show(out, table)
    devices = " × ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    rest, params = found.rest_bytes / 2**20, found.params_bytes / 2**20
    say(
        out,
        f"mesh {devices}; on each device {params:,.1f} MiB of parameters and "
        f"{rest:,.1f} MiB of optimiser, targets and counters",
    )
    say(out, _expected_line(found))


def _expected_line(found: "MeshDescription") -> str:
    asked = "`compile --topology` asks the compiler of chips, or of CPUs"
    if found.expected_bytes is None:
        return f"what an update takes besides: {asked}"
    listed = " or ".join(
        f"{format_size(size)} of a {kind}"
        for kind, size in found.expected_bytes.items()
    )
    return (
        f"a training call takes about {listed}, besides rows of the store that lie "
        f"there; {asked}"
    )


def _data_line(description: "Description") -> str:
    S, A = description.observation_dim, description.action_dim
    shape = f"observations of {S}, actions of {A}"
    facts = published.DATASETS.get(description.config.dataset)
    if facts is None or (facts.observation_dim, facts.action_dim) != (S, A):
        return f"data: {shape}"
    trainer = description.config.trainer
    return (
        f"data as published: {facts.transitions:,} transitions in {facts.episodes:,} "
        f"episodes of {facts.episode_length:,}, {shape}; "
        f"{facts.rows * (S + A) * 4 / 2**20:,.0f} MiB; each transition starts "
        f"{trainer.steps * trainer.batch_size / facts.transitions:,.0f} windows"
    )


def _networks(description: "Description") -> "Table":
    from rich.table import Table

    table = Table("network", "input", "hidden", "output", "copies", "parameters each")
    for network in description.networks:
        widths = network.chain
        name = network.name + (" (target)" if network.role == "target" else "")
        table.add_row(
            name,
            "—" if widths is None else f"{widths[0]}",
            "—" if widths is None else " ".join(map(str, widths[1:-1])),
            "—" if widths is None else f"{widths[-1]}",
            f"{network.copies}",
            f"{network.parameters // network.copies:,}",
        )
    return table


def _parameters_line(description: "Description") -> str:
    return (
        f"{description.parameters('optimised'):,} parameters optimised and "
        f"{description.parameters('target'):,} of targets, "
        f"{description.parameters() / 1e6:.2f} M in all; with the optimiser's state "
        f"{description.state_bytes / 2**20:,.0f} MiB a seed"
    )


def _cost_line(cost: "Cost", *, seeds: int) -> str:
    device = cost.device
    peaks = ", ".join(
        f"{peak / 1e12:,.0f} TFLOP/s in {name}" for name, peak in device.peaks.items()
    )
    return (
        f"{cost.flops_per_update / 1e9:,.1f} GFLOP an update of {seeds} seed(s), dense "
        "layers only. Hours that a million updates take at least on one "
        f"{device.name}: compute at {peaks}; memory at {device.bandwidth / 1e12:.2f} "
        "TB/s, the state read and written once an update "
        f"({device.source}). Bounds, no forecast:"
    )


def _bounds(cost: "Cost") -> "Table":
    from rich.table import Table

    table = Table("products in", "compute, h", "memory, h", "rules")
    for bound in cost.bounds:
        table.add_row(
            bound.precision,
            f"{bound.compute_hours:.3f}",
            f"{bound.memory_hours:.3f}",
            bound.rules,
        )
    return table
