"""Names of a sweep's runs, which say the data set, task, method and seeds.

All runs of a sweep lie in one folder, where `report` looks for them, so that slashes in
names, such as those of Minari's data sets, become dashes.
"""

from collections.abc import Sequence


def name_cell(dataset: str, task: int, method: str, seeds: range) -> str:
    """Names the folder of a run in a sweep.

    Args:
        dataset: Data-set name.
        task: Task number.
        method: Name of the method in the sweep.
        seeds: Training seeds of the run.

    Returns:
        The name.

    Example:
        >>> name_cell("cube-single-play", 1, "cloning", range(3))
        'cube-single-play-1-cloning-seeds-0-2'
        >>> name_cell("D4RL/door/human-v2", 1, "cloning", range(1))
        'D4RL-door-human-v2-1-cloning-seed-0'
    """
    return flatten(f"{dataset}-{task}-{method}-{_name_seeds(seeds)}")


def find_method(name: str, *, dataset: str, task: int, seeds: range) -> str | None:
    """Finds the method of a run in the name of its folder.

    Args:
        name: Name of the run's folder.
        dataset: Data set of the run.
        task: Task of the run.
        seeds: Training seeds of the run.

    Returns:
        Name of the method; None if the folder is not named as a sweep does.

    Example:
        >>> name = "cube-single-play-1-cloning-seeds-0-2"
        >>> find_method(name, dataset="cube-single-play", task=1, seeds=range(3))
        'cloning'
    """
    # Both ends are known of the run, so that methods and data sets may have dashes.
    start, end = f"{flatten(dataset)}-{task}-", f"-{_name_seeds(seeds)}"
    if name.startswith(start) and name.endswith(end) and len(name) > len(start + end):
        return name[len(start) : -len(end)]
    return None


def describe_seeds(seeds: Sequence[int]) -> str:
    """Describes consecutive training seeds in words.

    Args:
        seeds: At least one seed, ascending.

    Returns:
        The text.

    Example:
        >>> describe_seeds(range(3)), describe_seeds(range(7, 8))
        ('seeds 0 to 2', 'seed 7')
    """
    first, last = seeds[0], seeds[-1]
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def flatten(name: str) -> str:
    """Puts dashes for slashes, so that a name makes no folders."""
    return name.replace("/", "-")


def _name_seeds(seeds: range) -> str:
    first, last = seeds[0], seeds[-1]
    return f"seed-{first}" if first == last else f"seeds-{first}-{last}"
