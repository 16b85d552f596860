"""``merge``: several stores of one kind as one."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.commands.arguments import Flag
from pipeline.output import Output, say


@dataclass(frozen=True)
class Merge:
    """Joins stores of equal fields, tasks and discounts; they stay as they are.

    Attributes:
        stores: Folders of the stores, in order.
        out: Folder of the store to be: a local path or gs://bucket/path. On the disk
            of the others its files are second names of theirs, elsewhere copies.
        dataset: Name of the joined data set, where theirs differ.
        take_over: Go on in the place of another process that has begun to write
            here, which may still run.
    """

    stores: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="STORE ...")
    ]
    out: str
    dataset: str | None = None
    take_over: Flag = False

    def execute(self, output: Output) -> int:
        """Takes over the parts, and says how many."""
        from pipeline.assembly import merge
        from pipeline.commands import execution
        from pipeline.inspection import progress
        from pipeline.store import claims

        plan = merge.plan_merge(self.stores, self.out, dataset=self.dataset)
        total = sum(part.rows for part in plan.value.parts)
        done: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(done), f"{len(done)} of {len(plan.copies)} parts"

        if not merge.find_merged(plan):
            with merge.claim(plan, take_over=self.take_over) as claimed:
                with progress.shown(output.progress, "merge", total, measure):
                    merge.merge(plan, claimed, progress=done.append)
                if not claimed.stands():
                    say(output.results, f"{self.out}: {execution.ALREADY}")
                    return 0
                say(
                    output.results,
                    f"{self.out}: finished, {total:,} rows in {len(plan.copies)} parts "
                    f"of {len(self.stores)} stores",
                )
            return 0
        claims.clear(self.out, merge.CLAIM)
        say(output.results, f"{self.out}: already finished, nothing to do")
        return 0
