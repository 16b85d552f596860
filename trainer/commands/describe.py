"""``describe``: a configuration, its networks and their cost."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say, show
from pipeline.store.errors import UsageError
from pipeline.store.units import format_size
from trainer.commands.arguments import (
    OptionalConfigPath,
    check_counts,
    find_dims,
    read_sizes,
)
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
    """Print a configuration as resolved for a task, its networks and their cost.

    Attributes:
        config: Configuration file, or the name of a shipped one. If not given, the one
            for the store's data set; for data of your own, the agent's defaults.
        store: Trajectory store with the sizes of the data, a local path or
            gs://bucket/path.
        agent: Agent whose settings replace the configuration's.
        task: Task number; if not given, the one in the configuration's name, else 1.
        observation_dim: Components of an observation, for data of your own; known for
            published data sets.
        action_dim: Components of an action, for data of your own; known for published
            data sets.
        mesh: Sizes of the axes of a mesh, such as seed=1,fsdp=8: print the arrays that
            each of its devices holds, and an estimate of the memory, which the command
            compile computes exactly. The devices need not be present.
        json: Print one JSON object instead of tables.
    """

    config: OptionalConfigPath = None
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
                f"name one, such as {', '.join(list_configurations())}"
            )
        resolved = configuration.resolve(
            self.config,
            task=self.task,
            agent=self.agent,
            dataset=None if sizes is None else sizes.dataset,
            prog="describe",
        )
        config = resolved.config
        # On standard error, because programs may parse the output.
        if resolved.remark:
            say(output.progress, resolved.remark)
        if sizes is None:
            observation_dim, action_dim = find_dims(
                config.dataset, self.observation_dim, self.action_dim
            )
        else:
            # Given sizes come before the store's, to plan for other observations.
            observation_dim = self.observation_dim or sizes.observation_dim
            action_dim = self.action_dim or sizes.action_dim
        out = output.results
        if self.mesh is not None:
            on_mesh = self._describe_mesh(
                self.mesh, config, (observation_dim, action_dim)
            )
            if self.json:
                out.print_json(json.dumps(on_mesh.to_json()))
            else:
                _show_mesh(on_mesh, out)
            return 0
        description = describe(
            config, observation_dim=observation_dim, action_dim=action_dim
        )
        if self.json:
            out.print_json(json.dumps(description.to_json()))
            return 0
        title = f"configuration, task {resolved.task}"
        show(out, make_fields_table(config, title=title))
        say(out, _describe_data(description))
        show(out, _make_network_table(description))
        say(out, _describe_parameters(description))
        if description.cost is None:
            say(out, f"operations of {config.agent.name} are not counted")
        else:
            say(out, _describe_cost(description.cost, seeds=config.trainer.seeds))
            show(out, _make_bounds_table(description.cost))
        return 0

    def _describe_mesh(
        self, mesh: str, config: "Config", dims: tuple[int, int]
    ) -> "MeshDescription":
        """Describes the arrays of each device, on simulated devices of this CPU."""
        from trainer.costs import mesh_memory, topologies
        from trainer.costs.random_data import make_shape_facts

        sizes = mesh_memory.parse_mesh(mesh)
        return mesh_memory.describe_mesh(
            config,
            make_shape_facts(*dims),
            sizes,
            devices=topologies.make_cpus(mesh_memory.count_devices(sizes)),
        )


def _show_mesh(description: "MeshDescription", out: "Console") -> None:
    """Prints the arrays of each device, and the memory that an update takes."""
    from rich.table import Table

    table = Table("array", "shape", "split over", "bytes a device")
    # Folded and not cut off: paths differ in their last part.
    table.columns[0].overflow = "fold"
    for array in description.arrays:
        table.add_row(
            array.path,
            " × ".join(map(str, array.shape)),
            array.spec,
            f"{array.device_bytes:,}",
        )
    show(out, table)
    devices = " × ".join(f"{axis} {size}" for axis, size in description.mesh.items())
    params_mib = description.params_bytes / 2**20
    rest_mib = description.rest_bytes / 2**20
    say(
        out,
        f"mesh {devices}; on each device {params_mib:,.1f} MiB of parameters and "
        f"{rest_mib:,.1f} MiB of optimiser, targets and counters",
    )
    say(out, _describe_expected_memory(description))


def _describe_expected_memory(description: "MeshDescription") -> str:
    """Describes the estimated memory of a training call, if there is an estimate."""
    exact = "`compile --topology` gives the compiler's figure"
    if description.expected_bytes is None:
        return f"memory of a training call: no estimate for this agent; {exact}"
    listed = " or ".join(
        f"{format_size(size)} of a {kind}"
        for kind, size in description.expected_bytes.items()
    )
    return (
        f"a training call takes about {listed}, without rows of the store that lie on "
        f"the device; {exact}"
    )


def _describe_data(description: "Description") -> str:
    """Describes the size of the data, if they are a published data set."""
    S, A = description.observation_dim, description.action_dim
    shape = f"observations of {S}, actions of {A}"
    dataset = published.DATASETS.get(description.config.dataset)
    # Other shapes were asked for: the data are not those that were published.
    if dataset is None or (dataset.observation_dim, dataset.action_dim) != (S, A):
        return f"data: {shape}"
    # The last figure says how often the training uses each transition on average.
    trainer = description.config.trainer
    return (
        f"data as published: {dataset.transitions:,} transitions in "
        f"{dataset.episodes:,} episodes of {dataset.episode_length:,}, {shape}; "
        f"{dataset.rows * (S + A) * 4 / 2**20:,.0f} MiB; each transition starts "
        f"{trainer.steps * trainer.batch_size / dataset.transitions:,.0f} windows"
    )


def _make_network_table(description: "Description") -> "Table":
    """Makes a table with a row for each network."""
    from rich.table import Table

    table = Table("network", "input", "hidden", "output", "copies", "parameters each")
    for network in description.networks:
        # A network with parallel layers has no list of widths.
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


def _describe_parameters(description: "Description") -> str:
    """Describes the numbers of parameters and the memory of the state."""
    return (
        f"{description.count_parameters('optimised'):,} parameters optimised and "
        f"{description.count_parameters('target'):,} of targets, "
        f"{description.count_parameters() / 1e6:.2f} M in all; with the optimiser's "
        f"state {description.state_bytes / 2**20:,.0f} MiB a seed"
    )


def _describe_cost(cost: "Cost", *, seeds: int) -> str:
    """Describes the operations of an update and the device of the bounds."""
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


def _make_bounds_table(cost: "Cost") -> "Table":
    """Makes a table of the least hours that a million updates take, by precision."""
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
