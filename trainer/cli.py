"""The command line: ``python -m trainer {train,evaluate,report,toy,describe,bench}``.

Thin: parses, calls, and turns errors into one line and an exit code.
"""

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from pipeline.store.errors import DataFormatError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
# sysexits.h EX_TEMPFAIL: saved, and the same command goes on. Cluster restart
# policies are tied to it.
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130

_Run = Annotated[Path, tyro.conf.Positional]
_Runs = Annotated[tuple[Path, ...], tyro.conf.Positional]
_Config = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class Train:
    """Train one task of a store; repeat the command to go on after a stop.

    Any field of the configuration can be overridden, such as
    ``--agent.width 128 --trainer.steps 8000``; ``describe CONFIG`` lists them.

    Attributes:
        config: Configuration file, such as configs/cube-single-play.toml.
        store: Trajectory store, a local path or gs://bucket/path.
        task: Task number, 1 to 5.
        out: Folder of the run.
    """

    config: _Config
    store: str
    task: int
    out: Path


@dataclass(frozen=True)
class Evaluate:
    """Roll out a run's checkpoints in its environment.

    Attributes:
        run: Folder of the run.
        episodes: Episodes of each checkpoint and training seed.
        seed: Of the evaluation: start states and the policy's noise.
        steps: Checkpoints to evaluate, by step; the latest if none is given.
        all_steps: Evaluate every checkpoint there is.
        environments: Environments acted in at once.
        workers: Environment processes; one for each core if not given. Results do
            not depend on it.
    """

    run: _Run
    episodes: int = 50
    seed: int = 0
    steps: tuple[int, ...] = ()
    all_steps: bool = False
    environments: int = 8
    workers: int | None = None


@dataclass(frozen=True)
class Report:
    """Draw learning curves and a table beside the paper's numbers.

    Attributes:
        runs: Folders of runs.
        out: Folder for report.html, PNG and CSV files.
    """

    runs: _Runs
    out: Path


@dataclass(frozen=True)
class Toy:
    """Solve the 4x4 grid of the paper's section 3, by table and by network.

    Attributes:
        out: Folder for toy.png and toy.json.
        seed: Of the networks.
    """

    out: Path
    seed: int = 0


@dataclass(frozen=True)
class Describe:
    """Print a configuration as resolved for a task.

    Attributes:
        config: Configuration file.
        task: Task number, 1 to 5.
    """

    config: _Config
    task: int = 1


