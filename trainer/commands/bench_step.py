"""``bench step``: how fast updates are."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, show, working
from pipeline.store.errors import UsageError
from trainer.commands.arguments import check_counts

# Columns of a table of figures: wrapped, they would not be read.
_LEAST_WIDTH = 140


@dataclass(frozen=True)
class BenchStep:
    """Measure updates on random data.

    Attributes:
        agent: Method to update.
        widths: Of hidden layers, such as 512,2048.
        depth: Hidden layers.
        flow_steps: Euler steps of a sampled flow, as published if not given.
        batches: Batch sizes, such as 256,1024.
        seeds: Seeds side by side, such as 1,8.
        precisions: float32, bfloat16 or float32,bfloat16.
        mesh: Devices by what they hold, several such as data=8 seed=2,fsdp=4; one
            device if not given.
        updates: Updates to measure in each setting.
        updates_per_call: Updates fused in one call.
        observation_dim: Components of an observation.
        action_dim: Components of an action.
        json: Print one JSON value instead of a table.
    """

    agent: str = "vast"
    widths: str = "64,512"
    depth: int = 4
    flow_steps: int | None = None
    batches: str = "512"
    seeds: str = "1"
    precisions: str = "float32"
    mesh: tuple[str, ...] = ()
    updates: int = 100
    updates_per_call: int = 10
    observation_dim: int = 83
    action_dim: int = 5
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Measures, and prints a table or JSON."""
        import jax

        from trainer.costs.bench_step import bench_step, table_of

        check_counts(
            self, "updates", "updates_per_call", "observation_dim", "action_dim"
        )
        with working(output.progress, "measuring") as say_now:
            rows = bench_step(
                self.agent,
                widths=_numbers("widths", self.widths),
                batches=_numbers("batches", self.batches),
                seeds=_numbers("seeds", self.seeds),
                precisions=self.precisions.split(","),
                meshes=self.mesh,
                updates=self.updates,
                updates_per_call=self.updates_per_call,
                observation_dim=self.observation_dim,
                action_dim=self.action_dim,
                settings={"depth": self.depth}
                | ({} if self.flow_steps is None else {"flow_steps": self.flow_steps}),
                progress=say_now,
            )
        device = jax.devices()[0].device_kind
        out = output.results
        if self.json:
            figures = [dataclasses.asdict(row) for row in rows]
            measured = {"agent": self.agent, "device": device, "figures": figures}
            out.print_json(json.dumps(measured))
        else:
            out.width = max(out.width, _LEAST_WIDTH)
            show(out, table_of(rows, title=f"{self.agent} on {device}"))
        return 0


def _numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--{name}: expected whole numbers such as 64,128, got {text!r}"
        ) from error
    if min(numbers) < 1:
        raise UsageError(f"--{name}: expected numbers of at least 1, got {text!r}")
    return numbers
