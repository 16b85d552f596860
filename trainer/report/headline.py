"""Sentences that open a report: what was reached, against what, with which caveat."""

from collections.abc import Sequence

from pipeline.store.units import format_count
from trainer.report.aggregates import (
    Aggregate,
    aggregate,
    find_common_places,
    list_rates,
)
from trainer.report.methods import Place, Results
from trainer.report.paper import PAPER_SEEDS, PAPER_STEPS
from trainer.report.result_table import ResultRow
from trainer.report.sources import Source

# A reader skims this many sentences; results of more tasks are read from the table.
_MAX_PLACES = 6
# Success rates of the same settings differ by tens of points between training seeds,
# so that one or two of them say little about the method.
_FEW_SEEDS = 3


def describe_run(source: Source) -> str:
    """Says in a sentence what one run reached.

    Args:
        source: The run.

    Returns:
        Success at the last checkpoint evaluated, beside the paper's number; the return
        where the environment reports no success.
    """
    row = source.rows[0]  # The last checkpoint, in the task that it is trained for.
    place = f"{row.dataset} task {row.task}"
    agent, method = row.agent.upper(), source.evaluated.method
    # A sweep's variant of an agent, such as its cloning, is not what the paper ran.
    if method != row.agent:
        agent += f" ({method})"
    if row.summary is None:
        return f"{agent} was not evaluated yet in {place}."
    if conditions := source.evaluated.conditions:
        place += f" ({conditions})"
    summary = row.summary
    seeds = format_count(len(summary.seeds), "training seed")
    all_seeds = source.run.config.trainer.seeds
    if len(summary.seeds) < all_seeds:
        seeds = f"{len(summary.seeds)} of {format_count(all_seeds, 'training seed')}"
    after = f"after {summary.steps[-1]:,} updates"
    if summary.score is None:
        return (
            f"{agent} collects a mean return of {summary.returns.mean:.4g} "
            f"in {place} {after}, over {summary.returns.episodes} episodes, {seeds}; "
            "the environment reports no success."
        )
    score = summary.score
    return (
        f"{agent} solves {place} in {score.successes} of {score.episodes} "
        f"episodes ({100 * score.rate:.0f} %) {after}, over {seeds}; "
        f"{_compare_with_paper(row)}."
    )


def write_lead(sources: Sequence[Source], results: Sequence[Results]) -> str:
    """Writes the first sentence of a report.

    Args:
        sources: Runs of the report, at least one.
        results: Results of each method in each task.

    Returns:
        What one run reached; for several runs what was compared, how many of them
        solve their task, and which method is ahead.
    """
    if len(sources) == 1:
        return describe_run(sources[0])
    evaluated = [source for source in sources if source.own]
    if not evaluated:
        return f"None of these {len(sources)} runs was evaluated yet."
    summaries = [source.rows[0].summary for source in evaluated]
    updates = {summary.steps[-1] for summary in summaries if summary is not None}
    methods = {result.method for result in results}
    places = {result.place for result in results}
    text = (
        f"{format_count(len(evaluated), 'run')} of "
        f"{format_count(len(methods), 'method')} in "
        f"{format_count(len(places), 'task')}, "
        f"after {_range(updates)} updates: "
        f"{_say_solved(evaluated)}"
    )
    # Readers must not take the runs that were counted for all there are.
    missing = len(sources) - len(evaluated)
    if missing:
        text += f"; {format_count(missing, 'more run')} not evaluated yet"
    return f"{text}{_rank(results)}."


def describe_places(sources: Sequence[Source]) -> list[str]:
    """Writes a sentence on the best run of each task.

    Args:
        sources: Runs of the report.

    Returns:
        A sentence for each task that was evaluated; none if the report has one run
        only, or too many tasks.
    """
    by_place: dict[Place, list[Source]] = {}
    for source in sources:
        if source.own:
            place = (source.run.dataset, source.run.task.task)
            by_place.setdefault(place, []).append(source)
    if len(sources) == 1 or len(by_place) > _MAX_PLACES:
        return []
    return [_describe_best(rivals) for rivals in by_place.values()]


def _describe_best(rivals: Sequence[Source]) -> str:
    """The best of some runs of one task, and which others reached as much."""
    top = max(map(_measure, rivals))
    best, *level = [source for source in rivals if _measure(source) == top]
    if not level:
        prefix = f"Best of {len(rivals)} runs: " if len(rivals) > 1 else ""
        return prefix + describe_run(best)
    row = best.rows[0]
    if row.summary is not None and row.summary.score is not None and top == 0:
        return (
            f"None of {len(rivals)} runs solves {row.dataset} task {row.task} in any "
            f"episode; {_compare_with_paper(row)}."
        )
    if len(level) == len(rivals) - 1:
        return f"{_all(len(rivals)).capitalize()} runs are level: {describe_run(best)}"
    names = _join([source.name for source in level])
    return f"Best of {len(rivals)} runs, level with {names}: {describe_run(best)}"


