"""``collect``: data made with OGBench's scripted policies."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.commands.arguments import (
    LOCAL,
    Engine,
    EnvironmentId,
    Flag,
    describe,
    seen_from_anywhere,
)
from pipeline.output import Output, say
from pipeline.store.errors import UsageError

if TYPE_CHECKING:
    from pipeline.collection.staging import Recipe
    from pipeline.domains.datasets import Domain
    from pipeline.sources.base import Source
    from pipeline.store.claims import Claim
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
        engine: Where it runs.
        take_over: Go on in the place of another process that has begun to collect
            here, which may still run.
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
    engine: Engine = LOCAL
    take_over: Flag = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Collects what is missing, writes the store, exports it."""
        arguments = self.engine.beam_arguments(more)
        self = seen_from_anywhere(self, arguments, "out")
        return self._make(output, arguments)

    def _make(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.collection import staging
        from pipeline.collection.scripted import check_scripted
        from pipeline.commands import execution
        from pipeline.domains.datasets import find_domain

        domain = find_domain(self.environment_id, self.dataset_type)
        check_scripted(domain)
        recipe = self._recipe(domain)
        if not self._is_finished(output, recipe):
            with staging.claim(self.out, recipe, take_over=self.take_over) as claimed:
                # Finished since it was looked for, perhaps.
                if not self._is_finished(output, recipe):
                    self._write(output, domain, recipe, beam_arguments, claimed)
        if self.npz is not None:
            execution.export_store(output, self.out, self.npz)
        return 0

    def _is_finished(self, output: Output, recipe: "Recipe") -> bool:
        """Whether the store is there; of an interrupted end the rest is done."""
        from pipeline.assembly.commit import (
            CLAIM,
            check_whole,
            is_made_from,
            occupied,
            read_committed,
        )
        from pipeline.collection import staging
        from pipeline.store import claims

        there = read_committed(self.out)
        if there is None:
            return False
        if not is_made_from(there, recipe.digest(), self.discounts):
            raise occupied(self.out, there)
        check_whole(self.out, there)
        staging.finish(self.out, recipe)
        for name in (CLAIM, staging.CLAIM):
            claims.clear(self.out, name)
        say(output.results, f"{self.out}: already finished, nothing to do")
        return True

    def _write(
        self,
        output: Output,
        domain: "Domain",
        recipe: "Recipe",
        beam_arguments: Sequence[str],
        claimed: "Claim",
    ) -> None:
        """Collects what is missing, then writes the store."""
        from pipeline.assembly.plan import look_at
        from pipeline.collection import staging
        from pipeline.commands import execution

        self._collect(output, recipe, beam_arguments)
        if not claimed.stands() and self._is_finished(output, recipe):
            return
        claimed.check()
        inputs: list[tuple[Split, Source]] = [
            (split, staging.CollectedEpisodes(self.out, recipe, split))
            for split in recipe.counts()
        ]
        plan = execution.plan_relabelled(
            domain,
            self.out,
            look_at(inputs),
            discounts=self.discounts,
            versions=recipe.versions,
            command=describe(
                f"collect {self.environment_id}",
                dataset_type=self.dataset_type,
                episodes=self.episodes,
                seed=self.seed,
                val_episodes=self.val_episodes,
                discounts=sorted(set(self.discounts)),
                max_rows=recipe.rows,
            ),
        )
        execution.write_store(
            output,
            plan,
            self.engine.workers,
            beam_arguments,
            take_over=self.take_over,
        )
        staging.finish(self.out, recipe)

    def _recipe(self, domain: "Domain") -> "Recipe":
        from pipeline.assembly.plan import installed_versions
        from pipeline.collection.staging import Recipe

        if self.episodes < 1 or self.val_episodes < 0 or self.seed < 0:
            raise UsageError(
                "expected at least 1 episode, and no negative validation episodes or "
                f"seed; got {self.episodes}, {self.val_episodes} and {self.seed}"
            )
        rows = domain.episode_rows if self.max_rows is None else self.max_rows
        if rows < 2:
            raise UsageError(f"expected at least 2 rows an episode, got {rows}")
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
        self, output: Output, recipe: "Recipe", beam_arguments: Sequence[str]
    ) -> None:
        from pipeline.beam import pipelines, runners
        from pipeline.collection import staging
        from pipeline.commands import execution

        missing = staging.start(self.out, recipe)
        total = sum(recipe.counts().values())
        say(
            output.progress,
            f"Collecting {recipe.dataset}: {total:,} episodes of {recipe.rows:,} rows, "
            f"{total - len(missing):,} of them here already",
        )

        def measure() -> tuple[int, str]:
            count = staging.count_staged(self.out)
            return count * recipe.rows, f"{count:,} of {total:,} episodes"

        if missing:
            workers = min(self.engine.workers, len(missing))
            options = runners.make_options(workers, beam_arguments)
            # Of a job that is handed in again, what is missing then.
            again = (staging.start(self.out, recipe) for _ in itertools.count())
            asked = itertools.chain([missing], again)
            execution.run_shown(
                output,
                "collect",
                total * recipe.rows,
                measure,
                lambda root: pipelines.define_collection(root, next(asked)),
                options,
            )
