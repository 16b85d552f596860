"""What a report says of one run: its facts, what to beware of, and its pictures."""

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
from pipeline.store.units import format_duration
from trainer.report import charts, headline
from trainer.report.page import Section
from trainer.report.sources import Source
from trainer.runs import subgoal_files
from trainer.runs.history import VALIDATION, History
from trainer.runs.success_rates import pool_by_step, pool_returns, select_largest


def make_section(source: Source) -> Section:
    """Says what there is to say of a run.

    Args:
        source: The run.

    Returns:
        Its section of the page, with its pictures.

    Raises:
        DataFormatError: If what an inspection of sub-goals left is damaged.
    """
    run, history = source.run, source.history
    trainer = run.config.trainer
    done = int(history.steps[-1]) if len(history.steps) else 0
    facts = {
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
        speed = np.nanmean(history.scalar("updates_per_s"), axis=0)
        facts["speed"] = f"{np.median(speed):,.3g} updates/s"
        # Summed over log points: a resumed run's clock starts again.
        spent = np.diff(history.steps, prepend=0) / speed
        facts["training time"] = format_duration(float(spent.sum()))
    if done and "input_blocked_share" in history.names():
        waited = 100 * float(np.nanmean(history.scalar("input_blocked_share")))
        facts["time waiting for data"] = f"{waited:.1f} %"
    facts.update(run.versions)
    return Section(
        title=source.name,
        outcome=headline.describe_run(source),
        facts=facts,
        remarks=_remarks(source),
        pictures=[
            *_curves(source),
            *_subgoal_pictures(source.folder.path / subgoal_files.SUBGOALS),
        ],
        configuration=json.dumps(dataclasses.asdict(run.config), indent=2),
    )


def _remarks(source: Source) -> list[str]:
    """What a reader must know before believing the pictures."""
    remarks = []
    if any(each.successes is None for each in source.own):
        remarks.append(
            "The environment reports no success: there is no success rate, and what "
            "can be compared are the returns."
        )
    if not source.own:
        remarks.append(
            "This run was not evaluated yet: there is no result. Run `python -m "
            "trainer evaluate` on its folder, then write the report again."
        )
    if not len(source.history.steps):
        remarks.append("This run logged nothing yet: there are no training curves.")
    timings = {each.success_timing for each in source.evaluations}
    if timings - {source.run.task.success_timing}:
        remarks.append(
            f"Success was judged with timing {' and '.join(sorted(timings))} in the "
            f"environment and {source.run.task.success_timing} in the rewards trained "
            "on: lengths and returns differ by a step."
        )
    return remarks


def _curves(source: Source) -> list[Picture]:
    """Draws what there are data for."""
    run, history = source.run, source.history
    paper = source.rows[0].paper
    drawn = (
        (
            "success",
            "Success rate of the checkpoints evaluated. The bars are Wilson's 95 % "
            "intervals of the pooled episodes.",
            _say_success(source),
            charts.success_chart(source.own, paper),
        ),
        (
            "returns",
            "Mean return of the checkpoints evaluated. The bars are 95 % bootstrap "
            "intervals over the pooled episodes.",
            _say_returns(source),
            charts.return_chart(source.own),
        ),
        (
            "losses",
            "The losses of the networks, averaged between two log points; the band "
            "spans the training seeds. Losses of flows do not tend to zero.",
            _say(history, "The losses", _names_of_losses(history)),
            charts.loss_chart(history),
        ),
        (
            "validation",
            "Loss and errors on windows of episodes that nothing is trained on, in "
            "units of reward. A loss that rises there alone says that the data are "
            "learned by heart. Values may well be far from the stored returns, which "
            "are those of a policy that is to be improved.",
            _say(
                history,
                "On held-out windows",
                [name for name in history.names() if name.startswith(VALIDATION)],
            ),
            charts.validation_chart(history),
        ),
        (
            "values",
            "V is what the agent expects to collect from a state. Above the best "
            "return in the data it is over-estimated: no policy that stitches recorded "
            "rewards together should collect much more.",
            _say(history, "State values", ("value", "value_max")),
            charts.value_chart(history, run.facts.return_max),
        ),
        (
            "segment_error",
            "G predicts what a recorded window of k steps collects. How far it is from "
            "the recorded discounted returns, in units of reward: over training, and "
            "by the windows' length at its start and end.",
            _say(history, "The error of G", ("segment_error",)),
            charts.segment_error_chart(history),
        ),
        (
            "weights",
            "Weight of the recorded windows in the loss of the policy over sub-goals. "
            "All near one: it clones behaviour. A large maximum: few windows decide.",
            _say(history, "Weights", ("weight", "weight_max")),
            charts.weight_chart(history, getattr(run.config.agent, "max_weight", None)),
        ),
        (
            "horizons",
            "How many steps ahead the policy over sub-goals aims from the training "
            "states, beside the windows it learns from.",
            "Bars of how often each horizon is drawn, with the windows of the data as "
            "a line.",
            charts.horizon_chart(history),
        ),
    )
    return [
        Picture(name, caption, alt, to_svg(figure))
        for name, caption, alt, figure in drawn
        if figure is not None
    ]


def _say_success(source: Source) -> str:
    told = pool_by_step(select_largest(source.own))
    points = [f"{100 * score.rate:.0f} % at {step:,}" for step, score in told.items()]
    return f"Success rate by updates: {_ends(points)}."


def _say_returns(source: Source) -> str:
    chosen = select_largest(source.own)
    points = [
        f"{pool_returns([each for each in chosen if each.step == step]).mean:.4g} at "
        f"{step:,}"
        for step in sorted({each.step for each in chosen})
    ]
    return f"Mean return by updates: {_ends(points)}."


def _ends(points: Sequence[str]) -> str:
    """First and last of some points, in words."""
    return " to ".join(dict.fromkeys((points[0], points[-1]))) if points else "none"


def _names_of_losses(history: History) -> list[str]:
    return [
        name
        for name in history.names()
        if name.endswith("_loss") and not name.startswith(VALIDATION)
    ]


def _say(history: History, what: str, names: Sequence[str]) -> str:
    """Where figures start and end, as a sentence."""
    parts = []
    for name in names:
        if name in history.names():
            mean = np.ma.masked_invalid(history.scalar(name)).mean(axis=0).compressed()
            if len(mean):
                words = name.replace("_", " ")
                parts.append(f"{words} from {mean[0]:.3g} to {mean[-1]:.3g}")
    return f"{what} over training: {', '.join(parts) or 'nothing was logged'}."


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


def _subgoal_pictures(folder: epath.Path) -> list[Picture]:
    """What an inspection of sub-goals has left in the run's folder."""
    root = os.fspath(folder)
    report = files.read(root, subgoal_files.JSON_FILE).data
    if report is None:
        return []
    where = str(folder / subgoal_files.JSON_FILE)
    found = load_object(report, where=where, remedy=f"delete {folder} and repeat it")
    step, seed = found.get("step"), found.get("seed")
    if not isinstance(step, int) or not isinstance(seed, int):
        raise DataFormatError(
            f"{where}: expected step and seed, got {step!r:.80} and {seed!r:.80}; "
            f"delete {folder} and repeat it"
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
    """The first frame of an animation as PNG; None if it is none."""
    # Matplotlib, which draws the rest, brings it.
    from PIL import Image

    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(gif), formats=("GIF",)) as image:
            image.convert("RGB").save(buffer, "PNG")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # Others left it there; the browser will say what it is.
    return buffer.getvalue()
