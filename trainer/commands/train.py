"""``train``: updates, from the start or from where an earlier one stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say

if TYPE_CHECKING:
    from trainer.config import Config


@dataclass(frozen=True)
class Train:
    """Train one task of a store; repeat the command to go on after a stop.

    Any field of the configuration can be overridden, such as
    ``--agent.width 128 --trainer.steps 8000``; ``describe CONFIG`` lists them.

    Attributes:
        config: Configuration file, such as configs/cube-single-play.toml.
        store: Trajectory store, a local path or gs://bucket/path.
        task: Task number, 1 to 5.
        out: Folder of the run, a local path or gs://bucket/path.
        agent: Name of the method to train, such as iql; another one than the file's
            takes its settings from ``baselines/`` beside the file.
        profile: Folder for a trace of a few calls, for TensorBoard's profile plugin.
        take_over: Go on in the place of another process that has begun to train there
            and cannot be asked whether it still does.
    """

    config: Annotated[Path, tyro.conf.Positional]
    store: str
    task: int
    out: str
    agent: str | None = None
    profile: str | None = None
    take_over: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Trains, with ``more`` overriding the configuration."""
        from trainer import config as configuration
        from trainer import errors
        from trainer.parallel import agreement, processes

        config = configuration.resolve(
            self.config,
            task=self.task,
            agent=self.agent,
            overrides=more,
            prog="python -m trainer train CONFIG",
        ).config
        alike = (
            errors.PreemptedError,
            errors.TrainingDivergedError,
            errors.RunLockedError,
        )
        with processes.together(alike=alike):
            # One says it for all; errors are said by each.
            self._train(config, output if agreement.is_primary() else Output.silent())
        return 0

    def _train(self, config: "Config", output: Output) -> None:
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        from pipeline.store.reader import Store
        from trainer.data.feed import open_rows
        from trainer.runs.folder import RunFolder
        from trainer.runs.run import describe_run, find_action_outside
        from trainer.training.loop import train
        from trainer.training.session import check_folder

        store = Store(self.store)
        with Progress(
            *Progress.get_default_columns(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=output.progress,
            transient=True,
            disable=not output.progress.is_terminal,
        ) as bar:
            reading = bar.add_task("read store", total=None)
            rows = open_rows(
                store,
                config.feed,
                task=self.task,
                discount=config.agent.discount,
                batch_size=config.trainer.batch_size,
                updates_per_call=config.trainer.updates_per_call,
                seed=config.trainer.seed,
                progress=lambda size: bar.advance(reading, size),
            )
        run = describe_run(config, store, self.task, fingerprint=rows.fingerprint)
        folder = RunFolder.open(self.out)
        check_folder(folder)
        say(
            output.progress,
            f"{run.dataset} task {self.task} ({run.task.name}): {store.rows():,} rows, "
            f"rewards {run.facts.reward_min:g} to "
            f"{run.facts.reward_max:g}, best return {run.facts.return_max:.2f}",
        )
        outside = find_action_outside(store)
        if outside is not None:
            say(
                output.progress,
                f"warning: actions of {self.store} reach to {outside:g}, and what is "
                "learned acts in [-1, 1]; write the store again, with --action-bounds",
                style="yellow",
            )
        step = train(
            run,
            rows,
            folder,
            console=output.progress,
            profile=self.profile,
            take_over=self.take_over,
        )
        say(output.results, f"trained to step {step}; the run is in {self.out}")
