"""``verify``: checks a store against its manifests."""

from dataclasses import dataclass

from pipeline.commands.arguments import Flag, StorePath
from pipeline.output import Output, say
from pipeline.store.errors import EXIT_FAILED
from pipeline.store.units import format_count

_VERSION_1 = (
    "has format version 1: only this command notices a bit that flips in an array "
    "later, while training, export and relabel do not, and no command notices one in "
    "dataset.json. Write the store anew with "
    "`python -m pipeline upgrade STORE --out STORE2`"
)


@dataclass(frozen=True)
class Verify:
    """Checks every byte of a store against its manifests.

    Attributes:
        store: Folder of the store.
        deep: Also recompute rewards, masks, return sums and statistics.
    """

    store: StorePath
    deep: Flag = False

    def execute(self, output: Output) -> int:
        """Prints the findings; the exit code is 1 if there are any."""
        from pipeline.inspection import progress, verify
        from pipeline.store.reader import Store

        store = Store(self.store)
        parts = store.manifest.parts
        total = sum(part.rows for part in parts)
        checked: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(checked), f"{len(checked)} of {len(parts)} parts"

        with progress.show_progress(output.progress, "verify", total, measure):
            findings = verify.verify_store(
                store, deep=self.deep, progress=checked.append
            )
        for finding in findings:
            say(output.results, finding)
        if findings:
            say(
                output.results,
                f"{self.store}: damaged, {format_count(len(findings), 'finding')}; "
                "write the store again from its source, or fetch it again",
            )
            return EXIT_FAILED
        say(
            output.results,
            f"{self.store}: sound; {format_count(len(parts), 'part')}, {total:,} rows, "
            "every checksum read"
            + (", labels and statistics recomputed" if self.deep else ""),
        )
        if not store.manifest.checked:
            say(output.results, f"{self.store}: {_VERSION_1}")
        return 0
