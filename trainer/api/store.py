"""A trajectory store as a library sees it: fields, episodes and batches.

Loads neither JAX nor Grain until batches are asked for.

Dimensions: T transitions of an episode, S observation, A action, B batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import UsageError
from pipeline.store.manifest import DatasetManifest, FieldSpec, PartManifest
from pipeline.store.reader import Store

if TYPE_CHECKING:
    import grain

    from trainer.agents import AgentConfig

Array = npt.NDArray[Any]
Episode = dict[str, Array]

# Rows of one read: chunks of a store are about a megabyte, and are decoded whole.
_READ_ROWS = 1 << 15


class Trajectories:
    """A finished store, opened for reading.

    Attributes:
        store: The reader that all of the trainer uses.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __repr__(self) -> str:
        return (
            f"Trajectories({self.store.root!r}, {self.manifest.dataset}, "
            f"{self.store.rows():,} rows to train on)"
        )

    @property
    def manifest(self) -> DatasetManifest:
        """Tasks, discounts, statistics, parts and history of the store."""
        return self.store.manifest

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Dtype, shape of a row and unit of each field, by name.

        Fields whose ``per`` is ``"row_and_task"`` have a column for each task.
        """
        return dict(self.manifest.fields)

    def episode_count(self, split: str = "train") -> int:
        """Episodes of a split, which may have none."""
        return sum(part.episodes for part in self.manifest.parts_of(split))

    def episodes(
        self,
        *,
        split: str = "train",
        task: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[Episode]:
        """Reads one episode after another, in the order of the store.

        No more than one block of rows, or one episode if that is longer, is in memory.

        Args:
            split: ``"train"`` or ``"val"``.
            task: Number of the one task whose rewards, masks and returns are read;
                those of all tasks if None.
            fields: Names of the fields to read; all of them if None.

        Yields:
            Arrays by field, of the field's dtype: ``[T + 1, *shape]``, and of fields
            per task ``[T + 1, tasks]``, or ``[T + 1]`` of the one task. The last row's
            action leads nowhere.

        Raises:
            DataFormatError: If there is no such task, or bytes are missing or damaged.
            UsageError: If there is no such field.
        """
        names = tuple(self.fields) if fields is None else tuple(fields)
        unknown = [name for name in names if name not in self.fields]
        if unknown:
            raise UsageError(
                f"{self.store.root}: expected fields among {sorted(self.fields)}, got "
                f"{unknown[0]!r}"
            )
        column = None if task is None else self.store.task(task)[0]
        for part in self.manifest.parts_of(split):
            yield from self._episodes_of(part, names, column)

    def _episodes_of(
        self, part: PartManifest, names: Sequence[str], column: int | None
    ) -> Iterator[Episode]:
        lengths = self.store.episode_lengths(part)
        ends = np.cumsum(lengths)
        first_episode = 0
        while first_episode < part.episodes:
            first = int(ends[first_episode] - lengths[first_episode])
            # Whole episodes, as many as one read may hold, and one at least.
            held = int(np.searchsorted(ends, first + _READ_ROWS, side="right"))
            after = max(held, first_episode + 1)
            rows = {
                name: self._read(part, name, first, int(ends[after - 1]), column)
                for name in names
            }
            cuts = ends[first_episode : after - 1] - first
            pieces = {name: np.split(values, cuts) for name, values in rows.items()}
            for index in range(after - first_episode):
                # Copies: who keeps one episode does not keep the block.
                yield {name: pieces[name][index].copy() for name in names}
            first_episode = after

    def _read(
        self, part: PartManifest, name: str, first: int, last: int, column: int | None
    ) -> Array:
        values = self.store.read_rows(part, name, first, last)
        per_task = self.fields[name].per == "row_and_task"
        return values[:, column] if per_task and column is not None else values

    def batches(
        self,
        agent: "str | AgentConfig",
        *,
        task: int,
        batch_size: int | None = None,
        seed: int = 0,
        steps: int | None = None,
        memory_limit_bytes: int | None = None,
    ) -> "grain.IterDataset[Any]":
        """The batches that an agent learns from, by Grain.

        Batch b is a pure function of the data, the agent's sampler, the seed and b:
        the same that ``train`` sees with that seed, whatever Grain's threads do.

        Args:
            agent: Name of a method with its default settings, or its settings.
            task: Number of the task.
            batch_size: B; that of ``train`` by default.
            seed: Of the sampler.
            steps: Batches in all; a million, as many as ``train`` has, by default.
            memory_limit_bytes: Where more would be needed for all rows, they are read
                through a window of shuffled blocks; None reads all of them at once.

        Returns:
            Grain's data set of named tuples of NumPy arrays ``[B, ...]``, as the
            sampler of the agent lays them out. Its iterators keep their place in
            ``get_state`` and ``set_state``.

        Raises:
            ConfigError: If there is no such agent, or a number is out of range.
            DataFormatError: If the store lacks the task, or the return sums of the
                agent's discount.
        """
        import jax

        from trainer import config as configuration
        from trainer.data.feed import BatchSource, make_dataset, open_rows
        from trainer.runs.run import describe_run

        given = {"name": agent} if isinstance(agent, str) else vars(agent)
        asked = {"seed": seed, "steps": steps, "batch_size": batch_size}
        config = configuration.decode(
            {
                "dataset": self.manifest.dataset,
                "agent": given,
                "trainer": {
                    "updates_per_call": 1,
                    **{name: n for name, n in asked.items() if n is not None},
                },
                "feed": {"memory_limit_bytes": memory_limit_bytes},
            },
            where="batches",
        )
        rows = open_rows(
            self.store,
            config.feed,
            task=task,
            discount=config.agent.discount,
            batch_size=config.trainer.batch_size,
            updates_per_call=1,
            seed=seed,
        )
        run = describe_run(config, self.store, task, fingerprint=rows.fingerprint)
        source = BatchSource(
            rows,
            run.agent().sampler,
            seeds=(seed,),
            batch_size=config.trainer.batch_size,
            steps=config.trainer.steps,
            gather=True,
        )
        calls = make_dataset(source, config.feed, updates_per_call=1)
        # Leading axes of one update a call and of one seed.
        return calls.map(lambda batch: jax.tree.map(lambda leaf: leaf[0, 0], batch))


def open_store(path: str) -> Trajectories:
    """Opens a trajectory store that is finished.

    Args:
        path: Local path or ``gs://bucket/path``.

    Returns:
        What is in it; only its manifest has been read.

    Raises:
        UnfinishedStoreError: If there is no finished store.
        FormatVersionError: If a newer version wrote it.
        DataFormatError: If its manifest is damaged.
    """
    return Trajectories(Store(path))
