"""``subgoals``: what a policy means to reach."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, say


@dataclass(frozen=True)
class Subgoals:
    """Show the sub-goals a run's policy pursues, and how near it comes to them.

    Writes subgoals.json, subgoals.npz, subgoal_errors.png; of a maze maze.png, with
    V and the policy's paths; and where this machine can draw, subgoals.png: the scene
    now and, transparent, at the sub-goal.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        store: Store of its data, a local path or gs://bucket/path.
        out: Folder to write into, likewise; RUN/subgoals, which the report shows, if
            not given.
        episodes: Episodes to compare in; the first one is drawn.
        episode_seed: Of the evaluation: start states and the policy's noise.
        step: Checkpoint; the latest if not given.
        training_seed: Of the run's seeds; the first if not given.
        frames: Moments of the episode drawn.
        video: Draw rollout.webm as well: about a second a frame without a GPU.
    """

    run: Annotated[str, tyro.conf.Positional]
    store: str
    out: str | None = None
    episodes: int = 5
    episode_seed: int = 0
    step: int | None = None
    training_seed: int | None = None
    frames: int = 6
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Compares, draws, and says which files were written."""
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
            ),
            console=output.progress,
        )
        say(output.results, "wrote " + ", ".join(str(path) for path in written))
        return 0
