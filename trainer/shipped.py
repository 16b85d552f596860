"""The shipped configurations, sweeps and settings of agents, found by name."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from pipeline.domains.datasets import split_task
from trainer.errors import ConfigError
from trainer.toml_tables import (
    Json,
    check_table,
    merge_tables,
    pop_task_tables,
    read_toml,
)

# A folder of files in a wheel. In a checkout it is a link to the folder `configs`, so
# that people edit the files that the package reads.
CONFIGS = Path(__file__).parent / "configs"
# Folder beside a configuration file, with the settings of the other agents.
BASELINES = "baselines"
_SWEEPS = CONFIGS / "sweeps"


def find_configuration(given: str | Path) -> tuple[Path, int | None]:
    """Finds the configuration file that a user means.

    Args:
        given: A path; or the name of a shipped configuration, such as
            ``"cube-single-play"`` or ``"wide/cube-triple-play-2048"``; or OGBench's
            name of its data set, with version or task.

    Returns:
        The file, and the task in OGBench's name; None if the name has no task. A path
        is returned as it is, even if no file exists there.

    Raises:
        ConfigError: If the text is neither; the error gives the nearest shipped names.

    Example:
        >>> path, task = find_configuration("cube-single-play-singletask-task3-v0")
        >>> path.name, task
        ('cube-single-play.toml', 3)
    """
    # A path is never taken for a name: a mistyped path must be an error, not another
    # configuration.
    path = Path(given)
    if path.suffix == ".toml" or path.is_absolute() or path.is_file():
        return path, None
    dataset, task = split_task(str(given))
    known = list_configurations()
    # Names of ours, such as wide/cube-triple-play-2048, are none of OGBench's.
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
    """Lists the names of the shipped configurations, each for one data set."""
    # The folders `baselines` and `sweeps` hold no configurations.
    return sorted(
        path.relative_to(CONFIGS).with_suffix("").as_posix()
        for folder in (CONFIGS, CONFIGS / "ablations", CONFIGS / "wide")
        for path in folder.glob("*.toml")
    )


def find_sweep(given: Path) -> Path:
    """Finds the file of the sweep that a user means.

    Args:
        given: A path; or the name of a shipped sweep, such as ``table-1``.

    Returns:
        The file. A path is returned as it is, even if no file exists there.
    """
    if given.suffix or given.is_file() or str(given) not in list_sweeps():
        return given
    return _SWEEPS / f"{given}.toml"


def list_sweeps() -> list[str]:
    """Lists the names of the shipped sweeps."""
    return sorted(path.stem for path in _SWEEPS.glob("*.toml"))


def find_baseline(path: str | Path, agent: str) -> Path:
    """Finds the file with an agent's settings for a configuration.

    Args:
        path: Path of the configuration file.
        agent: Name of the agent.

    Returns:
        The file in the folder beside the configuration; if only the package has such a
        file, the shipped one.
    """
    name = Path(BASELINES) / f"{agent.replace('-', '_')}.toml"
    # A user's own file comes first. The shipped one serves configurations that lie
    # outside of the package, without a folder of baselines.
    beside, shipped = Path(path).parent / name, CONFIGS / name
    return shipped if shipped.exists() and not beside.exists() else beside


def read_baseline(file: Path, *, dataset: str, task: int) -> tuple[Json, str]:
    """Reads an agent's settings for one data set and task.

    Args:
        file: TOML file. ``[agent]`` and ``[trainer]`` hold for all data sets,
            ``[datasets.NAME.agent]`` and ``[datasets.NAME.trainer]`` override them for
            one, and ``[datasets.NAME.tasks.N.agent]`` those for one task.
        dataset: Name of the data set.
        task: Task number, from 1.

    Returns:
        Tables of ``Config`` that override those of a configuration; and a warning if
        the file has no settings for the data set, so that the agent's defaults hold.

    Raises:
        ConfigError: If the file is missing or not TOML.
    """
    settings = read_toml(
        file,
        missing="no such configuration file; an agent's settings are read from the "
        f"folder {BASELINES!r} beside the given configuration, such as "
        f"configs/{BASELINES}/",
    )
    datasets = check_table(settings.pop("datasets", {}), where=f"{file}: datasets")
    # What the file sets for all data sets still holds for one that it does not list.
    if dataset not in datasets:
        agent = check_table(settings.get("agent", {}), where=f"{file}: agent")
        name = str(agent.get("name"))
        return settings, describe_defaults(name, dataset, known=datasets)
    where = f"{file}: datasets.{dataset}"
    of_dataset = check_table(datasets[dataset], where=where)
    of_tasks = pop_task_tables(of_dataset, where=where)
    chosen = merge_tables(of_dataset, of_tasks.get(str(task), {}))
    return merge_tables(settings, chosen), ""


def describe_defaults(agent: str, dataset: str, *, known: Iterable[str]) -> str:
    """Warns that an agent's defaults are used.

    Args:
        agent: Name of the agent.
        dataset: Data set that the agent has no settings for.
        known: Data sets that the agent has settings for. The nearest name among them is
            suggested, since the user may have mistyped it.

    Returns:
        The text of the warning.
    """
    near = difflib.get_close_matches(dataset, tuple(known), n=1, cutoff=0.7)
    hint = f"; it has some for {near[0]}" if near else ""
    return (
        f"{agent} has no settings for {dataset}{hint}: its defaults are used, which "
        f"`describe --agent {agent} --store STORE` lists"
    )
