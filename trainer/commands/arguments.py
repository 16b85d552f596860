"""What the commands share: checks of arguments."""

from pipeline.store.errors import UsageError


def check_counts(command: object, *names: str) -> None:
    """Refuses numbers below 1.

    Args:
        command: Whose fields they are.
        names: Fields; those that are None were not given.

    Raises:
        UsageError: Naming the option.
    """
    for name in names:
        number = getattr(command, name)
        if number is not None and number < 1:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected at least 1, got {number}"
            )
