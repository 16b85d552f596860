"""``train``: training of one task, from its start or from the last checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from trainer.commands.arguments import OptionalConfigPath, read_environment
from trainer.commands.fields import show_fields

if TYPE_CHECKING:
    from trainer.config import Resolved


@dataclass(frozen=True)
class Train:
    """Train one task of a store; repeat the command to continue after a stop.

    Any field of the configuration can be overridden, such as --agent.width 128
    --trainer.steps 8000; the help of a configuration (train CONFIG --help) lists them.

    Attributes:
        config: Configuration file, or the name of a shipped one, such as
            cube-single-play. If not given, the one for the store's data set; for data
            of your own, the agent's defaults.
        store: Trajectory store, a local path or gs://bucket/path.
        out: Folder of the run, a local path or gs://bucket/path.
        task: Task number; not needed if the store has one task only.
        agent: Agent to train, such as iql, if it is not the configuration's. Its
            settings are read from baselines/ beside the configuration; for data
            without settings there, its defaults are used.
        environment: Environment to evaluate in if it is not the store's: ID, or
            MODULE:ID to import the module that registers it. Its spaces are compared
            with the data before the training starts.
        environment_arguments: Arguments of the environment, such as size=3.
        profile: Folder for a trace of a few calls, for TensorBoard's profile plugin.
        take_over: Continue the run although another process has begun to train in the
            folder, and this one cannot find out whether it still does.
    """

    store: str
    out: str
    config: OptionalConfigPath = None
    task: int | None = None
    agent: str | None = None
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    profile: str | None = None
    take_over: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Trains the task; ``more`` are overrides of the configuration."""
        from pipeline.store.reader import Store
        from trainer import api, errors
        from trainer.evaluation.comparison import compare_own_spaces
        from trainer.parallel import agreement, processes
        from trainer.training.memory import explain_lack_of_memory

        resolved = self._resolve(more)
        environment = read_environment(self.environment, self.environment_arguments)
        # All processes of a run raise these errors together, so that each of them ends
        # with the error's own code, and not because it has lost the others.
        common_errors = (
            errors.PreemptedError,
            errors.TrainingDivergedError,
            errors.RunLockedError,
        )
        with (
            processes.join_processes(alike=common_errors),
            explain_lack_of_memory(self.out),
        ):
            # Progress would otherwise be printed once by every process. Each process
            # still prints its own error.
            shown = output if agreement.is_primary() else Output.silent()
            if resolved.remark:
                say(shown.progress, resolved.remark)
            if environment is None and agreement.is_primary():
                compare_own_spaces(Store(self.store), resolved.task, shown.progress)
            step = api.train(
                resolved.config,
                self.store,
                self.out,
                task=resolved.task,
                environment=environment,
                output=shown,
                profile=self.profile,
                take_over=self.take_over,
            )
            say(shown.results, f"trained to step {step}; the run is in {self.out}")
        return 0

    @classmethod
    def explain(cls, output: Output, words: Sequence[str]) -> None:
        """Prints below the help the fields that can be overridden."""
        show_fields(output, words)

    def _resolve(self, more: Sequence[str]) -> "Resolved":
        """Resolves configuration and task, reading the store's manifest if needed."""
        from trainer import config as configuration
        from trainer.shipped import find_configuration

        config, task, dataset = self.config, self.task, None
        named = None if config is None else find_configuration(config)[1]
        # The manifest is not read if the command line says everything: on gs:// each
        # look takes its time, and api.train opens the store once more.
        if config is None or (task is None and named is None):
            from pipeline.store.reader import Store

            manifest = Store(self.store).manifest
            dataset = manifest.dataset
            stored = [description.task for description in manifest.tasks]
            if task is None and named is None and len(stored) > 1:
                raise UsageError(
                    f"--task: expected the number of one of the tasks of {self.store}, "
                    f"which holds {', '.join(map(str, stored))}, got none"
                )
            # Task 0 is no task: `resolve` has to see and refuse it.
            if task is None and named is None:
                task = stored[0]
        return configuration.resolve(
            config,
            task=task,
            agent=self.agent,
            dataset=dataset,
            overrides=more,
            prog="python -m trainer train CONFIG",
        )