def _say_solved(evaluated: Sequence[Source]) -> str:
    """How many runs solve their tasks, as a clause."""
    last = [(source.rows[0].summary, source.run) for source in evaluated]
    # The last success rate of each run, and whether some of its seeds were left out.
    scores = [
        (summary.score.rate, len(summary.seeds) < run.config.trainer.seeds)
        for summary, run in last
        if summary is not None and summary.score is not None
    ]
    rates = [rate for rate, _ in scores]
    if not rates:
        return "the environments report no success, so that only returns compare"
    if max(rates) == 0:
        return "no episode was solved"
    solved = rates.count(1)
    if not solved:
        return "none of the runs solves every episode"
    so_far = " so far" if (1, True) in scores else ""
    if solved == len(evaluated):
        return f"every run solves every episode{so_far}"
    verb = "solves" if solved == 1 else "solve"
    return f"{solved} of the runs {verb} every episode{so_far}"


def _rank(results: Sequence[Results]) -> str:
    """Which method is ahead, as a clause; empty if nothing can be ranked."""
    rates = list_rates(results)
    if not any(seeds.any() for places in rates.values() for seeds in places.values()):
        return ""
    common = find_common_places(rates)
    if not common:
        return "; no task was run with all methods, so that none is ahead"
    # Only tasks of all methods compare: means over different tasks would mislead.
    shared = [result for result in results if result.place in common]
    ranked = sorted(
        (figure for figure in aggregate(shared) if figure.measure == "success"),
        key=lambda figure: -figure.iqm,
    )
    if not any(figure.mean for figure in ranked):
        return ""
    text = "; "
    if any(len(places) > len(common) for places in rates.values()):
        of_all = "task" if len(common) == 1 else f"{len(common)} tasks"
        text = f"; in the {of_all} that all methods were run in, "
    # Methods whose rounded figures are equal share a rank: readers see no difference.
    ranks: dict[str, list[Aggregate]] = {}
    for figure in ranked:
        ranks.setdefault(f"{100 * figure.iqm:.0f} %", []).append(figure)
    (share, leaders), *rest = ranks.items()
    names = _join([figure.agent for figure in leaders])
    if not rest:
        who = f"{names} has"
        if len(leaders) > 1:
            who = f"{_all(len(leaders))} methods have"
        return text + f"{who} an interquartile mean of {share}"
    verb = "is" if len(leaders) == 1 else "are level and"
    next_share, followers = rest[0]
    text += (
        f"{names} {verb} ahead with an interquartile mean of {share}, followed "
        f"by {_join([figure.agent for figure in followers])} with {next_share}"
    )
    upper = [figure.interval for figure in leaders if figure.interval is not None]
    lower = [figure.interval for figure in followers if figure.interval is not None]
    if len(upper) < len(leaders) or len(lower) < len(followers):
        text += ", which may be luck with so few training seeds"
    elif min(low for low, _ in upper) <= max(high for _, high in lower):
        text += ", though their 95 % intervals overlap"
    return text


def _measure(source: Source) -> float:
    """What runs of one task are ranked by: the success rate, or else the return."""
    summary = source.rows[0].summary
    assert summary is not None, "only runs that were evaluated are compared"
    return summary.returns.mean if summary.score is None else summary.score.rate


def _compare_with_paper(row: ResultRow) -> str:
    """The paper's number beside a rate, and why the two may not compare."""
    assert row.summary is not None, "a rate was reached"
    paper, steps = row.paper, row.summary.steps[-1]
    caveats = []
    if len(row.summary.seeds) < _FEW_SEEDS:
        caveats.append("a rate over so few training seeds may be luck")
    if row.environment or row.candidates is not None:
        text = "the paper has no number for these conditions"
    elif paper is None or paper.mean is None:
        text = "the paper has no number for this task and method"
    else:
        text = f"the paper reports {paper} % for {paper.method}"
        text += f" after {PAPER_STEPS:,} updates and {PAPER_SEEDS} seeds"
        if steps < PAPER_STEPS:
            caveats.insert(0, f"{PAPER_STEPS / steps:.3g} times as many updates")
        caveats.append("episodes and data may differ")
    return text + (f" ({'; '.join(caveats)})" if caveats else "")


def _all(number: int) -> str:
    return "both" if number == 2 else f"all {number}"


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _join(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Example:
        >>> _join(["iql", "fql", "qc"])
        'iql, fql and qc'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
