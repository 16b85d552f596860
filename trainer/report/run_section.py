"""What a report says of one run: its data and settings, caveats, and pictures."""

import dataclasses
import io
import json
import os
from collections.abc import Sequence

import numpy as np
from etils import epath

from pipeline.pages.drawing import to_svg
from pipeline.pages.elements import Picture
from pipeline.store import files
from pipeline.store.decoding import load_object
from pipeline.store.errors import DataFormatError
from pipeline.store.units import format_duration, format_rate
from trainer.report import charts, headline
from trainer.report.page import Section
from trainer.report.sources import Source
from trainer.runs import subgoal_files
from trainer.runs.history import VALIDATION, History
from trainer.runs.success_rates import (
    group_by_step,
    mean_return,
    pool_by_step,
    select_largest,
)


def make_section(source: Source) -> Section:
    """Makes the section of a run.

    Args:
        source: The run.

    Returns:
        Its section of the page, with its pictures.

    Raises:
        DataFormatError: If the files of an inspection of sub-goals are damaged.
    """
    run, history = source.run, source.history
    trainer = run.config.trainer
    done = int(history.steps[-1]) if len(history.steps) else 0
    properties = {
        "data set": run.dataset,
        "task": f"{run.task.task} ({run.task.name})",
        "agent": run.config.agent.name,
        "updates": f"{done:,} of {trainer.steps:,}",
        "training seeds": str(trainer.seeds),
        "batch size": f"{trainer.batch_size:,}",
        "best return in the data": f"{run.facts.return_max:.3g}",
        "environment": run.task.environment_id,
    }
    if done and "updates_per_s" in history.names():
        # The median of log points: a machine that is busy for a while slows a few.
        speed = np.nanmean(history.scalar("updates_per_s"), axis=0)
        properties["speed"] = f"{format_rate(float(np.median(speed)))} updates/s"
        # Summed over log points: a resumed run's clock starts again.
        spent = np.diff(history.steps, prepend=0) / speed
        properties["training time"] = format_duration(float(spent.sum()))
    if done and "input_blocked_share" in history.names():
        waited = 100 * float(np.nanmean(history.scalar("input_blocked_share")))
        properties["time waiting for data"] = f"{waited:.1f} %"
    properties.update(run.versions)
    return Section(
        title=source.name,
        outcome=headline.describe_run(source),
        properties=properties,
        remarks=_list_remarks(source),
        pictures=[
            *_draw_curves(source),
            *_read_subgoal_pictures(source.folder.path / subgoal_files.SUBGOALS),
        ],
        configuration=json.dumps(dataclasses.asdict(run.config), indent=2),
    )


def _list_remarks(source: Source) -> list[str]:
    """Lists what a reader must know before the pictures are believed."""
    remarks = []
    if any(evaluation.successes is None for evaluation in source.own):
        remarks.append(
            "The environment reports no success: there is no success rate, and only "
            "returns can be compared."
        )
    if not source.own:
        remarks.append(
            "This run was not evaluated yet: it has no result. Run python -m trainer "
            "evaluate on its folder, then write the report again."
        )
    if not len(source.history.steps):
        remarks.append("This run logged nothing yet: it has no training curves.")
    # Rewards and environment may judge success before or after a step (see OGBench).
    timings = {evaluation.success_timing for evaluation in source.evaluations}
    if timings - {source.run.task.success_timing}:
        remarks.append(
            f"Success was judged with timing {' and '.join(sorted(timings))} in the "
            f"environment and {source.run.task.success_timing} in the training data; "
            "lengths and returns differ by a step."
        )
    return remarks


def _draw_curves(source: Source) -> list[Picture]:
    """Draws every picture whose data were logged."""
    # Captions tell readers of any background how to read a picture; alternative texts
    # give its numbers to those who do not see it.
    run, history = source.run, source.history
    paper = source.rows[0].paper
    drawn = (
        (
            "success",
            "Success rate of the checkpoints evaluated. The bars are Wilson's 95 % "
            "intervals of the pooled episodes.",
            _describe_success(source),
            charts.draw_success(source.own, paper),
        ),
        (
            "returns",
            "Mean return of the checkpoints evaluated. The bars are 95 % bootstrap "
            "intervals over the pooled episodes.",
            _describe_returns(source),
            charts.draw_returns(source.own),
        ),
        (
            "losses",
            "The losses of the networks, averaged between two log points; the band "
            "spans the training seeds. Losses of flows do not tend to zero.",
            _describe_metrics(history, "The losses", charts.list_losses(history)),
            charts.draw_losses(history),
        ),
        (
            "validation",
            "Loss and errors on windows of held-out episodes, in units of reward. A "
            "loss that rises on held-out windows alone shows overfitting. Values may "
            "be far from the stored returns, which are those of a policy that is to be "
            "improved.",
            _describe_metrics(
                history,
                "On held-out windows",
                [name for name in history.names() if name.startswith(VALIDATION)],
            ),
            charts.draw_validation(history),
        ),
        (
            "values",
            "V is the return that the agent expects from a state. Above the best "
            "return in the data V is over-estimated: no policy that stitches recorded "
            "rewards together should collect much more.",
            _describe_metrics(history, "State values", ("value", "value_max")),
            charts.draw_values(history, run.facts.return_max),
        ),
        (
            "segment_error",
            "G predicts the return of a recorded window of k steps. The error is its "
            "distance from the recorded discounted return, in units of reward: over "
            "training, and by the length of the window at its start and end.",
            _describe_metrics(history, "The error of G", ("segment_error",)),
            charts.draw_segment_errors(history),
        ),
        (
            "weights",
            "Weights of recorded windows (VAST) or steps (IQL) in the policy's loss, "
            "or of steps in the value's loss (Value Flows). If all are near one, "
            "nothing is preferred, and the policy clones behaviour; if the largest is "
            "far above the mean, few decide.",
            _describe_metrics(history, "Weights", ("weight", "weight_max")),
            # Agents without windows have no such weights, and no such setting.
            charts.draw_weights(history, getattr(run.config.agent, "max_weight", None)),
        ),
        (
            "horizons",
            "How many steps ahead the policy over sub-goals aims from the training "
            "states, beside the windows it learns from.",
            "Bars of how often each horizon is drawn, and a line for the windows of "
            "the data.",
            charts.draw_horizons(history),
        ),
    )
    return [
        Picture(name, caption, alt, to_svg(figure))
        for name, caption, alt, figure in drawn
        if figure is not None
    ]


