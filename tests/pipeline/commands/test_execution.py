import dataclasses

import pytest

from pipeline.commands import execution
from pipeline.sources.episodes import EpisodeRange


@pytest.mark.parametrize(
    ("files", "workers", "useful"),
    [
        # Rows of each file, in millions; processes asked for; processes started.
        ([3], 1, 1),
        ([3], 2, 1),  # its threads keep two cores busy
        ([3], 8, 4),
        ([3, 0.3], 2, 1),  # a validation file is no work for a second process
        ([1, 1], 2, 2),
        ([1] * 10, 4, 4),
        ([0.2] * 4, 4, 1),  # written before a second process has started
    ],
)
def test_processes_are_started_where_they_help(
    make_npz, make_plan, files, workers, useful
):
    plan = make_plan(make_npz((5,)))
    (part,) = plan.parts
    parts = []
    for number, millions in enumerate(files):
        rows = int(millions * 1e6)
        for _ in range(max(1, rows // 500_000)):
            parts.append(
                dataclasses.replace(
                    part,
                    index=len(parts),
                    source=dataclasses.replace(part.source, path=str(number)),
                    episodes=EpisodeRange(0, 0, (min(rows, 500_000),)),
                )
            )
    plan = dataclasses.replace(plan, parts=tuple(parts))
    assert execution.count_useful_processes(plan, workers) == useful
