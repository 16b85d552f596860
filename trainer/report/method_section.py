"""What a report says of methods beside each other: pictures, figures, and limits."""

from collections.abc import Sequence

import numpy as np

from pipeline.pages.drawing import to_svg
from pipeline.pages.elements import Picture, Table
from trainer.report import aggregates, comparison_charts, comparisons
from trainer.report.comparison_charts import THRESHOLDS, Bar
from trainer.report.comparisons import Float64
from trainer.report.methods import Place, Results
from trainer.report.page import Comparison

# Curves of more tasks are drawn run by run only.
_MAX_CURVES = 12
_MAIN = "vast"

Scores = dict[str, dict[Place, Float64]]


def compare(results: Sequence[Results]) -> Comparison | None:
    """Compares methods.

    Args:
        results: By method and task.

    Returns:
        What to show; None if there are no two methods with success rates.
    """
    scores = _scores(results)
    methods = list(scores)
    if len(methods) < 2:
        return None
    common = sorted(set.intersection(*({*of} for of in scores.values())))
    pictures = [*_curves(results, methods), _bars(scores, methods)]
    notes = _notes(results, scores, common)
    together = {name: [of[place] for place in common] for name, of in scores.items()}
    if common and all(map(comparisons.enough, together.values())):
        pictures += [
            _profiles(together, methods, len(common)),
            _improvements(together, len(common)),
        ]
    elif common:
        notes.append(
            "Performance profiles and probabilities of improvement are left out: they "
            f"take {comparisons.MIN_SEEDS} training seeds in each task and "
            f"{comparisons.MIN_SCORES} in all of each method."
        )
    return Comparison(pictures, _tables(results), notes)


def aggregate_table(results: Sequence[Results]) -> list[Table]:
    """Interquartile means over tasks, of each method; none if nothing is evaluated."""
    found = aggregates.aggregate(results)
    if not found:
        return []
    rows = [each.cells for each in found]
    return [Table("Over tasks", aggregates.HEADINGS, rows, aggregates.NOTES)]


def _tables(results: Sequence[Results]) -> list[Table]:
    """Which runs make a method, where that is more than one."""
    rows = [
        (each.method, *_place(each.place), ", ".join(each.runs))
        for each in results
        if len(each.runs) > 1
    ]
    if not rows:
        return []
    headings = ("method", "data set", "task", "runs pooled")
    return [Table("Runs pooled as seeds of one method", headings, rows, folded=True)]


def _scores(results: Sequence[Results]) -> Scores:
    """Last success rate of every training seed, by method and place."""
    scores: Scores = {}
    for each in results:
        rates = aggregates.last_rates(each.evaluations)
        if len(rates):
            scores.setdefault(each.method, {})[each.place] = rates
    return scores


def _curves(results: Sequence[Results], methods: Sequence[str]) -> list[Picture]:
    """Curves of every task in which there are two methods."""
    by_place: dict[Place, list[Results]] = {}
    for each in results:
        if each.method in methods and len(each.curve()[0]):
            by_place.setdefault(each.place, []).append(each)
    shared = {place: those for place, those in by_place.items() if len(those) > 1}
    if len(shared) > _MAX_CURVES:
        return []
    pictures = []
    for number, (place, those) in enumerate(shared.items(), 1):
        title = f"{place[0]} task {place[1]}"
        ends = [
            f"{each.method} {100 * np.nanmean(each.curve()[1][:, -1]):.0f} %"
            for each in those
        ]
        pictures.append(
            Picture(
                name=f"methods-{number}",
                caption=f"Success of each method in {title}; in brackets, its training "
                "seeds, which the band spans from the lowest to the highest.",
                alt=f"Success by updates in {title}; at the end: {', '.join(ends)}.",
                data=to_svg(comparison_charts.curves(title, those, methods)),
            )
        )
    return pictures


