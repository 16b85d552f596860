"""``collect``: makes data with OGBench's scripted policies."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipeline.commands.arguments import (
    LOCAL,
    Engine,
    EnvironmentId,
    Flag,
    describe,
    make_paths_absolute,
)
from pipeline.output import Output, say
from pipeline.store.errors import UsageError
from pipeline.store.units import format_count

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
        environment_id: ID of the environment, such as cube-single-v0.
        dataset_type: Behaviour of the policy: play or noisy, or navigate for point
            mazes.
        episodes: Number of training episodes.
        out: Folder of the store: a local path or gs://bucket/path.
        seed: Seed of the collection, from which the seed of every episode follows.
        val_episodes: Number of validation episodes.
        discounts: Discounts to store return sums for.
        max_rows: Number of rows in an episode. The default is that of OGBench's data.
        npz: File for a copy of the data as OGBench's npz, ending in .npz.
        engine: Runner of the pipelines.
        take_over: Continue in the place of another collect into this folder, which may
            still run.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("npz",)

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
        """Collects missing episodes, writes the store, and exports it if asked to."""
        arguments = self.engine.beam_arguments(more)
        self = make_paths_absolute(self, arguments, "out")
        return self._make(output, arguments)

    def _make(self, output: Output, beam_arguments: Sequence[str]) -> int:
        from pipeline.assembly.labels import check_discounts
        from pipeline.collection import staging
        from pipeline.collection.scripted import check_scripted
        from pipeline.commands import execution
        from pipeline.domains.datasets import find_domain
        from pipeline.inspection.export import check_path

        # Checked before hours of collecting, after which they are read first.
        check_discounts(self.discounts)
        if self.npz is not None:
            check_path(self.npz)
        domain = find_domain(self.environment_id, self.dataset_type)
        check_scripted(domain)
        recipe = self._make_recipe(domain)
        if not self._is_finished(output, recipe):
            with staging.claim(self.out, recipe, take_over=self.take_over) as claimed:
                # Another process may have finished the store before the claim.
                if not self._is_finished(output, recipe):
                    self._write(output, domain, recipe, beam_arguments, claimed)
        if self.npz is not None:
            execution.export_store(output, self.out, self.npz)
        return 0

    def _is_finished(self, output: Output, recipe: "Recipe") -> bool:
        """Tells whether the store is committed, and if so cleans up after it.

        A command that was killed between its commit and its end left staged episodes
        and claims.
        """
        from pipeline.assembly.commit import (
            CLAIM,
            check_whole,
            is_made_from,
            make_occupied_error,
            read_committed,
        )
        from pipeline.collection import staging
        from pipeline.store import claims

        committed = read_committed(self.out)
        if committed is None:
            return False
        if not is_made_from(committed, recipe.digest(), self.discounts):
            raise make_occupied_error(self.out, committed)
        check_whole(self.out, committed)
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
        """Collects missing episodes, then writes the store."""
        from pipeline.assembly.plan import describe_inputs
        from pipeline.collection import staging
        from pipeline.commands import execution

        self._collect(output, recipe, beam_arguments)
        # A process that took over may have committed the store and deleted episodes.
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
            describe_inputs(inputs),
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

    def _make_recipe(self, domain: "Domain") -> "Recipe":
        """Checks the numbers, and gathers all that determines the episodes."""
        from pipeline.assembly.plan import installed_versions
        from pipeline.collection.staging import Recipe

        if self.episodes < 1 or self.val_episodes < 0 or self.seed < 0:
            raise UsageError(
                "--episodes, --val-episodes, --seed: expected at least 1 episode, and "
                "no negative number of validation episodes or seed; got "
                f"{self.episodes}, {self.val_episodes} and {self.seed}"
            )
        rows = domain.episode_rows if self.max_rows is None else self.max_rows
        if rows < 2:
            raise UsageError(
                f"--max-rows: expected at least 2 rows an episode, got {rows}"
            )
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
        """Collects the episodes that are not staged yet."""
        from pipeline.beam import pipelines, runners
        from pipeline.collection import staging
        from pipeline.commands import execution

        missing = staging.start(self.out, recipe)
        total = sum(recipe.counts().values())
        say(
            output.progress,
            f"Collecting {recipe.dataset}: {format_count(total, 'episode')} of "
            f"{format_count(recipe.rows, 'row')}, {total - len(missing):,} of them are "
            "staged already",
        )

        def measure() -> tuple[int, str]:
            count = staging.count_staged(self.out)
            return count * recipe.rows, f"{count:,} of {total:,} episodes"

        if missing:
            workers = min(self.engine.workers, len(missing))
            options = runners.make_options(workers, beam_arguments)
            # The pipeline is defined again if a job was lost. By then fewer episodes
            # are missing, so they are listed anew each time.
            later = (staging.start(self.out, recipe) for _ in itertools.count())
            episodes = itertools.chain([missing], later)
            execution.run_shown(
                output,
                "collect",
                total * recipe.rows,
                measure,
                lambda root: pipelines.define_collection(root, next(episodes)),
                options,
            )
