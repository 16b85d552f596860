"""``doctor``: checks that a job could use a folder on Cloud Storage."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output, say
from pipeline.store.errors import EXIT_USAGE


@dataclass(frozen=True)
class Doctor:
    """Checks name, clock, credentials, permissions and region of a folder in a bucket.

    Attributes:
        path: Folder to check, as gs://bucket/path.
        region: Region that the job will run in.
        read_only: Check reading only, and write nothing.
    """

    path: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="gs://BUCKET/PATH")
    ]
    region: str | None = None
    read_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute(self, output: Output) -> int:
        """Prints a line for each check.

        Args:
            output: Consoles to print to.

        Returns:
            0 if all checks succeed.

        Raises:
            LaunchError: If the region is not a name of a region.
        """
        from infra.checks import bucket, names

        if self.region is not None:
            names.check_region(self.region)
        sound = True
        # Each finding is printed at once, because a check may wait for the network.
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
