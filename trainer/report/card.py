"""The card of an exported policy: what it is, of which data, and how well it does.

Everything in it is read from the run; what is not known is said not to be.
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
{scale}
"""


def choose_place(file: Path) -> Path:
    """Where the card of an exported file is written: nothing is overwritten.

    Args:
        file: The exported file.

    Returns:
        README.md beside it; a file named after it if there is a README.md.

    Raises:
        DataFormatError: If both are there.
    """
    for place in (file.parent / "README.md", file.with_name(f"{file.name}.md")):
        if not place.exists():
            return place
    raise DataFormatError(
        f"{place}: exists, where the card of {file.name} would be; give another --out"
    )


def make_card(folder: RunFolder, exported: Exported, file: str, format: Format) -> str:
    """Describes an exported policy.

    Args:
        folder: RUN, whose evaluations of the checkpoint are listed.
        exported: What is in the file.
        file: Its name.
        format: Its format.

    Returns:
        Markdown; names that come from the run are escaped.

    Raises:
        DataFormatError: If the run's evaluations are damaged.
    """
    run, step, seeds = exported.run, exported.step, exported.seeds
    played = [
        each
        for each in read_evaluations(folder)
        if each.step == step and each.seed in seeds
    ]
    agent = run.config.agent.name
    title = f"{agent} on {run.dataset}, task {run.task.task} ({run.task.name})"
    return "\n\n".join(
        (
            "---\nlibrary_name: vast-rl\ntags:\n- offline-reinforcement-learning\n---",
            f"# {escape(title)}",
            f"A policy that was trained offline, of {step:,} updates, in `{file}`.",
            f"## Data\n\n{to_table(('what', 'value'), _data(run))}",
            f"## Method and updates\n\n{to_table(('setting', 'value'), _method(run))}",
            f"{step:,} of {run.config.trainer.steps:,} updates were done. In the file "
            f"{'is seed' if len(seeds) == 1 else 'are seeds'} "
            f"{', '.join(map(str, seeds))} of training.",
            f"## Results\n\n{_results(played, run)}",
            f"## Use\n\n{_usage(run, file, format)}".rstrip(),
            f"## Versions\n\n{_versions(run)}\n",
        )
    )


def _data(run: Run) -> list[tuple[str, str]]:
    facts, scale = run.facts, run.action_scale
    return [
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
        ("fingerprint of what was read", run.fingerprint),
    ]


def _method(run: Run) -> list[tuple[str, str]]:
    trainer = run.config.trainer
    shared = ("batch_size", "microbatches", "seed", "seeds")
    settings = encode(run.config)["agent"]
    return [
        *((f"agent.{name}", str(value)) for name, value in settings.items()),
        *((f"trainer.{name}", str(getattr(trainer, name))) for name in shared),
    ]


def _results(played: Sequence[Evaluation], run: Run) -> str:
    if not played:
        return (
            "None: this checkpoint has not been evaluated. `python -m trainer "
            "evaluate` plays it, and an export after that lists what came."
        )
    rows = []
    for each in sorted(played, key=lambda one: (one.task, one.seed)):
        success = "not reported"
        if each.successes is not None:
            success = str(Score.of(each.successes))
        returns = each.score
        rows.append(
            (
                f"{each.task}",
                f"{each.seed}",
                f"{each.episodes}",
                success,
                f"{returns.mean:.2f}",
                show_interval(returns.interval, "n/a", digits=2),
                show_score(returns, "n/a"),
            )
        )
    headings = ("task", "seed", "episodes", "success", "return", "95 % interval")
    table = to_table((*headings, "normalised score"), rows)
    if all(each.task == run.task.task for each in played):
        return table
    return (
        f"{table}\n\nThe policy was trained for task {run.task.task} and is shown no "
        "goal: its successes in other tasks are accidents."
    )


def _usage(run: Run, file: str, format: Format) -> str:
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
        scale="Actions are in [-1, 1]."
        if run.action_scale is None
        else "The networks' actions are in [-1, 1], which stand for the bounds above.",
    )


def _versions(run: Run) -> str:
    if not run.versions:
        return "Not recorded."
    return to_table(("package", "version"), sorted(run.versions.items()))