def _describe_success(source: Source) -> str:
    scores = pool_by_step(select_largest(source.own))
    points = [f"{100 * score.rate:.0f} % at {step:,}" for step, score in scores.items()]
    return f"Success rate by updates: {_join_ends(points)}."


def _describe_returns(source: Source) -> str:
    by_step = group_by_step(select_largest(source.own))
    points = [
        f"{mean_return(group):.4g} at {step:,}" for step, group in by_step.items()
    ]
    return f"Mean return by updates: {_join_ends(points)}."


def _join_ends(points: Sequence[str]) -> str:
    """Describes the first and the last of some points in words."""
    return " to ".join(dict.fromkeys((points[0], points[-1]))) if points else "none"


def _describe_metrics(history: History, subject: str, names: Sequence[str]) -> str:
    """Tells where metrics start and end, for those who cannot see the picture."""
    parts = []
    for name in names:
        if name in history.names():
            _, mean = history.mean(name)
            if len(mean):
                words = name.replace("_", " ")
                parts.append(f"{words} from {mean[0]:.3g} to {mean[-1]:.3g}")
    return f"{subject} over training: {', '.join(parts) or 'nothing was logged'}."


# By file, in the order of the page: caption and alternative text.
_SUBGOAL_PICTURES = {
    subgoal_files.MAZE_RECORDED_FILE: (
        "The maze from above, with the paths of some recorded episodes.",
        "A map of the maze with recorded paths.",
    ),
    subgoal_files.MAZE_VALUES_FILE: (
        "V, the reward that the agent expects from each place, and sub-goals that the "
        "policy pursues along an episode. A body with limbs is taken to stand as it "
        "does at the start of the episode.",
        "A map of the maze with state values as colours and sub-goals as arrows.",
    ),
    subgoal_files.MAZE_POLICY_FILE: (
        "The paths that the policy takes from its starts.",
        "A map of the maze with the policy's paths.",
    ),
    subgoal_files.ERRORS_FILE: (
        "Sub-goals of rollouts against the states that came k steps later. A sub-goal "
        "is one draw of many, and the policy need not reach it: an error below that of "
        "a state in which nothing moves is good.",
        "Horizons drawn, and errors of the predicted states beside those of a state "
        "that stays.",
    ),
    subgoal_files.SCENE_FILE: (
        "Sub-goals that the policy pursues, k steps ahead, drawn into the scene. The "
        "text below the frames says how to read them.",
        "Moments of an episode, each with its sub-goal drawn transparently.",
    ),
    subgoal_files.VIDEO_FILE: (
        "The same episode, from start to end.",
        "The episode with its sub-goals, as a video without sound.",
    ),
    subgoal_files.OLD_VIDEO_FILE: (
        "The same episode, from start to end.",
        "The episode with its sub-goals, as an animation.",
    ),
}


def _read_subgoal_pictures(folder: epath.Path) -> list[Picture]:
    """Reads the pictures that an inspection of sub-goals wrote into a run's folder."""
    root = os.fspath(folder)
    # The JSON file is written last: without it the inspection did not finish.
    report = files.read(root, subgoal_files.JSON_FILE).data
    if report is None:
        return []
    where = str(folder / subgoal_files.JSON_FILE)
    remedy = f"delete {folder} and inspect the run again"
    inspection = load_object(report, where=where, remedy=remedy)
    step, seed = inspection.get("step"), inspection.get("seed")
    if not isinstance(step, int) or not isinstance(seed, int):
        raise DataFormatError(
            f"{where}: expected step and seed, got {step!r:.80} and {seed!r:.80}; "
            f"{remedy}"
        )
    pictures = []
    for file, (caption, alt) in _SUBGOAL_PICTURES.items():
        data = files.read(root, file).data
        if data is None:
            continue
        name, _, kind = file.rpartition(".")
        pictures.append(
            Picture(
                name=name,
                caption=f"After {step:,} updates, training seed {seed}. {caption}",
                alt=alt,
                data=data,
                kind=kind,  # type: ignore[arg-type]
                wide=file == subgoal_files.SCENE_FILE,
                still=_first_frame(data) if kind == "gif" else None,
            )
        )
    return pictures


def _first_frame(gif: bytes) -> bytes | None:
    """Extracts the first frame of an animation as PNG; None if it is no animation."""
    # Imported here: Pillow comes with matplotlib, and only animations need it.
    from PIL import Image

    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(gif), formats=("GIF",)) as image:
            image.convert("RGB").save(buffer, "PNG")
    except (OSError, ValueError, Image.DecompressionBombError):
        return (
            None  # Anyone may have put the file there; the browser shows what it can.
        )
    return buffer.getvalue()
