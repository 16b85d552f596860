"""Small stores and tables of made-up rows, for tests that need no MuJoCo."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.assembly.plan import PartPlan
from pipeline.store import arrays, files, manifest, manifest_json, schema
from pipeline.store.manifest import DatasetManifest, Origin, PartManifest, Task
from pipeline.store.moments import Moments
from pipeline.store.returns import next_solved, suffix_sums
from pipeline.store.writer import PartWriter
from trainer.agents.base import DataFacts
from trainer.data.sampling import Sampler, draw_uniform_numbers
from trainer.data.table import RowTable

Arrays = dict[str, np.ndarray]


def make_rows(
    lengths: Sequence[int],
    *,
    S: int = 6,
    A: int = 3,
    tasks: int = 5,
    seed: int = 0,
    share: float = 0.02,
) -> Arrays:
    """Makes random walks with rewards of -1, and 0 in the share of solved rows."""
    rng = np.random.default_rng(seed)
    rows = int(sum(lengths))
    solved = rng.random((rows, tasks)) < share
    return {
        "observations": np.cumsum(rng.normal(scale=0.1, size=(rows, S)), axis=0).astype(
            np.float32
        ),
        "actions": rng.uniform(-1, 1, (rows, A)).astype(np.float32),
        "rewards": np.where(solved, 0, -1).astype(np.float32),
        "masks": np.where(solved, 0, 1).astype(np.uint8),
    }


def make_table(
    lengths: Sequence[int], *, discount: float = 0.99, task: int = 1, **rows: float
) -> RowTable:
    """Makes a table of made-up rows, without a store."""
    arrays = make_rows(lengths, **rows)
    column = [task - 1]
    counts = np.asarray(lengths, np.int64)
    masks = arrays["masks"][:, column]
    sums = suffix_sums(arrays["rewards"][:, column], masks, counts, discount=discount)
    return RowTable(
        observations=arrays["observations"],
        actions=arrays["actions"],
        rewards=arrays["rewards"][:, column[0]],
        masks=masks[:, 0].astype(np.float32),
        returns=sums[:, 0],
        next_solved=next_solved(masks[:, 0]),
        episode_starts=np.cumsum(counts) - counts,
        episode_lengths=counts,
        discount=discount,
        fingerprint=f"made-up/{list(lengths)}/{task}",
    )


def numbers_of(
    table: RowTable,
    sampler: Sampler[Any, Any],
    size: int,
    *,
    seed: int = 0,
    step: int = 0,
) -> np.ndarray:
    """Random numbers ``f64[D, B]`` that the batch of a step and seed is drawn by."""
    steps = range(step, step + 1)
    return draw_uniform_numbers(
        table, sampler, seeds=(seed,), steps=steps, batch_size=size
    )[:, 0, 0]


def make_facts(table: RowTable) -> DataFacts:
    """Computes the facts of a table."""
    flat = table.observations
    return DataFacts(
        observation_dim=flat.shape[1],
        action_dim=table.actions.shape[1],
        observation_mean=tuple(flat.mean(axis=0).tolist()),
        observation_std=tuple(flat.std(axis=0).tolist()),
        reward_min=float(table.rewards.min()),
        reward_max=float(table.rewards.max()),
        return_max=table.find_best_return(),
    )


@contextmanager
def version_1() -> Iterator[None]:
    """Makes stores be written in version 1 of the format within the block."""

    def to_json(value: DatasetManifest | PartManifest) -> str:
        if isinstance(value, DatasetManifest):
            value = dataclasses.replace(value, format_version=1)
        plain = dataclasses.asdict(value)
        for part in plain.get("parts", [plain]):
            assert part.pop("key") == ""
        assert plain.pop("action_scale", None) is None
        assert not plain.pop("history", None)
        assert not plain.pop("empty_parts", None)
        assert plain.pop("reference_scores", None) is None
        return json.dumps(plain, indent=1, sort_keys=True) + "\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_CODECS", arrays.CHUNK_CODECS[:-1])
        patch.setattr(manifest_json, "to_json", to_json)
        patch.setattr(PartPlan, "key", "")
        yield


def write_store(
    root: Path,
    parts: Sequence[Sequence[int]] = ((40, 30), (50,)),
    *,
    dataset: str = "pointmaze-medium-navigate",
    discounts: Sequence[float] = (0.99,),
    seed: int = 0,
    val: Sequence[Sequence[int]] = (),
    **rows: int,
) -> Path:
    """Writes and commits a store, with a part for each list of episode lengths."""
    written, fields = [], {}
    for index, lengths in enumerate((*parts, *val)):
        arrays = make_rows(lengths, seed=seed + index, **rows)
        counts = np.asarray(lengths, np.int64)
        for discount in discounts:
            arrays[manifest.returns_field(discount)] = suffix_sums(
                arrays["rewards"], arrays["masks"], counts, discount=discount
            )
        inputs = {name: arrays[name] for name in ("observations", "actions")}
        fields = schema.input_fields(inputs, where="made-up") | schema.task_fields(
            discounts
        )
        tasks = arrays["rewards"].shape[1]
        folder = manifest.part_folder(index)
        writer = PartWriter(
            str(root), folder, fields, rows=int(counts.sum()), tasks=tasks
        )
        writer.append(arrays)
        part = PartManifest(
            index=index,
            split="train" if index < len(parts) else "val",
            rows=int(counts.sum()),
            episodes=len(counts),
            checksums=writer.finish(counts),
            statistics={
                name: Moments.of(values).to_statistics()
                for name, values in arrays.items()
            },
            origin=Origin("made-up", "tests", f"seed {seed + index}", 0),
        )
        writer.commit(part)
        written.append(part)
    merged = {
        name: _merge([part.statistics[name] for part in written[: len(parts)]])
        for name in written[0].statistics
    }
    value = DatasetManifest(
        dataset=dataset,
        environment_id="pointmaze-medium-v0",
        fields=fields,
        tasks=tuple(
            Task(
                task=number,
                name=f"task{number}",
                environment_id="pointmaze-medium-v0",
                recipe="stored",
            )
            for number in range(1, tasks + 1)
        ),
        discounts=tuple(discounts),
        parts=tuple(written),
        statistics=merged,
        versions={},
    )
    files.commit(
        str(root),
        manifest.DATASET_MANIFEST,
        manifest_json.to_json(value).encode(),
        replacing=files.read(str(root), manifest.DATASET_MANIFEST),
    )
    return root


def _merge(statistics: list) -> object:
    moments = Moments.from_statistics(statistics[0])
    for other in statistics[1:]:
        moments = moments.merge(Moments.from_statistics(other))
    return moments.to_statistics()
