"""The card of an exported policy: its data, its method, and how well it acts.

Everything on the card is read from the run; the card says what the run does not know.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pipeline.store.errors import DataFormatError
from trainer.config import encode
from trainer.report.markdown import escape, to_table
from trainer.runs.evaluations import Evaluation, read_evaluations
from trainer.runs.export import Exported
from trainer.runs.folder import RunFolder
from trainer.runs.returns import show_interval, show_score
from trainer.runs.run import Run
from trainer.runs.success_rates import Score

Format = Literal["safetensors", "stablehlo"]

_STABLEHLO = """\
The file needs JAX and nothing else; it runs on CPUs, NVIDIA's GPUs and TPUs:

```python
from pathlib import Path

import jax.export
import numpy as np

policy = jax.export.deserialize(Path({file!r}).read_bytes())
observations = np.zeros((1, {S}), np.float32)  # [B, {S}], of any B
seed, episode, step = np.uint32(0), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
actions = policy.call(observations, seed, episode, step)  # [B, {C}, {A}]
```

`episode` and `step` number each row's episode and the steps taken in it: with the seed
they fix the noise that is drawn, so equal arguments give equal actions. {chunk} Actions
are in the environment's units.
"""
_SAFETENSORS = """\
```python
from safetensors.numpy import load_file

arrays = load_file({file!r})  # Such as value.hidden_0.kernel, [inputs, outputs]
```