def _bars(scores: Scores, methods: Sequence[str]) -> Picture:
    groups: dict[str, list[Bar]] = {}
    for method, of in scores.items():
        for dataset in dict.fromkeys(place[0] for place in of):
            those = [rates for place, rates in of.items() if place[0] == dataset]
            interval = None
            if comparisons.enough(those):
                interval = aggregates.stratified_interval(those)
            iqm = aggregates.interquartile_mean(np.concatenate(those))
            groups.setdefault(dataset, []).append(Bar(method, iqm, interval))
    said = [
        f"{each.method} {100 * each.value:.0f} % in {dataset}"
        for dataset, group in groups.items()
        for each in group
    ]
    return Picture(
        name="datasets",
        caption="Interquartile mean of the last success rates: of all training seeds "
        "and tasks of a data set, the mean of the middle half. A line is a 95 % "
        "bootstrap interval over seeds, drawn where there are enough of them.",
        alt=f"Bars of success by data set: {', '.join(said)}.",
        data=to_svg(comparison_charts.bars(groups, methods)),
    )


def _profiles(
    together: dict[str, list[Float64]], methods: Sequence[str], tasks: int
) -> Picture:
    lines = {
        method: (
            comparisons.performance_profile(those, THRESHOLDS),
            comparisons.profile_band(those, THRESHOLDS),
        )
        for method, those in together.items()
    }
    half = [
        f"{method} {100 * np.mean(np.concatenate(those) > 0.5):.0f} %"
        for method, those in together.items()
    ]
    return Picture(
        name="profiles",
        caption="Share of single training runs above each success rate: the higher a "
        f"line, the better. Over {_tasks(tasks)}; bands are 95 % bootstrap intervals.",
        alt=f"Runs that solve more than half of their episodes: {', '.join(half)}.",
        data=to_svg(comparison_charts.profiles(lines, THRESHOLDS, methods)),
    )


def _improvements(together: dict[str, list[Float64]], tasks: int) -> Picture:
    ours = _MAIN if _MAIN in together else next(iter(together))
    others = [
        Bar(
            method,
            comparisons.probability_of_improvement(together[ours], those),
            comparisons.improvement_interval(together[ours], those),
        )
        for method, those in together.items()
        if method != ours
    ]
    said = [f"{each.method} {100 * each.value:.0f} %" for each in others]
    return Picture(
        name="improvement",
        caption=f"How probably one training run of {ours} beats one of another method "
        f"in a task drawn at random, of {_tasks(tasks)}; equal scores count half. "
        "Lines are 95 % bootstrap intervals; those that cross the middle decide "
        "nothing.",
        alt=f"Probability that {ours} is better than {', '.join(said)}.",
        data=to_svg(comparison_charts.improvements(ours, others)),
    )


def _notes(
    results: Sequence[Results], scores: Scores, common: Sequence[Place]
) -> list[str]:
    """What is unequal between the methods compared."""
    notes = []
    told = [each for each in results if each.method in scores]
    if any(len(of) != len(common) for of in scores.values()):
        counts = ", ".join(f"{name} in {len(of)}" for name, of in scores.items())
        notes.append(
            f"Methods were not run in the same tasks ({counts}; {len(common)} in "
            "common): means over a data set's tasks are not of one set of tasks."
        )
    for what, values in (
        ("updates", {each.updates for each in told}),
        ("episodes of each seed", {each.episodes for each in told}),
    ):
        if len(values) > 1:
            notes.append(
                f"Results are of unequal numbers of {what}: {min(values):,} to "
                f"{max(values):,}."
            )
    seeds = {len(rates) for of in scores.values() for rates in of.values()}
    if len(seeds) > 1:
        notes.append(
            f"Methods have {min(seeds)} to {max(seeds)} training seeds in a task; in "
            "means every seed counts the same."
        )
    return notes


def _place(place: Place) -> tuple[str, str]:
    return place[0], str(place[1])


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"the {count} tasks that all were run in"
