"""What VAST's open points change: ``python -m tests.benchmarks.open_points grid``.

The paper leaves some choices open; each is an option of ``VASTConfig``, or of
``Reading`` below. Every variant gives one option another value than the base, on a task
that two cores can afford: the 4x4 grid (``grid``), or a store in whose environment
successes are counted (``store STORE``). All seeds of a variant train side by side in
one program.

A mark says that a variant's mean over seeds differs from the base's by an exact
permutation test over seeds: ``*`` at 5 %, ``**`` at 5 % shared among all variants of
the table, though not among its columns. With few seeds neither mark is possible,
because p is at least 2 divided by the number of ways to divide the seeds in two groups.

A finished variant is appended to ``--out`` at once, and is not run again.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.reader import Store
from trainer.agents.base import Metrics
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.config import Config
from trainer.data.horizon_windows import EndingHorizonSampler, HorizonBatch
from trainer.data.sampling import Array
from trainer.data.table import RowTable, load_table
from trainer.evaluation.rollouts import AgentActor, RolloutPool
from trainer.nn import optimizers
from trainer.nn.networks import Params
from trainer.runs.run import describe_run
from trainer.runs.success_rates import Score
from trainer.toy import grid, neural, recording
from trainer.toy.tabular import fixed_point, one_step
from trainer.toy.training import train

OPTIONS: dict[str, tuple[Any, ...]] = {
    "goal_rule": ("uniform", "geometric", "horizon"),
    "composed_gradient": (True, False),
    "aggregation": ("min", "mean"),
    "advantage_return": ("model", "data"),
    "state_scaling": ("none", "common", "standard"),
    "success": ("ends", "mixed"),
    "value_windows": ("drawn", "recorded"),
}
READINGS: dict[str, tuple[Any, ...]] = {
    "clip": ("global", "network"),
    "flow_loss": ("sum", "mean"),
}
BASE = "base"
WINDOWS = 4_096  # Windows to measure on.
EVALUATION_SEED = 0
CALL = 250  # Updates of one call of trainer.toy.training.

Variant = dict[str, Any]  # Options that differ from the base.
Figures = dict[str, float]  # Measurements of one seed.
Progressed = Callable[[int], None]


@dataclass(frozen=True)
class Reading(VAST):
    """VAST with readings of the paper that are no options of ``VASTConfig``.

    Attributes:
        clip: Whether the norm of all gradients is clipped, or that of each network.
        flow_loss: Whether errors of flows are summed over components or averaged.
    """

    clip: Literal["global", "network"] = "global"
    flow_loss: Literal["sum", "mean"] = "sum"

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        c = self.config
        if self.clip == "global":
            return optimizers.adam(c.learning_rate, clip_norm=c.clip_norm)
        # Optax's own clip computes the norm of the gradients that it is given; ours
        # would be given the norm of all.
        one = optax.chain(
            optax.clip_by_global_norm(c.clip_norm), optax.adam(c.learning_rate)
        )
        networks = ("value", "critic", "segment", "stitch", "exec")
        return optax.partition(
            dict.fromkeys(networks, one), {name: name for name in networks}
        )

    def stitch_loss(
        self, params: Params, batch: HorizonBatch, advantage: Array, key: Array
    ) -> tuple[jax.Array, jax.Array]:
        loss, weights = super().stitch_loss(params, batch, advantage, key)
        parts = 1 + self.facts.observation_dim
        return loss / (parts if self.flow_loss == "mean" else 1), weights

    def exec_loss(self, params: Params, batch: HorizonBatch, key: Array) -> jax.Array:
        loss = super().exec_loss(params, batch, key)
        return loss / (self.facts.action_dim if self.flow_loss == "mean" else 1)


# Function that trains and measures a variant, and returns figures of each seed.
Cell = Callable[[VASTConfig, Variant, Progressed], list[Figures]]


def variants(base: VASTConfig, options: Sequence[str]) -> dict[str, Variant]:
    """Lists the base, then every other value of every option, by name."""
    known = OPTIONS | READINGS
    return {BASE: {}} | {
        f"{name} = {str(value).lower()}": {name: value}
        for name in options
        for value in known[name]
        if value != getattr(base if name in OPTIONS else Reading, name)
    }


def windows(config: VASTConfig, table: RowTable) -> HorizonBatch:
    """Draws the same windows for all variants.

    They end at success, as those of both readings of ``success`` can. Windows of one
    step are among them, and goals lie within K rows, as sub-goals of the stitching
    policy do.
    """
    sampler = EndingHorizonSampler(
        max_horizon=config.max_horizon,
        discount=config.discount,
        min_horizon=1,
        goal_shares=(0, 1, 0),
        goal_rule="horizon",
    )
    uniform = np.random.default_rng(0).random((sampler.numbers, WINDOWS))
    index = sampler.draw(table, uniform)
    batch: HorizonBatch = sampler.gather(table.observations, table.actions, index)
    return batch


@partial(jax.jit, static_argnums=0)
def look(agent: VAST, params: Params, targets: Params, batch: HorizonBatch) -> Metrics:
    return agent.total_loss(params, targets, batch, jax.random.key(0))[1]


@partial(jax.jit, static_argnums=0)
def draw_subgoals(
    agent: VAST, params: Params, observations: Array, key: jax.Array
) -> jax.Array:
    keys = jax.random.split(key, len(observations))
    return jax.vmap(agent.predict_subgoal, in_axes=(None, 0, 0))(
        params, observations, keys
    )[1]


def estimates(agent: VAST, params: Params, batch: HorizonBatch) -> Figures:
    """Measures the estimates of one seed's networks, with critics as their targets.

    The error of G is the mean distance from the recorded return of the window; ``exec
    loss`` is the flow matching error of recorded actions.
    """
    targets = {"critic": params["critic"]}
    found = look(agent, params, targets, batch)
    counts = np.maximum(found.total["windows_by_horizon"], 1)
    by_horizon = np.asarray(found.total["segment_error_by_horizon"] / counts)
    K = agent.config.max_horizon
    return {
        "G error": float(found.mean["segment_error"]),
        "G error, k = 1": float(by_horizon[1]),
        f"G error, k = {K}": float(by_horizon[K]),
        "V": float(found.mean["value"]),
        "V too high": float(found.mean["over_estimation"]),
        "weight": float(found.mean["weight"]),
        "exec loss": float(found.mean["exec_loss"]),
    }


def subgoal_score(agent: VAST, params: Params, batch: HorizonBatch) -> float:
    """Scores how well drawn sub-goals fit recorded states; lower is better.

    The score is the CRPS in standard deviations, ``E|X - y| - E|X - X'| / 2`` for each
    component, with two draws for each window. In expectation it is smallest if draws
    are distributed like the data, which the weights change a little. The result is the
    median over components, because some hardly ever change, and then a small error is
    many deviations.

    Source: Gneiting & Raftery (2007), Strictly Proper Scoring Rules, Prediction, and
    Estimation, eq. 21.
    """
    std = np.asarray(agent.facts.observation_std, np.float32)

    one, other = (
        np.asarray(draw_subgoals(agent, params, batch.observations, jax.random.key(n)))
        for n in (0, 1)
    )
    to_data = (np.abs(one - batch.states_k) + np.abs(other - batch.states_k)) / 2
    score = (to_data - np.abs(one - other) / 2).mean(axis=0)
    return float(np.median(score[std > 1e-6] / std[std > 1e-6]))


def grid_cell(seeds: tuple[int, ...]) -> Cell:
    """Makes the function that measures variants on the 4x4 grid."""
    table = grid.make_table(
        neural.DISCOUNT, recordings=neural.RECORDINGS, noise=neural.NOISE
    )
    facts = recording.compute_facts(table)
    data = grid.make_episodes(neural.DISCOUNT)
    optimum = fixed_point(one_step(data), data.state_count)
    cells = [(x, y) for x in range(grid.SIZE) for y in range(grid.SIZE)]
    observations = jnp.asarray(grid.observe(cells))
    keys = jax.random.split(jax.random.key(0), 64)

    def follow(agent: VAST, params: Params) -> Figures:
        """Follows the moves of most of 64 draws, and compares V with the optimum."""

        @jax.jit
        def act(params: Params) -> jax.Array:
            def votes(observation: jax.Array) -> jax.Array:
                return jax.vmap(lambda key: agent.act(params, observation, key)[0])(
                    keys
                )

            return jax.vmap(votes)(observations)

        moves = grid.decode_actions(act(params)).mean(axis=1) > 0.5
        likeliest = dict(zip(cells, moves.astype(int).tolist(), strict=True))
        path = grid.roll_out(lambda cell: (likeliest[cell],))
        values = agent.value(params, jnp.asarray(grid.observe(grid.SPLICED_PATH)))
        errors = np.abs(
            np.asarray(values) - optimum[[*map(grid.state_index, grid.SPLICED_PATH)]]
        )
        return {
            "spliced": float(path == grid.SPLICED_PATH),
            "V error, largest": float(errors.max()),
            "V error, mean": float(errors.mean()),
        }

    def run(
        config: VASTConfig, reading: Variant, progress: Progressed
    ) -> list[Figures]:
        configs = [
            (dataclasses.replace(config, learning_rate=rate), updates)
            for updates, rate in neural.PHASES
        ]
        phased = [
            (Reading(phase, facts, **reading), updates) for phase, updates in configs
        ]
        trained = train(
            phased,
            table,
            seeds,
            batch_size=neural.BATCH_SIZE,
            progress=progress,
        )
        agent, _ = phased[-1]
        batch = windows(config, table)
        return [
            follow(agent, params) | estimates(agent, params, batch)
            for params in trained
        ]

    return run


def store_cell(given: argparse.Namespace, base: VASTConfig) -> Cell:
    """Makes the function that measures variants on a store.

    It measures success in the store's environment, and estimates on held-out rows, or
    on the rows trained on without ``--held-out``.
    """
    store = Store(given.store)
    load = partial(load_table, task=given.task, discount=base.discount)
    table = load(store)
    held_out = load(Store(given.held_out)) if given.held_out else table
    config = Config(dataset=store.manifest.dataset, agent=base)
    described = describe_run(config, store, given.task, fingerprint=table.fingerprint)
    task = described.task
    seeds = tuple(range(given.seeds))

    def run(
        config: VASTConfig, reading: Variant, progress: Progressed
    ) -> list[Figures]:
        agent = Reading(config, described.facts, **reading)
        trained = train(
            [(agent, given.updates)],
            table,
            seeds,
            batch_size=given.batch_size,
            progress=progress,
        )
        batch = windows(config, held_out)
        found = [
            estimates(agent, params, batch)
            | {"sub-goal score": subgoal_score(agent, params, batch)}
            for params in trained
        ]
        if not given.episodes:
            return found
        actor = AgentActor(agent)
        spec = TaskEnvironment(task.environment_id, task.environment_kwargs)
        with RolloutPool(spec, environments=given.episodes, workers=2) as pool:
            for figures, params in zip(found, trained, strict=True):
                played = pool.roll_out(
                    actor.make_policy(params, EVALUATION_SEED),
                    episodes=given.episodes,
                    seed=EVALUATION_SEED,
                )
                figures["success"] = statistics.fmean(one.success for one in played)
                figures["steps"] = statistics.fmean(one.length for one in played)
        return found

    return run


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Computes the two-sided p of a difference of means over all permutations."""
    values = np.array([*first, *second])
    deals = np.array(
        [*itertools.combinations(range(len(values)), len(first))], np.int64
    )
    sums = values[deals].sum(axis=1)
    differences = np.abs(
        sums / len(first) - (values.sum() - sums) / max(len(second), 1)
    )
    seen = abs(statistics.fmean(first) - statistics.fmean(second))
    return float((differences >= seen - 1e-9).mean())


