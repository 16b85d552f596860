"""Training as one function."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.output import Output, say

if TYPE_CHECKING:
    from pipeline.domains.datasets import TaskEnvironment
    from pipeline.store.reader import Store
    from trainer.api.store import Trajectories
    from trainer.config import Config
    from trainer.data.table import RowTable
    from trainer.runs.run import Run


def train(
    config: "Config | str | Path | None",
    store: "Trajectories | str",
    out: str,
    *,
    task: int,
    agent: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: "TaskEnvironment | str | None" = None,
    output: Output | None = None,
    profile: str | None = None,
    take_over: bool = False,
) -> int:
    """Trains one task of a store, or continues the run that ``out`` holds.

    A run that was stopped and continued with the same arguments equals one that was
    never stopped, to the bit. Checkpoints, metrics and ``run.json`` are written to
    ``out``. SIGTERM, SIGHUP and Ctrl-C save the run and stop it. Python delivers
    signals to the main thread only, so this function must be called there.

    Args:
        config: Configuration, or its file or name as ``python -m trainer train`` takes
            it; None takes that of the store's data set or, if it has none, the agent's
            settings.
        store: Opened store, or its path. It must hold the data set that the
            configuration is for.
        out: Folder of the run, a local path or ``gs://bucket/path``.
        task: Number of the task.
        agent: Name of the agent, if it is not the configuration's.
        overrides: Tables that override the configuration's, such as
            ``{"trainer": {"steps": 1000}, "agent": {"width": 64}}``.
        environment: Environment to evaluate in if it is not the store's: ``"ID"``, or
            ``"MODULE:ID"`` to import the module that registers it. Before training, it
            is made in a process of its own and its spaces are compared with the data.
        output: Consoles for progress; None shows nothing.
        profile: Folder for a trace of a few calls; None writes no trace.
        take_over: Whether to continue the run although another process has begun to
            train in ``out``, and this one cannot find out whether it still does.

    Returns:
        The step that was reached, which is the configuration's last.

    Raises:
        ConfigError: If the configuration is wrong; the error names the key.
        DataFormatError: If the store or the folder does not fit the configuration, or
            the environment does not fit the store.
        RunLockedError: If another process trains in ``out``.
        StorageError: If a file cannot be written.
        TrainingDivergedError: If a loss is not finite, or values are far above all
            possible returns; the error names the last good checkpoint.
        PreemptedError: If a signal stopped the run; the step reached is saved.
    """
    # Imported here, so that importing the library does not start JAX.
    from pipeline.domains.environments import parse_environment
    from pipeline.store.reader import Store
    from trainer.data.feed import open_rows
    from trainer.evaluation.comparison import compare_spaces
    from trainer.parallel import agreement
    from trainer.runs.folder import RunFolder
    from trainer.runs.run import describe_run, find_action_outside
    from trainer.training import loop
    from trainer.training.session import check_folder

    output = Output.silent() if output is None else output
    opened = Store(store) if isinstance(store, str) else store.store
    config, remark = _resolve(
        config,
        task=task,
        agent=agent,
        dataset=opened.manifest.dataset,
        overrides=overrides or {},
    )
    if remark:
        say(output.progress, remark)
    if isinstance(environment, str):
        environment = parse_environment(environment)
    # One process compares for all of them, because a simulator takes seconds to start.
    # The comparison comes before everything else that takes long, which is reading the
    # store and training.
    if environment is not None and agreement.is_primary():
        compare_spaces(opened, environment, output.progress)
    with _show_reading(output) as count_bytes:
        rows = open_rows(
            opened,
            config.feed,
            task=task,
            discount=config.agent.discount,
            batch_size=config.trainer.batch_size,
            updates_per_call=config.trainer.updates_per_call,
            seed=config.trainer.seed,
            progress=count_bytes,
        )
    run = describe_run(
        config,
        opened,
        task,
        fingerprint=rows.fingerprint,
        environment=environment,
    )
    held_out = _load_held_out(run, opened, output)
    folder = RunFolder.open(out)
    check_folder(folder)
    say(
        output.progress,
        f"{run.dataset} task {task} ({run.task.name}): {opened.rows():,} rows, rewards "
        f"{run.facts.reward_min:g} to {run.facts.reward_max:g}, best return "
        f"{run.facts.return_max:.2f}",
    )
    # Baselines clip actions to [-1, 1], which changes what such data teach.
    outside = find_action_outside(opened)
    if outside is not None:
        say(
            output.progress,
            f"warning: actions of {opened.root} reach to {outside:g}, and a trained "
            "policy acts in [-1, 1]; write the store again, with --action-bounds",
            style="yellow",
        )
    # One process reads and tells, as above.
    if agreement.is_primary():
        _warn_of_unread_success(opened, run.task.task, output)
    return loop.train(
        run,
        rows,
        folder,
        console=output.progress,
        held_out=held_out,
        profile=profile,
        take_over=take_over,
    )


def _warn_of_unread_success(store: "Store", task: int, output: Output) -> None:
    """Warns where most successes are in last rows, whose reward nothing reads."""
    from trainer.data.table import count_unread_successes

    # The ends of such episodes look like cuts, and values there are made up.
    unread, reaching = count_unread_successes(store, store.task(task)[0])
    if 2 * unread > reaching:
        say(
            output.progress,
            f"warning: {unread:,} of the {reaching:,} episodes of {store.root} that "
            "solve the task do so in their last row, whose reward and mask nothing "
            "reads, as no step starts there; if success ended them, shard the data "
            "again, with rewards and masks in rows of the steps that lead to success",
            style="yellow",
        )


def _load_held_out(run: "Run", store: "Store", output: Output) -> "RowTable | None":
    """Loads the rows of the split ``val`` that the run is validated on.

    Returns:
        The rows; None if the configuration asks for no validation, or the store does
        not allow one. The user is warned of the latter.
    """
    from trainer.data import held_out

    config = run.config
    if config.trainer.validate_every is None:
        return None
    discount = config.agent.discount
    obstacle = held_out.find_obstacle(
        store, config.feed, run.agent().sampler, discount=discount
    )
    # A warning and no error: the configuration may be for many stores, some of which
    # have no split `val`.
    if obstacle is not None:
        say(
            output.progress,
            f"warning: training goes on without validation: {obstacle}",
            style="yellow",
        )
        return None
    return held_out.load_held_out(store, task=run.task.task, discount=discount)


def _resolve(
    config: "Config | str | Path | None",
    *,
    task: int,
    agent: str | None,
    dataset: str,
    overrides: Mapping[str, Any],
) -> "tuple[Config, str]":
    """Resolves the configuration, and a warning for the user, which may be empty."""
    from trainer import config as configuration
    from trainer.errors import ConfigError
    from trainer.toml_tables import merge_tables

    remark = ""
    if config is not None and not isinstance(config, str | Path):
        if agent is not None and agent != config.agent.name:
            raise ConfigError(
                f"agent: expected none beside a configuration that has its own "
                f"({config.agent.name!r}), got {agent!r}; give the configuration's "
                "file, or replace its agent"
            )
        resolved, where = config, "configuration"
    else:
        read = configuration.resolve(
            config, task=task, agent=agent, dataset=dataset, prog="train"
        )
        resolved, remark, where = read.config, read.remark, str(config or dataset)
    if not overrides:
        return resolved, remark
    # Merged as plain values and decoded again, so that overrides are checked as a file
    # would be.
    merged = merge_tables(configuration.encode(resolved), overrides)
    return configuration.decode(merged, where=f"{where} with overrides"), remark


@contextmanager
def _show_reading(output: Output) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a store has been read.

    Yields:
        A function to call with the number of bytes of each read.
    """
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    with Progress(
        *Progress.get_default_columns(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=output.progress,
        # The bar is erased when the store is read; a line about the data follows.
        transient=True,
        disable=not output.progress.is_terminal,
    ) as bar:
        task = bar.add_task("read store", total=None)
        yield lambda size: bar.advance(task, size)
