"""``python -m infra COMMAND``: the list of commands."""

from collections.abc import Sequence

from infra.commands.doctor import Doctor
from infra.commands.launch import Launch
from infra.commands.scale import Scale
from pipeline import front_door

PROGRAM = front_door.Program(
    name="infra",
    script="vast-infra",
    purpose="Starts a stage on machines of a cloud; options after -- go to the stage.",
    commands={"launch": Launch, "doctor": Doctor, "scale": Scale},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``front_door.run``.

    Args:
        arguments: Arguments of the command line; those of the process by default.

    Returns:
        The exit code. A launch returns the exit code of the program that it was
        submitted with, such as ``kubectl``.
    """
    return front_door.run(PROGRAM, arguments)
