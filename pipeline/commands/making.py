"""``collect`` and ``fetch``: where data come from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from pipeline import fetch, progress, shard
from pipeline.commands import writing
from pipeline.commands.arguments import EnvironmentId, check_workers, usage_errors
from pipeline.domains import Domain, find_domain, parse_dataset
from pipeline.plan import installed_versions, look_at
from pipeline.sources import collected
from pipeline.sources import inputs as input_files
from pipeline.sources.base import Source
from pipeline.sources.collect import check_scripted
from pipeline.sources.collected import CollectedEpisodes, Recipe
from pipeline.store.manifest import Split


@dataclass(frozen=True)
class Collect:
    """Makes data with OGBench's scripted policies and writes them as a store.

    Attributes:
        environment_id: Environment, such as cube-single-v0.
        dataset_type: play or noisy; navigate for point mazes.
        episodes: Training episodes.
        out: Folder of the store: a local path or gs://bucket/path.
        seed: Seed of the collection; every episode's own seed follows from it.
        val_episodes: Validation episodes besides.
        discounts: Discounts to store return sums for.
        max_rows: Rows of an episode, if not as many as OGBench's have.
        npz: Also write OGBench's npz to this file.
        workers: Processes on this machine.
    """

    environment_id: EnvironmentId
    dataset_type: str
    episodes: int
    out: str
    seed: int = 0
    val_episodes: int = 0
    discounts: tuple[float, ...] = (0.99,)
    max_rows: int | None = None
    npz: str | None = None
    workers: int = 1

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Collects what is missing, writes the store, exports it."""
        with usage_errors():
            domain = find_domain(self.environment_id, self.dataset_type)
            check_scripted(domain)
            recipe = self._recipe(domain)
            check_workers(self.workers)
        there = shard.read_committed(self.out)
        if there is None:
            self._collect(console, recipe, beam_arguments)
            inputs: list[tuple[Split, Source]] = [
                (split, CollectedEpisodes(self.out, recipe, split))
                for split in recipe.counts()
            ]
            plan = writing.plan_relabelled(
                domain,
                self.out,
                look_at(inputs),
                discounts=self.discounts,
                versions=recipe.versions,
            )
            writing.write_store(console, plan, self.workers, beam_arguments)
            collected.finish(self.out)
        elif not shard.is_made_from(there, recipe.digest(), self.discounts):
            raise shard.occupied(self.out, there)
        else:
            console.print(f"{self.out}: already finished, nothing to do")
        if self.npz is not None:
            writing.export_store(console, self.out, self.npz)
        return 0

    def _recipe(self, domain: Domain) -> Recipe:
        if self.episodes < 1 or self.val_episodes < 0 or self.seed < 0:
            raise ValueError(
                "expected at least 1 episode, and no negative validation episodes or "
                f"seed; got {self.episodes}, {self.val_episodes} and {self.seed}"
            )
        rows = domain.episode_rows if self.max_rows is None else self.max_rows
        if rows < 2:
            raise ValueError(f"expected at least 2 rows an episode, got {rows}")
        return Recipe(
            dataset=domain.dataset,
            environment_id=domain.environment_id,
            seed=self.seed,
            episodes=self.episodes,
            val_episodes=self.val_episodes,
            rows=rows,
            versions=installed_versions(),
        )

    def _collect(
        self, console: Console, recipe: Recipe, beam_arguments: Sequence[str]
    ) -> None:
        from pipeline import build, runners

        missing = collected.start(self.out, recipe)
        total = sum(recipe.counts().values())
        console.print(
            f"Collecting {recipe.dataset}: {total:,} episodes of {recipe.rows:,} rows, "
            f"{total - len(missing):,} of them here already",
            highlight=False,
            soft_wrap=True,
        )

        def measure() -> tuple[int, str]:
            count = collected.count_staged(self.out)
            return count * recipe.rows, f"{count:,} of {total:,} episodes"

        if missing:
            workers = min(self.workers, len(missing))
            options = runners.make_options(workers, beam_arguments)
            with progress.shown(console, "collect", total * recipe.rows, measure):
                runners.run(
                    lambda root: build.define_collection(root, missing), options
                )


@dataclass(frozen=True)
class Fetch:
    """Downloads the published files of an OGBench data set; goes on where it stopped.

    Attributes:
        dataset: Name of the data set, such as cube-triple-play.
        mirror: Where the files are: NAME-v0.npz and NAME-v0-val.npz below this.
        out: Folder to put them in.
    """

    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    mirror: str = fetch.MIRROR
    out: str = "."

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Downloads both splits."""
        with usage_errors():
            dataset = parse_dataset(self.dataset).dataset
        train = f"{dataset}-v0.npz"
        # Before the first byte: neither of them may be missing.
        remotes = {
            name: fetch.look_up(f"{self.mirror.rstrip('/')}/{name}")
            for name in (train, input_files.val_path(train))
        }
        for name, remote in remotes.items():
            path = os.path.join(self.out, name)
            there = [0]

            def measure(there: list[int] = there) -> tuple[int, str]:
                return there[0], ""

            def note(size_bytes: int, there: list[int] = there) -> None:
                there[0] = size_bytes

            with progress.shown(
                console, name, remote.size_bytes, measure, unit="bytes"
            ):
                new = fetch.fetch(remote, path, progress=note)
            console.print(
                f"{path}: {remote.size_bytes:,} bytes, "
                f"{'fetched and checked' if new else 'here already'}",
                highlight=False,
                soft_wrap=True,
            )
        return 0