def mark(figures: list[float], base: list[float], *, compared: int) -> str:
    """Marks a variant that differs significantly from the base."""
    p = permutation_p(figures, base)
    return " **" if p < 0.05 / compared else " *" if p < 0.05 else ""


def report(cells: dict[str, list[Figures]], title: str, *, episodes: int) -> Table:
    """Makes a table of mean and deviation over seeds, with a row for each variant."""
    base = cells[BASE]
    names = list(base[0])
    table = Table("variant", *names, title=title)
    for variant, found in cells.items():
        row = [variant]
        for name in names:
            values = [figures[name] for figures in found]
            reference = [figures[name] for figures in base]
            text = f"{statistics.fmean(values):.3g}"
            if len(values) > 1:
                text += f" ± {statistics.stdev(values):.2g}"
            if name == "success":
                pooled = Score(round(sum(values) * episodes), len(values) * episodes)
                low, high = (100 * end for end in pooled.interval)
                text += f" ({low:.0f} to {high:.0f} %)"
            if variant != BASE:
                text += mark(values, reference, compared=len(cells) - 1)
            row.append(text)
        table.add_row(*row)
    return table


def read_cells(path: Path, settings: Any) -> dict[str, list[Figures]]:
    """Reads the finished variants of the same settings."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {
        line["variant"]: line["figures"]
        for line in lines
        if line["settings"] == settings
    }


def run_all(
    cell: Cell,
    base: VASTConfig,
    chosen: dict[str, Variant],
    settings: Any,
    *,
    updates: int,
    out: Path,
    console: Console,
) -> dict[str, list[Figures]]:
    """Runs the variants that are not finished, and returns all in order."""
    done = read_cells(out, settings)
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        whole = bar.add_task("variants", total=len(chosen))
        for name, variant in chosen.items():
            if name not in done:
                task = bar.add_task(name, total=updates)
                started = time.perf_counter()
                options = {k: v for k, v in variant.items() if k in OPTIONS}
                reading = {k: v for k, v in variant.items() if k in READINGS}
                done[name] = cell(
                    dataclasses.replace(base, **options),
                    reading,
                    partial(bar.advance, task),
                )
                bar.remove_task(task)
                seconds = time.perf_counter() - started
                console.print(f"{name}: {seconds:.0f} s", highlight=False)
                line = {
                    "settings": settings,
                    "variant": name,
                    "seconds": seconds,
                    "figures": done[name],
                }
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            bar.advance(whole)
    return {name: done[name] for name in chosen}


def parse() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, default=Path("open_points.jsonl"))
    common.add_argument(
        "--json", action="store_true", help="print figures instead of a table"
    )
    common.add_argument("--seeds", type=int, default=8)
    known = OPTIONS | READINGS
    common.add_argument("--options", nargs="*", default=[*known], choices=known)
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_subparsers(dest="where", required=True)
    where.add_parser("grid", parents=[common])
    store = where.add_parser("store", parents=[common])
    store.add_argument("store", help="path of the store")
    store.add_argument("--held-out", help="store of the rows to measure on")
    store.add_argument("--task", type=int, default=1)
    store.add_argument("--updates", type=int, default=4_000)
    store.add_argument("--batch-size", type=int, default=128)
    store.add_argument("--episodes", type=int, default=25, help="episodes of each seed")
    store.add_argument(
        "--agent",
        type=json.loads,
        default={},
        help="settings of the base as JSON, such as '{\"width\": 64}'",
    )
    given = parser.parse_args()
    if given.where == "store" and given.updates % CALL:
        parser.error(f"--updates: expected a multiple of {CALL}, got {given.updates}")
    return given


def main() -> None:
    """Trains, measures and prints."""
    given = parse()
    console = Console(stderr=given.json)
    console.width = max(console.width, 200)
    if given.where == "grid":
        base, updates = neural.CONFIG, sum(updates for updates, _ in neural.PHASES)
        cell = grid_cell(tuple(range(given.seeds)))
        title = "4x4 grid"
    else:
        base, updates = VASTConfig(**given.agent), given.updates
        cell = store_cell(given, base)
        title = f"{Store(given.store).manifest.dataset}, task {given.task}"
    unsaid = ("out", "json", "options", "agent")
    settings = {k: v for k, v in vars(given).items() if k not in unsaid}
    settings |= {"updates": updates, "base": dataclasses.asdict(base)}
    cells = run_all(
        cell,
        base,
        variants(base, given.options),
        settings,
        updates=updates,
        out=given.out,
        console=console,
    )
    if given.json:
        print(json.dumps({"settings": settings, "variants": cells}))  # noqa: T201
        return
    title += (
        f": mean ± deviation over {given.seeds} seeds, {updates:,} updates, "
        f"{jax.devices()[0].device_kind} ({os.cpu_count()} cores)"
    )
    episodes = getattr(given, "episodes", 0)
    console.print(report(cells, title, episodes=episodes))


if __name__ == "__main__":
    main()
