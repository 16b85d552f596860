"""The configurations that are shipped, found by name."""

import difflib
from pathlib import Path

from pipeline.domains.datasets import split_task
from trainer.errors import ConfigError

# Files within a wheel; in a checkout a link to the folder that people read and edit.
CONFIGS = Path(__file__).parent / "configs"
# Folder beside a configuration file, with the settings of the other agents.
BASELINES = "baselines"
_SWEEPS = CONFIGS / "sweeps"


def find_configuration(given: str | Path) -> tuple[Path, int | None]:
    """Finds the file that a person means.

    Args:
        given: A path; or the name of a configuration that is shipped, such as
            ``"cube-single-play"`` or ``"wide/cube-triple-play-2048"``, or what OGBench
            calls its data set, with version or task.

    Returns:
        The file, and the task that OGBench's name says; None if it says none. A path is
        returned as it is, whatever lies there.

    Raises:
        ConfigError: If it is neither; names the nearest that are shipped.

    Example:
        >>> path, task = find_configuration("cube-single-play-singletask-task3-v0")
        >>> path.name, task
        ('cube-single-play.toml', 3)
    """
    path = Path(given)
    if path.suffix == ".toml" or path.is_absolute() or path.is_file():
        return path, None
    dataset, task = split_task(str(given))
    known = list_configurations()
    for name in (str(given), dataset):
        if name in known:
            return CONFIGS / f"{name}.toml", task
    near = difflib.get_close_matches(dataset, known, n=3, cutoff=0.5)
    raise ConfigError(
        f"{given}: no such configuration file, and none that is shipped has that name; "
        f"{'nearest' if near else 'shipped'}: {', '.join(near or known)}. Leave it out "
        "and give --agent for data of your own"
    )


def list_configurations() -> list[str]:
    """Names of the configurations that are shipped, each of one data set."""
    return sorted(
        path.relative_to(CONFIGS).with_suffix("").as_posix()
        for folder in (CONFIGS, CONFIGS / "ablations", CONFIGS / "wide")
        for path in folder.glob("*.toml")
    )


def find_sweep(given: Path) -> Path:
    """Finds the file of a sweep that a person means.

    Args:
        given: A path; or the name of a sweep that is shipped, such as ``table-1``.

    Returns:
        The file. A path is returned as it is, whatever lies there.
    """
    if given.suffix or given.is_file() or str(given) not in list_sweeps():
        return given
    return _SWEEPS / f"{given}.toml"


def list_sweeps() -> list[str]:
    """Names of the sweeps that are shipped."""
    return sorted(path.stem for path in _SWEEPS.glob("*.toml"))


def baseline_file(path: str | Path, agent: str) -> Path:
    """Finds the file with an agent's settings for a configuration.

    Args:
        path: Configuration file.
        agent: Name of the agent.

    Returns:
        The file beside the configuration; the shipped one if there is none beside it.
    """
    name = baseline_name(agent)
    beside, shipped = Path(path).parent / name, CONFIGS / name
    return shipped if shipped.exists() and not beside.exists() else beside


def baseline_name(agent: str) -> Path:
    """Where an agent's settings lie, seen from a configuration's folder."""
    return Path(BASELINES) / f"{agent.replace('-', '_')}.toml"
