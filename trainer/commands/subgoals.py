"""``subgoals``: the sub-goals that a policy pursues."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, say
from trainer.commands.arguments import RunPath, read_environment


@dataclass(frozen=True)
class Subgoals:
    """Show the sub-goals that a run's policy pursues, and how near it comes to them.

    The files subgoals.json, subgoals.npz and subgoal_errors.svg are written; for a maze
    also maze_recorded.svg, maze_values.svg with V and sub-goals, and maze_policy.svg;
    and on a machine that can render, subgoals.svg, with the scene now and, transparent,
    at the sub-goal.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        store: Store of the run's data, a local path or gs://bucket/path.
        out: Folder to write into, a local path or gs://bucket/path; if not given,
            RUN/subgoals, which the report shows.
        episodes: Episodes in which sub-goals and states are compared; the first one is
            drawn.
        episode_seed: Seed of the start states and of the policy's noise.
        step: Step of the checkpoint; the latest if not given.
        training_seed: Training seed, one of the run's; the first if not given.
        frames: Moments of the episode that are drawn.
        video: Draw rollout.webm as well, which takes about a second for each frame
            without a GPU.
        environment: Environment to act in if it is not the run's: ID, or MODULE:ID to
            import the module that registers it.
        environment_arguments: Arguments of the environment, such as size=3.
    """

    run: RunPath
    store: str
    out: str | None = None
    episodes: int = 5
    episode_seed: int = 0
    step: int | None = None
    training_seed: int | None = None
    frames: int = 6
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()

    def execute(self, output: Output) -> int:
        """Compares sub-goals and states, draws them, and prints the files' names."""
        from pipeline.store.reader import Store
        from trainer.runs.folder import RunFolder, open_folder
        from trainer.runs.subgoal_files import SUBGOALS
        from trainer.subgoals.inspect import Inspection, inspect_subgoals

        run = RunFolder.open(self.run)
        written = inspect_subgoals(
            run,
            Store(self.store),
            open_folder(self.out) if self.out else run.path / SUBGOALS,
            Inspection(
                episodes=self.episodes,
                seed=self.episode_seed,
                step=self.step,
                training_seed=self.training_seed,
                frames=self.frames,
                video=self.video,
                environment=read_environment(
                    self.environment, self.environment_arguments
                ),
            ),
            console=output.progress,
        )
        say(output.results, "wrote " + ", ".join(str(path) for path in written))
        return 0
