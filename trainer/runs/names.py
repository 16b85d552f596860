"""Names of runs in a sweep: what made a run can be told from the name of its folder."""


def name_cell(dataset: str, task: int, method: str, seeds: range) -> str:
    """Name of the run of a method in a sweep.

    Example:
        >>> name_cell("cube-single-play", 1, "cloning", range(3))
        'cube-single-play-1-cloning-seeds-0-2'
    """
    return f"{dataset}-{task}-{method}-{_name_seeds(seeds)}"


def find_method(name: str, *, dataset: str, task: int, seeds: range) -> str | None:
    """Method that a run is of, if it is called as a sweep calls it.

    Args:
        name: Of the run's folder.
        dataset: Of the run.
        task: Of the run.
        seeds: Training seeds of the run.

    Returns:
        Name of the method; None for a run of another name.

    Example:
        >>> name = "cube-single-play-1-cloning-seeds-0-2"
        >>> find_method(name, dataset="cube-single-play", task=1, seeds=range(3))
        'cloning'
    """
    start, end = f"{dataset}-{task}-", f"-{_name_seeds(seeds)}"
    if name.startswith(start) and name.endswith(end) and len(name) > len(start + end):
        return name[len(start) : -len(end)]
    return None


def _name_seeds(seeds: range) -> str:
    first, last = seeds[0], seeds[-1]
    return f"seed-{first}" if first == last else f"seeds-{first}-{last}"
