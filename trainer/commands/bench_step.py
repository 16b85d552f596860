"""``bench step``: the speed of updates."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, show, working
from pipeline.store.errors import UsageError
from trainer.commands.arguments import check_counts

# Width of the table in characters. On a narrower console, rich would break numbers in
# two, and nobody could read the columns.
_TABLE_WIDTH = 140


@dataclass(frozen=True)
class BenchStep:
    """Measure how fast updates are, on random data.

    Attributes:
        agent: Agent whose updates are measured.
        widths: Widths of the hidden layers, such as 512,2048.
        depth: Number of hidden layers.
        flow_steps: Euler steps of a sampled flow; those of the paper if not given.
        batches: Batch sizes, such as 256,1024.
        seeds: Numbers of seeds trained side by side, such as 1,8.
        precisions: Precisions of the products: float32, bfloat16 or float32,bfloat16.
        mesh: Sizes of the mesh's axes, one or several meshes such as data=8
            seed=2,fsdp=4; one device if not given.
        updates: Updates measured in each setting.
        updates_per_call: Updates that are fused into one compiled call.
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
        """Measures all combinations of the settings, and prints a table or JSON."""
        import jax

        from trainer.costs.bench_step import bench_step, make_table

        check_counts(
            self, "updates", "updates_per_call", "observation_dim", "action_dim"
        )
        with working(output.progress, "measuring") as say_now:
            rows = bench_step(
                self.agent,
                widths=_parse_numbers("widths", self.widths),
                batches=_parse_numbers("batches", self.batches),
                seeds=_parse_numbers("seeds", self.seeds),
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
        # All devices of a process are of one kind.
        device = jax.devices()[0].device_kind
        out = output.results
        if self.json:
            figures = [dataclasses.asdict(row) for row in rows]
            measured = {"agent": self.agent, "device": device, "figures": figures}
            out.print_json(json.dumps(measured))
        else:
            out.width = max(out.width, _TABLE_WIDTH)
            show(out, make_table(rows, title=f"{self.agent} on {device}"))
        return 0


def _parse_numbers(name: str, text: str) -> list[int]:
    """Parses an option such as ``64,512``; ``name`` is the option's, for the error."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--{name}: expected whole numbers such as 64,128, got {text!r}"
        ) from error
    if min(numbers) < 1:
        raise UsageError(f"--{name}: expected numbers of at least 1, got {text!r}")
    return numbers
