"""``doctor``: whether a folder on Cloud Storage can be used, before money is spent."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import EXIT_USAGE


@dataclass(frozen=True)
class Doctor:
    """Checks name, clock, credentials, permissions and region of a folder in a bucket.

    Attributes:
        path: gs://bucket/path.
        region: Where the job will run.
        read_only: Only read; nothing is written.
    """

    path: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="gs://BUCKET/PATH")
    ]
    region: str | None = None
    read_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Prints a line for each thing that was looked at."""
        from infra.checks import bucket, names

        if self.region is not None:
            names.check_region(self.region)
        sound = True
        for finding in bucket.examine(
            self.path, region=self.region, write=not self.read_only
        ):
            sound = sound and finding.ok
            say(
                output.results,
                f"{'ok    ' if finding.ok else 'FAILED'} {finding.what:12} "
                f"{finding.detail}",
                style=None if finding.ok else "red",
            )
        return 0 if sound else EXIT_USAGE
