"""``python -m infra COMMAND``: the commands there are."""

from collections.abc import Sequence

from infra.commands.doctor import Doctor
from infra.commands.launch import Launch
from infra.commands.scale import Scale
from pipeline import front_door

PROGRAM = front_door.Program(
    name="infra",
    script="vast-infra",
    purpose="Starts stages on machines of others. What follows -- is the stage's own.",
    commands={"launch": Launch, "doctor": Doctor, "scale": Scale},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``front_door.run``.

    A launch ends with the exit code of the program that it was submitted with.
    """
    return front_door.run(PROGRAM, arguments)
