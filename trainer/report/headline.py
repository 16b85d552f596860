"""What happened, in sentences: what was reached, against what, with which caveat."""

from collections.abc import Sequence

from trainer.report.aggregates import aggregate
from trainer.report.methods import Results
from trainer.report.paper import PAPER_SEEDS, PAPER_STEPS
from trainer.report.result_table import ResultRow
from trainer.report.sources import Source

# More are a table's business.
_MAX_PLACES = 6
_FEW_SEEDS = 3


def describe_run(source: Source) -> str:
    """What one run reached, in a sentence.

    Args:
        source: The run.

    Returns:
        Its success, or return where success is not reported, at the last checkpoint
        evaluated, beside the paper's number.
    """
    row = source.rows[0]  # That of the last checkpoint, in its own task.
    place = f"{row.dataset} task {row.task}"
    if row.summary is None:
        return f"{_method(row)} was not evaluated yet in {place}."
    summary = row.summary
    seeds = len(summary.seeds)
    of = f"{seeds} training seeds" if seeds > 1 else "one training seed"
    after = f"after {summary.steps[-1]:,} updates"
    if summary.score is None:
        return (
            f"{_method(row)} collects {summary.returns.mean:.4g} in {place} {after} on "
            f"average over {summary.returns.episodes} episodes of {of}; the "
            "environment reports no success."
        )
    score = summary.score
    return (
        f"{_method(row)} solves {place} in {score.successes} of {score.episodes} "
        f"episodes ({100 * score.rate:.0f} %) {after}, over {of}; {_beside_paper(row)}."
    )


def lead(sources: Sequence[Source], results: Sequence[Results]) -> str:
    """The first sentence of a report.

    Args:
        sources: Its runs, at least one.
        results: By method and task.

    Returns:
        Of one run what it reached, of several what was compared and how far they came.
    """
    if len(sources) == 1:
        return describe_run(sources[0])
    evaluated = [source for source in sources if source.own]
    if not evaluated:
        return f"None of these {len(sources)} runs was evaluated yet."
    methods = {each.method for each in results}
    places = {each.place for each in results}
    summaries = [source.rows[0].summary for source in evaluated]
    scores = [each.score for each in summaries if each is not None]
    solved = sum(score is not None and score.rate == 1 for score in scores)
    text = (
        f"{_count(len(evaluated), 'run')} of {_count(len(methods), 'method')} in "
        f"{_count(len(places), 'task')}: {solved or 'none'} of them "
        f"{'solve' if solved > 1 else 'solves'} every episode at the last checkpoint "
        "evaluated"
    )
    text += _ahead(results)
    missing = len(sources) - len(evaluated)
    if missing:
        text += f"; {_count(missing, 'run')} more not evaluated yet"
    return text + "."


def _ahead(results: Sequence[Results]) -> str:
    """Which method is ahead, of those that were run in the same tasks."""
    found = aggregate(results)
    ranked = sorted(
        (each for each in found if each.measure == "success"),
        key=lambda each: -each.iqm,
    )
    places = {
        method: {each.place for each in results if each.method == method}
        for method in (each.agent for each in ranked)
    }
    if len(ranked) < 2 or any(
        there != places[ranked[0].agent] for there in places.values()
    ):
        return ""
    first, second = ranked[:2]
    return (
        f"; {first.agent} is ahead with an interquartile mean of "
        f"{100 * first.iqm:.0f} %, then comes {second.agent} with "
        f"{100 * second.iqm:.0f} %"
    )


def by_place(sources: Sequence[Source]) -> list[str]:
    """The best run of each task, a sentence each; none of one run, or of many tasks."""
    best: dict[tuple[str, int], Source] = {}
    for source in sources:
        place = (source.run.dataset, source.run.task.task)
        if source.own and (
            place not in best or _reached(source) > _reached(best[place])
        ):
            best[place] = source
    if len(sources) == 1 or len(best) > _MAX_PLACES:
        return []
    count = {
        place: sum(
            bool(each.own) and (each.run.dataset, each.run.task.task) == place
            for each in sources
        )
        for place in best
    }
    return [
        (f"Best of {count[place]} runs: " if count[place] > 1 else "")
        + describe_run(source)
        for place, source in best.items()
    ]


def _reached(source: Source) -> float:
    summary = source.rows[0].summary
    assert summary is not None, "only runs that were evaluated are compared"
    return summary.returns.mean if summary.score is None else summary.score.rate


def _beside_paper(row: ResultRow) -> str:
    """What to hold against a rate, and what to beware of when doing so."""
    assert row.summary is not None, "a rate was reached"
    paper, steps = row.paper, row.summary.steps[-1]
    caveats = []
    if len(row.summary.seeds) < _FEW_SEEDS:
        caveats.append("so few training seeds can be luck")
    if paper is None or paper.mean is None:
        text = "the paper has no number for it"
    else:
        text = f"the paper reports {paper} % for {paper.method}"
        text += f" after {PAPER_STEPS:,} updates and {PAPER_SEEDS} seeds"
        if steps < PAPER_STEPS:
            caveats.insert(0, f"this is {PAPER_STEPS / steps:.3g} times fewer updates")
        caveats.append("episodes and data may differ")
    return text + (f" ({', '.join(caveats)})" if caveats else "")


def _method(row: ResultRow) -> str:
    return row.agent.upper()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
