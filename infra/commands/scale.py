"""``scale``: tables of what data and training of a given size take, by formula."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import LaunchError
from infra.estimates.machines import ACCELERATORS, CloudAccelerator
from infra.estimates.measured import MEASURED, find_collect_rate
from pipeline.output import Output, say
from pipeline.store.units import format_duration, format_size


@dataclass(frozen=True)
class Scale:
    """Prints what data and training of a given size would take, for your own numbers.

    Attributes:
        transitions: Numbers of rows to collect and shard.
        workers: Numbers of machines that collect or shard.
        cores: Cores of a machine.
        widths: Widths of the hidden layers.
        chips: Numbers of chips that train together.
        accelerator: Kind of the chips.
        batch_size: Batch size of all chips together.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
        updates_per_s: Updates per second to compute the traffic of the input for.
        compiled: Files of `python -m trainer compile --json` or `--out`, to print
            beside the results of the formulas.
    """

    transitions: tuple[int, ...] = (100_000_000, 1_000_000_000)
    workers: tuple[int, ...] = (20, 100, 500)
    cores: int = 2
    widths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    chips: tuple[int, ...] = (8, 32, 128, 256)
    accelerator: str = "v5e"
    batch_size: int = 1024
    observation_dim: int = 46
    action_dim: int = 5
    updates_per_s: float = 100.0
    compiled: tuple[Path, ...] = ()

    def execute(self, output: Output) -> int:
        """Prints the tables.

        Args:
            output: Consoles to print to.

        Returns:
            0.

        Raises:
            LaunchError: If an option is wrong or a file has no figures.
        """
        accelerator = ACCELERATORS.get(self.accelerator)
        if accelerator is None:
            raise LaunchError(
                f"--accelerator: expected one of {', '.join(ACCELERATORS)}, got "
                f"{self.accelerator!r}; choose one of these"
            )
        numbers = (*self.transitions, *self.workers, *self.widths, *self.chips)
        smallest = min(*numbers, self.cores, self.batch_size)
        if smallest < 1 or not self.updates_per_s > 0:
            raise LaunchError(
                "scale: expected numbers above 0 only, got "
                f"{min(smallest, self.updates_per_s):g}; raise it"
            )
        self._print_data(output)
        self._print_training(output, accelerator)
        if self.compiled:
            self._print_compiled(output)
        return 0

    def _print_data(self, output: Output) -> None:
        from infra.estimates import scale

        header = (
            "transitions",
            "workers",
            "npz",
            "store",
            "collect",
            "core hours",
            "shard",
            "core hours",
            "busy",
            "written",
        )
        collected = find_collect_rate(MEASURED, MEASURED.shard_dataset)
        assert collected is not None, "both rates are of one data set"
        row_bytes = collected.store_row_bytes
        rows = []
        for transitions in self.transitions:
            for workers in self.workers:
                machines = {"rows": transitions, "workers": workers}
                machines["cores"] = self.cores
                collecting = scale.estimate_collecting(collected, **machines)
                sharding = scale.estimate_sharding(MEASURED, **machines)
                store_bytes = transitions * row_bytes
                rows.append(
                    (
                        f"{transitions:,}",
                        f"{workers:,}",
                        format_size(store_bytes / MEASURED.store_share),
                        format_size(store_bytes),
                        format_duration(collecting.hours * 3600),
                        f"{collecting.core_hours:,.0f}",
                        format_duration(sharding.hours * 3600),
                        f"{sharding.core_hours:,.1f}",
                        f"{sharding.busy_workers:,}",
                        f"{format_size(sharding.rows_per_s * row_bytes)}/s",
                    )
                )
        say(
            output.results,
            f"Data of {collected.dataset}: {collected.rows_per_s:,.0f} rows/s a core "
            f"collected, {MEASURED.shard_rows_per_s:,.0f} rows/s on "
            f"{MEASURED.shard_cores} cores sharded; workers of {self.cores} cores, "
            "their start not counted",
        )
        say(output.results, _markdown(header, rows))

    def _print_training(self, output: Output, accelerator: CloudAccelerator) -> None:
        from infra.estimates import scale
        from trainer.agents.vast_config import VASTConfig
        from trainer.costs import call_memory

        header = (
            "width",
            "parameters",
            "Gflop",
            "chips",
            "whole",
            "split",
            "tensor",
            "sent, whole",
            "sent, split",
            "sent, tensor",
            "least",
            "bound by",
            "input",
        )
        rows = []
        for width in self.widths:
            shape = call_memory.Shape(
                VASTConfig(width=width),
                batch_size=self.batch_size,
                observation_dim=self.observation_dim,
                action_dim=self.action_dim,
            )
            for chips in self.chips:
                # Three meshes of the same chips: copies of the state, the state over
                # `fsdp`, and layers over `tensor`.
                row = scale.estimate_training(shape, accelerator.chip, chips=chips)
                memory = accelerator.chip.memory_bytes
                rows.append(
                    (
                        f"{width:,}",
                        f"{call_memory.count_parameters(shape) / 1e6:,.1f}M",
                        f"{scale.update_flops(shape) / 1e9:,.0f}",
                        f"{chips:,}",
                        format_size(row.whole_bytes)
                        + (" !" if row.whole_bytes > memory else ""),
                        format_size(row.split_bytes)
                        + (" !" if row.split_bytes > memory else ""),
                        _size(row.tensor_bytes),
                        format_size(row.whole_sent),
                        format_size(row.split_sent),
                        _size(row.tensor_sent),
                        f"{row.least_s * 1e3:,.3f} ms",
                        "links" if row.link_bound else "arithmetic",
                        f"{format_size(row.input_bytes * self.updates_per_s)}/s",
                    )
                )
        say(
            output.results,
            f"Training: one seed of VAST, B = {self.batch_size:,}, S = "
            f"{self.observation_dim}, A = {self.action_dim}, on {accelerator.name} "
            f"({format_size(accelerator.chip.memory_bytes)}, "
            f"{accelerator.chip.default_peak / 1e12:,.0f} Tflop/s); input at "
            f"{self.updates_per_s:g} updates/s; ! is more than a chip has",
        )
        say(output.results, _markdown(header, rows))

    def _print_compiled(self, output: Output) -> None:
        from infra.estimates import compiled

        header = (
            "compiled for",
            "mesh",
            "width",
            "batch",
            "seeds",
            "memory",
            "by formula",
            "sent",
            "by formula",
            "kernels",
            "cycles",
            "least",
            "bound by",
        )
        rows = []
        for path in self.compiled:
            call = compiled.read_figures(path)
            # Results of formulas stand beside those of the compiler, to show how far
            # they can be trusted.
            expected = compiled.compute_expected(call)
            cycles = call.estimated_cycles
            rows.append(
                (
                    call.topology,
                    call.axes,
                    f"{call.width:,}",
                    f"{call.batch_size:,}",
                    f"{call.seeds}",
                    _size(call.memory_bytes),
                    _beside(expected.memory_bytes, call.memory_bytes),
                    format_size(call.sent_bytes),
                    _beside(expected.sent_bytes, call.sent_bytes),
                    f"{call.kernels:,.0f}",
                    "" if cycles is None else f"{cycles / 1e6:,.2f}M",
                    "" if call.least_ms is None else f"{call.least_ms:,.3f} ms",
                    call.bound or "",
                )
            )
        say(
            output.results, "Compiled: memory of a chip, and what it sends in an update"
        )
        say(output.results, _markdown(header, rows))


def _size(size_bytes: float | None) -> str:
    return "" if size_bytes is None else format_size(size_bytes)


def _beside(expected: float | None, compiled: float | None) -> str:
    """Formats a formula's result, with its deviation from the compiled figure."""
    if expected is None:
        return ""
    if not compiled:
        return format_size(expected)
    return f"{format_size(expected)} ({expected / compiled - 1:+.0%})"


def _markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Formats a Markdown table with all numbers to the right.

    Args:
        header: Titles of the columns.
        rows: Texts of the cells.

    Returns:
        The table.

    Example:
        >>> print(_markdown(("a", "bc"), [("100", "2")]))
        |   a | bc |
        |----:|---:|
        | 100 |  2 |
    """
    # Not a table of Rich's, which wraps at the terminal's width: the README contains
    # these tables as they are printed.
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "| " + " | ".join(map(str.rjust, row, widths)) + " |" for row in (header, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)
