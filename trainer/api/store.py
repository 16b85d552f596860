"""A trajectory store as an object: its fields, episodes and batches.

JAX and Grain are imported only by ``batches``.

Dimensions: T transitions of an episode, B batch.
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

    from trainer.agents.registry import AgentConfig

Array = npt.NDArray[Any]
Episode = dict[str, Array]

# Rows of one read. Chunks of a store are about a megabyte and are decoded as a whole:
# episodes read one by one would decode a chunk again for each episode in it.
_READ_ROWS = 1 << 15


class Trajectories:
    """A finished store, opened for reading.

    Attributes:
        store: Reader of the store, which the whole trainer uses.
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
        """The manifest: tasks, discounts, statistics, parts and history."""
        return self.store.manifest

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Dtype, shape of a row, and unit of each field, by name.

        A field whose ``per`` is ``"row_and_task"`` has a column for each task.
        """
        # A copy, because the reader uses the manifest as well.
        return dict(self.manifest.fields)

    def episode_count(self, split: str = "train") -> int:
        """Returns the number of episodes of a split, which may be 0."""
        return sum(part.episodes for part in self.manifest.parts_of(split))

    def episodes(
        self,
        *,
        split: str = "train",
        task: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[Episode]:
        """Reads one episode after another, in the order of the store.

        Memory holds one block of rows at a time; a block is a fixed number of rows, or
        one episode if that is longer.

        Args:
            split: ``"train"`` or ``"val"``.
            task: Number of the task whose rewards, masks and returns are read; None
                reads those of all tasks.
            fields: Names of the fields to read; None reads all of them.

        Yields:
            The arrays of an episode by field, in the field's dtype: ``[T + 1, *shape]``
            or, for a field per task, ``[T + 1, tasks]``, or ``[T + 1]`` with ``task``.
            The last row is the final state; its action was not taken.

        Raises:
            DataFormatError: If the store has no such task, or bytes are missing or
                damaged.
            UsageError: If the store has no such field.
        """
        names = tuple(self.fields) if fields is None else tuple(fields)
        unknown = [name for name in names if name not in self.fields]
        if unknown:
            raise UsageError(
                f"{self.store.root}: fields: expected some of {sorted(self.fields)}, "
                f"got {unknown[0]!r}"
            )
        # Fields per task have a column for each task of the store, in this order.
        column = None if task is None else self.store.task(task)[0]
        for part in self.manifest.parts_of(split):
            yield from self._episodes_of(part, names, column)

    def _episodes_of(
        self, part: PartManifest, names: Sequence[str], column: int | None
    ) -> Iterator[Episode]:
        """Reads the episodes of one part, a block of whole episodes at a time."""
        lengths = self.store.episode_lengths(part)
        ends = np.cumsum(lengths)
        first_episode = 0
        while first_episode < part.episodes:
            first = int(ends[first_episode] - lengths[first_episode])
            # At least one episode is read, though it may be longer than a block.
            fitting = int(np.searchsorted(ends, first + _READ_ROWS, side="right"))
            after = max(fitting, first_episode + 1)
            rows = {
                name: self._read(part, name, first, int(ends[after - 1]), column)
                for name in names
            }
            cuts = ends[first_episode : after - 1] - first
            pieces = {name: np.split(values, cuts) for name, values in rows.items()}
            for index in range(after - first_episode):
                # A view would keep the whole block in memory for as long as the caller
                # keeps the episode.
                yield {name: pieces[name][index].copy() for name in names}
            first_episode = after

    def _read(
        self, part: PartManifest, name: str, first: int, last: int, column: int | None
    ) -> Array:
        """Reads rows of a field, of one column if the field has one for each task."""
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
        """Makes the batches that an agent is trained on, as a data set of Grain.

        Batch b is a pure function of the data, the agent's sampler, the seed and b. It
        is the batch that ``train`` uses with that seed, whatever Grain's threads do.
        If the data exceed the limit of memory, ``train`` uses it only for its first
        seed, which the order of blocks depends on.

        Args:
            agent: Settings of an agent, or its name for the default settings.
            task: Number of the task.
            batch_size: Rows B of a batch; None takes the default of ``train``.
            seed: Seed of the sampler.
            steps: Number of batches; None takes the default of ``train``.
            memory_limit_bytes: Memory for rows. Larger data are read through a window
                of shuffled blocks; None reads all rows at once.

        Returns:
            A data set of named tuples of NumPy arrays ``[B, ...]``, with the fields of
            the agent's sampler. Its iterators have ``get_state`` and ``set_state``.

        Raises:
            ConfigError: If no such agent exists, or a number is out of range.
            DataFormatError: If the store lacks the task, or the return sums of the
                agent's discount.
        """
        import jax

        from trainer import config as configuration
        from trainer.data.feed import BatchSource, make_dataset, open_rows
        from trainer.runs.run import describe_run

        settings = {"name": agent} if isinstance(agent, str) else vars(agent)
        sizes = {"seed": seed, "steps": steps, "batch_size": batch_size}
        config = configuration.decode(
            {
                "dataset": self.manifest.dataset,
                "agent": settings,
                "trainer": {
                    # The state of an iterator counts calls, which are batches here.
                    "updates_per_call": 1,
                    **{name: n for name, n in sizes.items() if n is not None},
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
            # The trainer may look rows up on its devices; here, batches are of NumPy.
            gather=True,
        )
        calls = make_dataset(source, config.feed, updates_per_call=1)
        # The feed makes batches [updates per call, seeds, B, ...]; both are 1 here.
        return calls.map(lambda batch: jax.tree.map(lambda leaf: leaf[0, 0], batch))


def open_store(path: str) -> Trajectories:
    """Opens a finished trajectory store; only its manifest is read.

    Args:
        path: Path of the store, a local path or ``gs://bucket/path``.

    Returns:
        The opened store.

    Raises:
        UnfinishedStoreError: If no finished store is at the path.
        FormatVersionError: If a newer version of this package wrote the store.
        DataFormatError: If the manifest is damaged.
    """
    return Trajectories(Store(path))
