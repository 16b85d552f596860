"""``train``: updates, from the start or from where an earlier one stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pipeline.output import Output, say
from trainer.commands.arguments import read_environment


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
        environment: Environment to evaluate in, where that is not the store's: ID, or
            MODULE:ID to have the module imported that registers it. Its spaces are
            compared with the data before anything is trained.
        environment_arguments: Arguments of the environment, such as size=3.
        profile: Folder for a trace of a few calls, for TensorBoard's profile plugin.
        take_over: Go on in the place of another process that has begun to train there
            and cannot be asked whether it still does.
    """

    config: Annotated[Path, tyro.conf.Positional]
    store: str
    task: int
    out: str
    agent: str | None = None
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    profile: str | None = None
    take_over: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Trains, with ``more`` overriding the configuration."""
        from pipeline.store.reader import Store
        from trainer import api, errors
        from trainer import config as configuration
        from trainer.evaluation.comparison import compare_own_spaces
        from trainer.parallel import agreement, processes

        config = configuration.resolve(
            self.config,
            task=self.task,
            agent=self.agent,
            overrides=more,
            prog="python -m trainer train CONFIG",
        ).config
        environment = read_environment(self.environment, self.environment_arguments)
        alike = (
            errors.PreemptedError,
            errors.TrainingDivergedError,
            errors.RunLockedError,
        )
        with processes.together(alike=alike):
            # One says it for all; errors are said by each.
            heard = output if agreement.is_primary() else Output.silent()
            if environment is None and agreement.is_primary():
                compare_own_spaces(Store(self.store), self.task, heard.progress)
            step = api.train(
                config,
                self.store,
                self.out,
                task=self.task,
                environment=environment,
                output=heard,
                profile=self.profile,
                take_over=self.take_over,
            )
            say(heard.results, f"trained to step {step}; the run is in {self.out}")
        return 0