The file's metadata hold the run as JSON, which says what networks the arrays are of.
{inputs} {scale}
"""
# What networks see of observations, by `agent.state_scaling`; see `observation_scale`.
_INPUTS = {
    "none": "Networks see observations as they are.",
    "common": "Networks see observations divided by the root mean square of "
    "`facts.observation_std` in the metadata.",
    "standard": "Networks see observations less `facts.observation_mean` in the "
    "metadata, divided by `facts.observation_std`; components that vary by 1e-6 or "
    "less are not divided.",
}


def choose_card_path(file: Path) -> Path:
    """Chooses the file that the card of an exported file is written to.

    Args:
        file: The exported file.

    Returns:
        README.md beside the exported file, which model hubs show; if that exists, a
        file named after the exported one.

    Raises:
        DataFormatError: If both exist, since no file is overwritten.
    """
    for path in (file.parent / "README.md", file.with_name(f"{file.name}.md")):
        if not path.exists():
            return path
    raise DataFormatError(
        f"{path}: expected no file where the card of {file.name} is to be written, got "
        "one; give another --out"
    )


def make_card(folder: RunFolder, exported: Exported, file: str, format: Format) -> str:
    """Describes an exported policy.

    Args:
        folder: Folder of the run, whose evaluations of the checkpoint are listed.
        exported: Content of the exported file.
        file: Name of the exported file.
        format: Format of the exported file.

    Returns:
        Markdown, in which names that come from the run are escaped.

    Raises:
        DataFormatError: If the run's evaluations are damaged.
    """
    run, step, seeds = exported.run, exported.step, exported.seeds
    evaluations = [
        evaluation
        for evaluation in read_evaluations(folder)
        if evaluation.step == step and evaluation.seed in seeds
    ]
    # Names may come from anywhere: those outside of tables are escaped here.
    agent = run.config.agent.name
    title = f"{agent} on {run.dataset}, task {run.task.task} ({run.task.name})"
    return "\n\n".join(
        (
            # Metadata that model hubs read.
            "---\nlibrary_name: vast-rl\ntags:\n- offline-reinforcement-learning\n---",
            f"# {escape(title)}",
            f"A policy that was trained offline for {step:,} updates, in `{file}`.",
            f"## Data\n\n{_tabulate_data(run)}",
            f"## Method and updates\n\n{_tabulate_settings(run)}",
            f"{step:,} of {run.config.trainer.steps:,} updates were done. The file "
            f"holds training {'seed' if len(seeds) == 1 else 'seeds'} "
            f"{', '.join(map(str, seeds))}.",
            f"## Results\n\n{_tabulate_results(evaluations, run)}",
            f"## Use\n\n{_explain_use(run, file, format)}".rstrip(),
            f"## Versions\n\n{_tabulate_versions(run)}\n",
        )
    )


def _tabulate_data(run: Run) -> str:
    facts, scale = run.facts, run.action_scale
    # Networks act in [-1, 1]; a scale says what the data's actions were before.
    rows = [
        ("data set", run.dataset),
        ("task", f"{run.task.task} ({run.task.name})"),
        ("environment", run.task.environment_id),
        ("observations", f"{facts.observation_dim} numbers"),
        (
            "actions",
            f"{facts.action_dim} numbers, "
            + (
                "in [-1, 1]"
                if scale is None
                else f"from {list(scale.low)} to {list(scale.high)}"
            ),
        ),
        ("rewards", f"{facts.reward_min:g} to {facts.reward_max:g}"),
        ("largest discounted return in the data", f"{facts.return_max:.4g}"),
        ("fingerprint of the data", run.fingerprint),
    ]
    return to_table(("property", "value"), rows)


def _tabulate_settings(run: Run) -> str:
    trainer = run.config.trainer
    # Other settings of the trainer, such as how often it logs, change no update.
    shared = ("batch_size", "microbatches", "seed", "seeds")
    settings = encode(run.config)["agent"]
    rows = [
        *((f"agent.{name}", str(value)) for name, value in settings.items()),
        *((f"trainer.{name}", str(getattr(trainer, name))) for name in shared),
    ]
    return to_table(("setting", "value"), rows)


def _tabulate_results(evaluations: Sequence[Evaluation], run: Run) -> str:
    if not evaluations:
        return (
            "None: this checkpoint was not evaluated. `python -m trainer evaluate` "
            "evaluates it; an export after that lists the results here."
        )
    rows = []
    ordered = sorted(
        evaluations, key=lambda other: (other.task, other.seed, *other.conditions)
    )
    own = getattr(run.config.agent, "candidates", 1)
    # Every task has an environment of its own: only another environment of the run's
    # task needs a column.
    elsewhere = any(
        evaluation.task == run.task.task
        and evaluation.environment != run.task.environment_id
        for evaluation in evaluations
    )
    for evaluation in ordered:
        success = "not reported"
        if evaluation.successes is not None:
            success = str(Score.of(evaluation.successes))
        returns = evaluation.score
        rows.append(
            (
                f"{evaluation.task}",
                *((evaluation.environment,) if elsewhere else ()),
                f"{evaluation.seed}",
                f"{evaluation.candidates or own}",
                f"{evaluation.episodes}",
                success,
                f"{returns.mean:.2f}",
                show_interval(returns.interval, "n/a", digits=2),
                show_score(returns, "n/a"),
            )
        )
    headings = (
        *("task", *(("environment",) if elsewhere else ())),
        *("seed", "candidates", "episodes", "success"),
        *("return", "95 % interval", "normalised score"),
    )
    table = to_table(headings, rows)
    if all(evaluation.task == run.task.task for evaluation in evaluations):
        return table
    return (
        f"{table}\n\nThe policy was trained for task {run.task.task} and observes no "
        "goal: its successes in other tasks are accidents."
    )


def _explain_use(run: Run, file: str, format: Format) -> str:
    # A StableHLO file holds the policy itself; safetensors hold its arrays alone.
    if format == "stablehlo":
        chunk = run.agent().chunk
        return _STABLEHLO.format(
            file=file,
            S=run.facts.observation_dim,
            A=run.facts.action_dim,
            C=chunk,
            chunk="Each call returns the next action of each row."
            if chunk == 1
            else f"Each call returns the next {chunk} actions of each row, to be taken "
            "one after another.",
        )
    return _SAFETENSORS.format(
        file=file,
        inputs=_INPUTS[getattr(run.config.agent, "state_scaling", "none")],
        scale="Actions are in [-1, 1]."
        if run.action_scale is None
        else "The networks' actions are in [-1, 1]; scale them to the bounds above.",
    )


def _tabulate_versions(run: Run) -> str:
    # Runs of early versions did not record any.
    if not run.versions:
        return "Not recorded."
    return to_table(("package", "version"), sorted(run.versions.items()))