@dataclass(frozen=True)
class Bench:
    """Measure the feed on this machine.

    Attributes:
        what: feed.
        store: Trajectory store to feed from.
        task: Task number, 1 to 5.
        batch_size: Windows of a batch.
        seconds: Time given to each measurement.
        json: Print one JSON object instead of a table.
    """

    what: Annotated[Literal["feed"], tyro.conf.Positional]
    store: str
    task: int = 1
    batch_size: int = 1024
    seconds: float = 5.0
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name; the process's own if None.

    Returns:
        Exit code: 0; 1 if the environment failed; 2 for wrong use or data; 3 if
        training diverged; 75 if it was preempted and has saved; 130 if interrupted.
    """
    console = Console(stderr=True, soft_wrap=True)
    # Orbax warns of every folder it opens only to read.
    logging.getLogger("absl").setLevel(logging.ERROR)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] not in _COMMANDS:
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        console.print(_usage(arguments[0] if arguments and not asked else None))
        return 0 if asked else EXIT_USAGE
    kind, command = _COMMANDS[arguments[0]]
    parsed, overrides = tyro.cli(
        kind,
        args=arguments[1:],
        prog=f"python -m trainer {arguments[0]}",
        return_unknown_args=True,
    )
    if overrides and kind is not Train:
        return _fail(console, f"unknown arguments: {' '.join(overrides)}", EXIT_USAGE)
    try:
        return command(parsed, overrides, console)
    except (DataFormatError, ValueError, ImportError) as error:
        return _fail(console, str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return _fail(console, "interrupted", EXIT_INTERRUPTED)
    except RuntimeError as error:
        code = _RUNTIME_EXITS.get(type(error).__name__)
        if code is None:
            raise
        return _fail(console, str(error), code)


_RUNTIME_EXITS = {
    "EvaluationError": EXIT_FAILED,
    "TrainingDivergedError": EXIT_DIVERGED,
    "PreemptedError": EXIT_PREEMPTED,
}


def _train(args: Train, overrides: list[str], console: Console) -> int:
    from pipeline.store.reader import Store
    from trainer import config as configuration
    from trainer import loop
    from trainer.data.feed import open_rows
    from trainer.run import describe_run

    config = configuration.load(args.config, task=args.task)
    if overrides:
        config = tyro.cli(
            tyro.conf.AvoidSubcommands[configuration.Config],
            default=config,
            args=overrides,
            prog="python -m trainer train CONFIG",
        )
    store = Store(args.store)
    with Progress(
        *Progress.get_default_columns(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
    ) as bar:
        reading = bar.add_task("read store", total=None)
        rows = open_rows(
            store,
            config.feed,
            task=args.task,
            discount=config.agent.discount,
            batch_size=config.trainer.batch_size,
            updates_per_call=config.trainer.updates_per_call,
            seed=config.trainer.seed,
            progress=lambda size: bar.advance(reading, size),
        )
    run = describe_run(config, store, args.task, fingerprint=rows.fingerprint)
    loop.check_folder(args.out)
    console.print(
        f"{run.dataset} task {args.task} ({run.task.name}): {store.rows():,} rows, "
        f"rewards {run.facts.reward_min:g} to "
        f"{run.facts.reward_max:g}, best return {run.facts.return_max:.2f}"
    )
    step = loop.train(run, rows, args.out, console=console)
    console.print(f"trained to step {step}; the run is in {args.out}")
    return 0


def _evaluate(args: Evaluate, overrides: list[str], console: Console) -> int:
    from trainer.evaluation.evaluate import evaluate_run

    evaluate_run(
        args.run,
        episodes=args.episodes,
        steps="all" if args.all_steps else args.steps or "latest",
        evaluation_seed=args.seed,
        environments=args.environments,
        workers=args.workers,
        console=console,
    )
    return 0


def _report(args: Report, overrides: list[str], console: Console) -> int:
    from trainer.evaluation.report import write_report
    from trainer.run import METRICS_FILE, read_lines

    written = write_report(list(args.runs), args.out)
    console.print("wrote " + ", ".join(str(path) for path in written))
    for folder in args.runs:
        errors = [
            (line["step"], line["segment_error"])
            for line in read_lines(folder / METRICS_FILE)
            if "segment_error" in line
        ]
        if errors:
            (first, before), (last, after) = errors[0], errors[-1]
            console.print(
                f"{folder}: G is off the stored window returns by {before:.2f} at "
                f"update {first:,} and by {after:.2f} at update {last:,}"
            )
    return 0


def _toy(args: Toy, overrides: list[str], console: Console) -> int:
    from trainer.toy.run import run_toy

    run_toy(args.out, seed=args.seed, console=console)
    return 0


def _describe(args: Describe, overrides: list[str], console: Console) -> int:
    import json

    from trainer import config as configuration

    config = configuration.load(args.config, task=args.task)
    Console().print_json(json.dumps(configuration.encode(config)))
    return 0


def _bench(args: Bench, overrides: list[str], console: Console) -> int:
    import json

    from rich.table import Table

    from pipeline.store.reader import Store
    from trainer.bench import bench_feed

    with console.status("measuring") as status:
        report = bench_feed(
            Store(args.store),
            task=args.task,
            batch_size=args.batch_size,
            seconds=args.seconds,
            progress=status.update,
        )
    if args.json:
        Console().print_json(json.dumps(dataclasses.asdict(report)))
        return 0
    table = Table(
        "source",
        "batches/s",
        "rows/s",
        "blocked ms",
        "read/useful",
        "RSS MiB",
        title=f"batches of {report.batch_size:,} from {report.rows:,} rows; store to "
        f"memory in {report.load_s:.1f} s, {report.load_mib_per_s:,.0f} MiB/s",
    )
    for row in report.figures:
        table.add_row(
            row.source,
            f"{row.batches_per_s:,.1f}",
            f"{row.rows_per_s:,.0f}",
            f"{row.blocked_ms:.3f}",
            f"{row.read_per_useful_byte:.3f}",
            f"{row.rss_mib:,.0f}",
        )
    Console().print(table)
    return 0


_Command = Callable[[Any, list[str], Console], int]
_COMMANDS: dict[str, tuple[type[Any], _Command]] = {
    "train": (Train, _train),
    "evaluate": (Evaluate, _evaluate),
    "report": (Report, _report),
    "toy": (Toy, _toy),
    "describe": (Describe, _describe),
    "bench": (Bench, _bench),
}


def _usage(unknown: str | None) -> str:
    lines = [] if unknown is None else [f"unknown command {unknown!r}; expected one of"]
    for name, (kind, _) in _COMMANDS.items():
        lines.append(
            f"  python -m trainer {name:10} {(kind.__doc__ or '').splitlines()[0]}"
        )
    return "\n".join(lines)


def _fail(console: Console, message: str, code: int) -> int:
    console.print(f"error: {message}", style="red", markup=False, highlight=False)
    return code
