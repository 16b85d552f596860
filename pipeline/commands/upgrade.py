"""``upgrade``: writes a store of an earlier format version in the current one."""

from dataclasses import dataclass

from pipeline.commands.arguments import Flag, StorePath
from pipeline.output import Output, say
from pipeline.store.units import format_count


@dataclass(frozen=True)
class Upgrade:
    """Writes a store anew in the current format version; the old one stays as it is.

    Attributes:
        store: Folder of the old store.
        out: Folder of the new store: a local path or gs://bucket/path.
        take_over: Continue in the place of another process that writes to this folder,
            and may still run.
    """

    store: StorePath
    out: str
    take_over: Flag = False

    def execute(self, output: Output) -> int:
        """Writes the parts anew, and prints how many."""
        from pipeline.assembly import upgrade
        from pipeline.commands import execution
        from pipeline.inspection import progress
        from pipeline.store import claims

        plan = upgrade.plan_upgrade(self.store, self.out)
        if plan is None:
            say(
                output.results,
                f"{self.store}: has the current format version, nothing to do",
            )
            return 0
        parts = plan.store.manifest.parts
        total = sum(part.rows for part in parts)
        done: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(done), f"{len(done)} of {len(parts)} parts"

        if upgrade.find_upgraded(plan):
            # An upgrade that was killed after its commit left its claim.
            claims.clear(self.out, upgrade.CLAIM)
            say(output.results, f"{self.out}: already finished, nothing to do")
            return 0
        with upgrade.claim(plan, take_over=self.take_over) as claimed:
            with progress.show_progress(output.progress, "upgrade", total, measure):
                manifest = upgrade.upgrade(plan, claimed, progress=done.append)
            if not claimed.stands():
                say(output.results, f"{self.out}: {execution.ALREADY}")
                return 0
        say(
            output.results,
            f"{self.out}: finished, {total:,} rows in "
            f"{format_count(len(parts), 'part')}, format version "
            f"{manifest.format_version}",
        )
        return 0
