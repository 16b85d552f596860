"""``train``: updates, from the start or from where an earlier one stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from trainer.commands.arguments import read_environment
from trainer.commands.fields import show_fields

if TYPE_CHECKING:
    from trainer.config import Resolved


@dataclass(frozen=True)
class Train:
    """Train one task of a store; repeat the command to go on after a stop.

    Any field of the configuration can be overridden, such as
    ``--agent.width 128 --trainer.steps 8000``; ``train CONFIG --help`` lists them.

    Attributes:
        config: Configuration: a file, or the name of one that is shipped, such as
            cube-single-play. That of the store's data set if not given; of data of your
            own, the agent's defaults.
        store: Trajectory store, a local path or gs://bucket/path.
        out: Folder of the run, a local path or gs://bucket/path.
        task: Task number; may be left out if the store holds one task.
        agent: Name of the method to train, such as iql; another one than the file's
            takes its settings from ``baselines/`` beside the file, or its defaults
            for data that have none there.
        environment: Environment to evaluate in, where that is not the store's: ID, or
            MODULE:ID to have the module imported that registers it. Its spaces are
            compared with the data before anything is trained.
        environment_arguments: Arguments of the environment, such as size=3.
        profile: Folder for a trace of a few calls, for TensorBoard's profile plugin.
        take_over: Go on in the place of another process that has begun to train there
            and cannot be asked whether it still does.
    """

    store: str
    out: str
    config: Annotated[Path | None, tyro.conf.Positional] = None
    task: int | None = None
    agent: str | None = None
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    profile: str | None = None
    take_over: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Trains, with ``more`` overriding the configuration."""
        from pipeline.store.reader import Store
        from trainer import api, errors
        from trainer.evaluation.comparison import compare_own_spaces
        from trainer.parallel import agreement, processes

        resolved = self._resolve(more)
        environment = read_environment(self.environment, self.environment_arguments)
        alike = (
            errors.PreemptedError,
            errors.TrainingDivergedError,
            errors.RunLockedError,
        )
        with processes.together(alike=alike):
            # One says it for all; errors are said by each.
            heard = output if agreement.is_primary() else Output.silent()
            if resolved.remark:
                say(heard.progress, resolved.remark)
            if environment is None and agreement.is_primary():
                compare_own_spaces(Store(self.store), resolved.task, heard.progress)
            step = api.train(
                resolved.config,
                self.store,
                self.out,
                task=resolved.task,
                environment=environment,
                output=heard,
                profile=self.profile,
                take_over=self.take_over,
            )
            say(heard.results, f"trained to step {step}; the run is in {self.out}")
        return 0

    @classmethod
    def explain(cls, output: Output, words: Sequence[str]) -> None:
        """Adds to the help what can be overridden."""
        show_fields(output, words)

    def _resolve(self, more: Sequence[str]) -> "Resolved":
        """Works out configuration and task, looking into the store where it must."""
        from trainer import config as configuration
        from trainer.shipped import find_configuration

        config, task, dataset = self.config, self.task, None
        named = None if config is None else find_configuration(config)[1]
        if config is None or (task is None and named is None):
            from pipeline.store.reader import Store

            manifest = Store(self.store).manifest
            dataset = manifest.dataset
            held = [each.task for each in manifest.tasks]
            if task is None and named is None and len(held) > 1:
                raise UsageError(
                    f"--task: expected the number of one of the tasks of {self.store}, "
                    f"which holds {', '.join(map(str, held))}, got none"
                )
            task = task or (held[0] if named is None else None)
        return configuration.resolve(
            config,
            task=task,
            agent=self.agent,
            dataset=dataset,
            overrides=more,
            prog="python -m trainer train CONFIG",
        )
