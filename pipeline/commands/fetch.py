"""``fetch``: downloads the published files of a data set."""

import os
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from pipeline.output import Output, say
from pipeline.sources.options import MIRROR


@dataclass(frozen=True)
class Fetch:
    """Downloads the published files of an OGBench data set; repeat it to resume.

    Attributes:
        dataset: Name of the data set, such as cube-triple-play.
        mirror: URL of the folder that holds NAME-v0.npz and NAME-v0-val.npz.
        out: Folder for the files.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("out",)

    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    mirror: str = MIRROR
    out: str = "."

    def execute(self, output: Output) -> int:
        """Downloads both splits."""
        from pipeline.domains.datasets import parse_dataset
        from pipeline.inspection import progress
        from pipeline.sources import fetch
        from pipeline.sources import files as input_files

        dataset = parse_dataset(self.dataset).dataset
        train = f"{dataset}-v0.npz"
        # Both files are looked up first, so that a missing one is noticed at once.
        remotes = {
            name: fetch.look_up(f"{self.mirror.rstrip('/')}/{name}")
            for name in (train, input_files.val_path(train))
        }
        for name, remote in remotes.items():
            path = os.path.join(self.out, name)
            fetched_bytes = [0]

            def measure(fetched_bytes: list[int] = fetched_bytes) -> tuple[int, str]:
                return fetched_bytes[0], ""

            def note(size_bytes: int, fetched_bytes: list[int] = fetched_bytes) -> None:
                fetched_bytes[0] = size_bytes

            with progress.show_progress(
                output.progress, name, remote.size_bytes, measure, unit="bytes"
            ):
                new = fetch.fetch(remote, path, progress=note)
            say(
                output.results,
                f"{path}: {remote.size_bytes:,} bytes, "
                f"{'fetched and checked' if new else 'already there'}",
            )
        return 0
