"""The program ``python -m pipeline COMMAND`` and the table of its commands."""

from collections.abc import Sequence

from pipeline import front_door
from pipeline.commands.append import Append
from pipeline.commands.collect import Collect
from pipeline.commands.export import Export
from pipeline.commands.fetch import Fetch
from pipeline.commands.inputs import Inputs
from pipeline.commands.inspect import Inspect
from pipeline.commands.merge import Merge
from pipeline.commands.relabel import Relabel
from pipeline.commands.set_environment import SetEnvironment
from pipeline.commands.shard import Shard
from pipeline.commands.upgrade import Upgrade
from pipeline.commands.verify import Verify

PROGRAM = front_door.Program(
    name="pipeline",
    script="vast-pipeline",
    purpose="Collects, converts and checks trajectories. What follows -- goes to Beam.",
    commands={
        "collect": Collect,
        "fetch": Fetch,
        "inputs": Inputs,
        "shard": Shard,
        "append": Append,
        "relabel": Relabel,
        "set-environment": SetEnvironment,
        "merge": Merge,
        "upgrade": Upgrade,
        "inspect": Inspect,
        "verify": Verify,
        "export": Export,
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; see ``front_door.run``."""
    return front_door.run(PROGRAM, arguments)
