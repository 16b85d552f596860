"""What a report says of methods beside each other: pictures, figures, and limits."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.pages.drawing import to_svg
from pipeline.pages.elements import Picture, Table
from trainer.report import aggregates, comparison_charts, comparisons
from trainer.report.aggregates import Rates, last_rates
from trainer.report.comparison_charts import THRESHOLDS, Bar
from trainer.report.comparisons import Float64
from trainer.report.methods import Place, Results
from trainer.report.page import Comparison

# A page of more pictures than these is scrolled, not read; every run has a curve of its
# own further down.
_MAX_CURVES = 12
# While a sweep is running, many of its methods are uneven: a few of them are examples.
_MAX_UNEQUAL = 4
_MAIN = "vast"


def compare(results: Sequence[Results]) -> Comparison | None:
    """Compares methods.

    Args:
        results: Results of each method in each task.

    Returns:
        What the page shows; None if fewer than two methods have success rates.
    """
    scores = aggregates.list_rates(results)
    methods = list(scores)
    if len(methods) < 2:
        return None
    common = aggregates.find_common_places(scores)
    pictures = [*_draw_curves(results, methods), _draw_bars(scores)]
    notes = _list_differences(results, scores, common)
    # In equal tasks only: a method that was spared the hard tasks would win.
    shared = {
        method: [rates[place] for place in common] for method, rates in scores.items()
    }
    if common and all(map(comparisons.enough, shared.values())):
        pictures += [_draw_profiles(shared), _draw_improvements(shared)]
    elif common:
        notes.append(
            "There are no performance profiles and no probabilities of improvement: "
            f"both take {comparisons.MIN_SEEDS} training seeds of each method in each "
            f"task, and {comparisons.MIN_SCORES} in all tasks together."
        )
    return Comparison(pictures, _list_pooled_runs(results), notes)


def tabulate_aggregates(results: Sequence[Results]) -> list[Table]:
    """Tabulates interquartile means over tasks; no table if nothing was evaluated."""
    rows = [figures.cells for figures in aggregates.aggregate(results)]
    if not rows:
        return []
    notes = [*aggregates.NOTES]
    # Two methods are compared further down, where notes say what is unequal.
    if len(aggregates.list_rates(results)) < 2:
        notes += _list_unequal_ends(results)
    return [Table("Over tasks", aggregates.HEADINGS, rows, notes)]


def _list_pooled_runs(results: Sequence[Results]) -> list[Table]:
    """Tabulates which runs make a method, where several runs do."""
    rows = [
        (result.method, result.place[0], str(result.place[1]), ", ".join(result.runs))
        for result in results
        if len(result.runs) > 1
    ]
    if not rows:
        return []
    headings = ("method", "data set", "task", "runs pooled")
    return [Table("Runs pooled as seeds of one method", headings, rows, folded=True)]


def _draw_curves(results: Sequence[Results], methods: Sequence[str]) -> list[Picture]:
    """Draws curves for every task in which at least two methods were evaluated."""
    by_place: dict[Place, list[Results]] = {}
    for result in results:
        if result.method in methods and len(result.curve()[0]):
            by_place.setdefault(result.place, []).append(result)
    compared = {place: group for place, group in by_place.items() if len(group) > 1}
    if len(compared) > _MAX_CURVES:
        return []
    pictures = []
    for number, (place, group) in enumerate(compared.items(), 1):
        title = f"{place[0]} task {place[1]}"
        ends = [
            f"{result.method} {100 * last_rates(result.evaluations).mean():.0f} %"
            for result in group
        ]
        pictures.append(
            Picture(
                name=f"methods-{number}",
                caption=f"Success of each method in {title}, the mean of training "
                "seeds. The legend gives their number in brackets; checkpoints of "
                "fewer seeds are left out. A band, or a line at a single checkpoint, "
                "spans the seeds from the lowest to the highest. Markers of equal "
                "rates lie within each other.",
                alt=f"Success by updates in {title}; at the last checkpoint of each "
                f"training seed: {', '.join(ends)}.",
                data=to_svg(comparison_charts.draw_curves(title, group, methods)),
            )
        )
    return pictures


def _draw_bars(scores: Rates) -> Picture:
    groups: dict[str, list[Bar]] = {}
    for method, by_place in scores.items():
        for dataset in dict.fromkeys(place[0] for place in by_place):
            rates = [rates for place, rates in by_place.items() if place[0] == dataset]
            interval = None
            if comparisons.enough(rates):
                interval = aggregates.stratified_interval(rates)
            iqm = aggregates.interquartile_mean(np.concatenate(rates))
            groups.setdefault(dataset, []).append(Bar(method, iqm, interval))
    shares = [
        f"{bar.method} {100 * bar.share:.0f} % in {dataset}"
        for dataset, group in groups.items()
        for bar in group
    ]
    return Picture(
        name="datasets",
        caption="Interquartile mean of the last success rates: the mean of the middle "
        "half of all training seeds and tasks of a data set. Thin lines are 95 % "
        "bootstrap intervals over seeds, drawn where there are enough seeds.",
        alt=f"Bars of success by data set: {', '.join(shares)}.",
        data=to_svg(comparison_charts.draw_bars(groups, list(scores))),
    )


def _draw_profiles(shared: Mapping[str, Sequence[Float64]]) -> Picture:
    profiles = {
        method: (
            comparisons.performance_profile(rates, THRESHOLDS),
            comparisons.profile_band(rates, THRESHOLDS),
        )
        for method, rates in shared.items()
    }
    # A curve cannot be read aloud: its value in the middle stands for it.
    half = [
        f"{method} {100 * np.mean(np.concatenate(rates) > 0.5):.0f} %"
        for method, rates in shared.items()
    ]
    return Picture(
        name="profiles",
        caption="Share of single training runs above each success rate, over "
        f"{_name_tasks(shared)}: the higher a line, the better. Bands are 95 % "
        "bootstrap intervals.",
        alt=f"Runs that solve more than half of their episodes: {', '.join(half)}.",
        data=to_svg(comparison_charts.draw_profiles(profiles, list(shared))),
    )


def _draw_improvements(shared: Mapping[str, Sequence[Float64]]) -> Picture:
    # A picture of all pairs would grow with their square: one method is compared.
    ours = _MAIN if _MAIN in shared else next(iter(shared))
    others = [
        Bar(
            method,
            comparisons.probability_of_improvement(shared[ours], rates),
            comparisons.improvement_interval(shared[ours], rates),
        )
        for method, rates in shared.items()
        if method != ours
    ]
    shares = [f"{bar.method} {100 * bar.share:.0f} %" for bar in others]
    return Picture(
        name="improvement",
        caption=f"How probably one training run of {ours} beats a run of another "
        f"method, in a task drawn at random from {_name_tasks(shared)}; equal rates "
        "count half. Lines are 95 % bootstrap intervals; an interval that crosses "
        "50 % decides nothing.",
        alt=f"Probability that {ours} is better than {', '.join(shares)}.",
        data=to_svg(comparison_charts.draw_improvements(ours, others)),
    )


def _list_differences(
    results: Sequence[Results], scores: Rates, common: Sequence[Place]
) -> list[str]:
    """Lists the differences between the runs of the compared methods, in sentences."""
    notes = []
    compared = [result for result in results if result.method in scores]
    if any(len(rates) != len(common) for rates in scores.values()):
        counts = ", ".join(f"{name} in {len(rates)}" for name, rates in scores.items())
        notes.append(
            f"Methods were not run in the same tasks ({counts}; {len(common)} in "
            "common): means of a data set are over different tasks."
        )
    for noun, numbers in (
        ("updates", {result.updates for result in compared}),
        ("episodes of each seed", {result.episodes for result in compared}),
    ):
        if len(numbers) > 1:
            notes.append(
                f"Results are of unequal numbers of {noun}: {min(numbers):,} to "
                f"{max(numbers):,}."
            )
    notes += _list_unequal_ends(results)
    # Unequal numbers weight the tasks of a mean unequally.
    seeds = {len(rates) for by_place in scores.values() for rates in by_place.values()}
    if len(seeds) > 1:
        notes.append(
            f"Methods have {min(seeds)} to {max(seeds)} training seeds in a task; in "
            "means every seed counts the same."
        )
    return notes


def _list_unequal_ends(results: Sequence[Results]) -> list[str]:
    """Names methods whose seeds were last evaluated at different steps, if any."""
    unequal = []
    for result in results:
        seeds: dict[int, list[str]] = {}
        for seed, step in result.last_steps.items():
            seeds.setdefault(step, []).append(str(seed))
        if len(seeds) > 1:
            # The seeds are named, because readers look for what held them up.
            steps = " and ".join(
                f"{step:,} (seed{'s' if len(seeds[step]) > 1 else ''} "
                f"{', '.join(seeds[step])})"
                for step in sorted(seeds)
            )
            dataset, task = result.place
            unequal.append(f"{result.method} in {dataset} task {task} at {steps}")
    if not unequal:
        return []
    listed = unequal[:_MAX_UNEQUAL]
    if len(unequal) > len(listed):
        listed.append(f"and {len(unequal) - len(listed)} more")
    return [
        "Training seeds of a method were last evaluated at different steps, and each "
        f"counts with its own: {'; '.join(listed)}."
    ]


def _name_tasks(shared: Mapping[str, Sequence[Float64]]) -> str:
    count = len(next(iter(shared.values())))
    return "1 task" if count == 1 else f"the {count} tasks that all methods were run in"
