"""``python -m pipeline collect | shard | inspect | verify | export``.

Arguments and messages only. Beam and the simulator are imported by the commands that
need them: each takes seconds.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from pipeline import export, progress, shard, summary, verify
from pipeline.domains import Domain, find_domain, parse_dataset
from pipeline.episodes import PART_ROWS
from pipeline.export import val_path
from pipeline.plan import (
    OnBadEpisode,
    Split,
    StorePlan,
    installed_versions,
    plan_store,
)
from pipeline.sources import collected
from pipeline.sources.base import Source
from pipeline.sources.collect import check_scripted
from pipeline.sources.collected import CollectedEpisodes, Recipe
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store

BAD_INPUT = 2
DAMAGED = 1
# Starting worker processes takes as long as writing so many rows.
_ROWS_WORTH_A_PROCESS = 1_000_000

_Environment = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
_Npz = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.npz")]
_Store = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
_Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


class UsageError(Exception):
    """An argument that cannot be what was meant; exit code 2."""


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

    environment_id: _Environment
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
        with _usage_errors():
            domain = find_domain(self.environment_id, self.dataset_type)
            check_scripted(domain)
            recipe = self._recipe(domain)
            _check_workers(self.workers)
        there = shard.read_committed(self.out)
        if there is None:
            self._collect(console, recipe, beam_arguments)
            plan = _plan(
                domain,
                self.out,
                [
                    (split, CollectedEpisodes(self.out, recipe, split))
                    for split in recipe.counts()
                ],
                discounts=self.discounts,
                versions=recipe.versions,
            )
            _write(console, plan, self.workers, beam_arguments)
            collected.finish(self.out)
        elif not shard.is_made_from(there, recipe.digest(), self.discounts):
            raise shard.occupied(self.out, there)
        else:
            console.print(f"{self.out}: already finished, nothing to do")
        if self.npz is not None:
            _export(console, self.out, self.npz)
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
class Shard:
    """Writes an npz of OGBench's layout as a store.

    Attributes:
        file: The npz; a file of the same name ending in -val.npz beside it becomes
            the validation split.
        dataset: Name of the data set, such as cube-single-play.
        out: Folder of the store: a local path or gs://bucket/path.
        discounts: Discounts to store return sums for.
        part_rows: Rows aimed at for each part.
        on_bad_episode: What to do with an episode that holds NaN or Inf.
        max_bad_share: Share of the episodes that may be skipped.
        workers: Processes on this machine.
        dry_run: Print the plan and stop.
    """

    file: _Npz
    dataset: str
    out: str
    discounts: tuple[float, ...] = (0.99,)
    part_rows: int = PART_ROWS
    on_bad_episode: OnBadEpisode = "refuse"
    max_bad_share: float = 0.01
    workers: int = 1
    dry_run: _Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Plans, then writes the store."""
        with _usage_errors():
            domain = parse_dataset(self.dataset)
            _check_workers(self.workers)
        inputs: list[tuple[Split, Source]] = [("train", OgbenchNpz(self.file))]
        if os.path.exists(val_path(self.file)):
            inputs.append(("val", OgbenchNpz(val_path(self.file))))
        for _, source in inputs:
            # Before the simulator is started for the tasks.
            source.describe()
        plan = _plan(
            domain,
            self.out,
            inputs,
            discounts=self.discounts,
            part_rows=self.part_rows,
            on_bad_episode=self.on_bad_episode,
            max_bad_share=self.max_bad_share,
        )
        if self.dry_run:
            summary.print_plan(console, plan)
        else:
            _write(console, plan, self.workers, beam_arguments)
        return 0


@dataclass(frozen=True)
class Inspect:
    """Shows what a store holds.

    Attributes:
        store: Folder of the store.
        json: Print one JSON object instead of tables.
    """

    store: _Store
    json: _Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Prints tables or JSON."""
        store = Store(self.store)
        if self.json:
            text = json.dumps(summary.store_facts(store), indent=1)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            summary.print_store(console, store)
        return 0


@dataclass(frozen=True)
class Verify:
    """Checks every byte of a store against its manifests.

    Attributes:
        store: Folder of the store.
        deep: Also recompute rewards, masks, return sums and statistics.
    """

    store: _Store
    deep: _Flag = False

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Prints what is wrong; exit code 1 if anything is."""
        store = Store(self.store)
        parts = store.manifest.parts
        total = sum(part.rows for part in parts)
        checked: list[int] = []

        def measure() -> tuple[int, str]:
            return sum(checked), f"{len(checked)} of {len(parts)} parts"

        with progress.shown(console, "verify", total, measure):
            findings = verify.verify_store(
                store, deep=self.deep, progress=checked.append
            )
        for finding in findings:
            console.print(finding, highlight=False, markup=False, soft_wrap=True)
        if findings:
            console.print(
                f"{self.store}: damaged, {len(findings)} findings; write the store "
                "again from its source, or fetch it again",
                highlight=False,
                soft_wrap=True,
            )
            return DAMAGED
        console.print(
            f"{self.store}: sound; {len(parts)} parts, {total:,} rows, every checksum "
            f"read{', labels and statistics recomputed' if self.deep else ''}",
            highlight=False,
            soft_wrap=True,
        )
        return 0


