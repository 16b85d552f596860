"""``merge``: joins several stores of the same kind."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.commands.arguments import Flag
from pipeline.output import Output, say
from pipeline.store.units import format_count


@dataclass(frozen=True)
class Merge:
    """Joins stores of equal fields, tasks and discounts; they stay as they are.

    Attributes:
        stores: Folders of the stores, in order.
        out: Folder of the new store: a local path or gs://bucket/path. On the same disk
            its files are hard links to those of the other stores, elsewhere copies.
        dataset: Name of the joined data set; required if the stores' names differ.
        take_over: Continue in the place of another process that writes to this folder,
            and may still run.
    """

    stores: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="STORE ...")
    ]
    out: str
    dataset: str | None = None
    take_over: Flag = False

    def execute(self, output: Output) -> int:
        """Links or copies the parts, and prints how many."""
        from pipeline.assembly import merge
        from pipeline.commands import execution
        from pipeline.inspection import progress
        from pipeline.store import claims

        plan = merge.plan_merge(self.stores, self.out, dataset=self.dataset)
        total = sum(part.rows for part in plan.manifest.parts)
        done: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(done), f"{len(done)} of {len(plan.copies)} parts"

        if not merge.find_merged(plan):
            with merge.claim(plan, take_over=self.take_over) as claimed:
                with progress.show_progress(output.progress, "merge", total, measure):
                    merge.merge(plan, claimed, progress=done.append)
                # The command that took over has committed the same store, so this one
                # has not failed.
                if not claimed.stands():
                    say(output.results, f"{self.out}: {execution.ALREADY}")
                    return 0
                say(
                    output.results,
                    f"{self.out}: finished, {total:,} rows in "
                    f"{format_count(len(plan.copies), 'part')} of "
                    f"{len(self.stores)} stores",
                )
            return 0
        # A merge that was killed after its commit left its claim.
        claims.clear(self.out, merge.CLAIM)
        say(output.results, f"{self.out}: already finished, nothing to do")
        return 0