@dataclass(frozen=True)
class Export:
    """Writes a store back as OGBench's npz.

    Attributes:
        store: Folder of the store.
        npz: File for the training split, ending in .npz; the validation split goes
            beside it as ...-val.npz.
    """

    store: _Store
    npz: str

    def run(self, console: Console, beam_arguments: Sequence[str]) -> int:
        """Writes the files."""
        _export(console, self.store, self.npz)
        return 0


Command = (
    Annotated[Collect, tyro.conf.subcommand("collect")]
    | Annotated[Shard, tyro.conf.subcommand("shard")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)


def main(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name. What follows ``--`` is handed to Beam.

    Returns:
        Exit code: 0, 1 for a damaged store, 2 for input that cannot be used.
    """
    ours, beam_arguments = list(arguments), []
    if "--" in ours:
        end = ours.index("--")
        ours, beam_arguments = ours[:end], ours[end + 1 :]
    command = tyro.cli(Command, prog="python -m pipeline", args=ours)
    try:
        if beam_arguments and not isinstance(command, Collect | Shard):
            raise UsageError(
                f"only collect and shard run on Beam, got {' '.join(beam_arguments)} "
                "for it after --; leave that out"
            )
        return command.run(Console(), beam_arguments)
    except (DataFormatError, UsageError, OSError, ImportError) as error:
        message = " ".join(str(error).split())
        Console(stderr=True).print(
            f"error: {message}", highlight=False, markup=False, soft_wrap=True
        )
        return BAD_INPUT


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Says that a ValueError raised here is about an argument, not a fault of ours."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, got {workers}")


def _plan(
    domain: Domain, out: str, inputs: Sequence[tuple[Split, Source]], **options: Any
) -> StorePlan:
    from pipeline.relabel import read_tasks

    with _usage_errors():
        return plan_store(
            out,
            inputs,
            dataset=domain.dataset,
            environment_id=domain.environment_id,
            tasks=read_tasks(domain),
            **options,
        )


def _write(
    console: Console, plan: StorePlan, workers: int, beam_arguments: Sequence[str]
) -> None:
    """Writes a planned store, unless it is there."""
    from pipeline import build, runners

    summary.print_plan(console, plan)
    if shard.find_committed(plan) is not None:
        console.print(f"{plan.root}: already finished, nothing to do", soft_wrap=True)
        return

    def measure() -> tuple[int, str]:
        rows, parts = progress.rows_written(plan)
        return rows, f"{parts} of {len(plan.parts)} parts"

    # A part has one writer, and a small store is written before processes start.
    useful = min(workers, len(plan.parts), 1 + plan.rows // _ROWS_WORTH_A_PROCESS)
    options = runners.make_options(useful, beam_arguments)
    runs = useful if runners.is_local(options) else len(plan.parts)
    clock = progress.Rate(measure()[0])
    with progress.shown(console, "write", plan.rows, measure):
        runners.run(lambda root: build.define_sharding(root, plan, runs=runs), options)
    store = Store(plan.root)
    dropped = sum(len(e) for p in store.manifest.parts for e in p.dropped.values())
    rows = sum(part.rows for part in store.manifest.parts)
    console.print(
        f"{plan.root}: finished, {rows:,} rows in {len(store.manifest.parts)} parts, "
        f"{clock.of(rows):,.0f} rows/s"
        + (f", {dropped} bad episodes left out" if dropped else ""),
        highlight=False,
        soft_wrap=True,
    )


def _export(console: Console, store: str, npz: str) -> None:
    with _usage_errors():
        paths = export.export_npz(Store(store), npz)
    for path in paths:
        console.print(f"{path}: written", highlight=False, soft_wrap=True)
