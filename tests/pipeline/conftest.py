"""Small inputs of cube-single's shape, made without a simulator."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly import blocks, plan
from pipeline.domains import goals
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import layout
from pipeline.store.manifest import Task
from pipeline.store.reader import Store

# Widths of cube-single: arm, gripper and one free cube.
OBSERVATIONS, ACTIONS, QPOS, QVEL = 28, 5, 21, 20
CUBE = slice(14, 17)
GOALS = ((0.425, 0.1, 0.02), (0.35, 0.0, 0.02), (0.425, -0.1, 0.02))


@pytest.fixture(scope="session", autouse=True)
def _tasks_read_once():
    """Caches tasks, because reading them starts the simulator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(goals, "read_tasks", functools.cache(goals.read_tasks))
        yield


@pytest.fixture(scope="session")
def tasks() -> tuple[Task, ...]:
    return tuple(
        Task(
            task=number,
            name=f"task{number}_hand_made",
            environment_id=f"cube-single-singletask-task{number}-v0",
            recipe="cube",
            goal={"cube_xyzs": [list(goal)]},
        )
        for number, goal in enumerate(GOALS, 1)
    )


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., dict[str, np.ndarray]]:
    def make(lengths: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        n = sum(lengths)
        rows = {
            name: random.normal(size=(n, width)).astype(np.float32)
            for name, width in (
                ("observations", OBSERVATIONS),
                ("actions", ACTIONS),
                ("qpos", QPOS),
                ("qvel", QVEL),
            )
        }
        rows["actions"] = np.clip(rows["actions"], -1, 1)
        # The cube lies at one of the goals every few rows, elsewhere in between.
        at = random.integers(0, 3 * len(GOALS), n)
        near = np.asarray(GOALS)[at % len(GOALS)] + random.uniform(-0.01, 0.01, (n, 3))
        cube = np.where(at[:, None] < len(GOALS), near, 5.0)
        rows["qpos"][:, CUBE] = cube
        terminals = np.zeros(n, np.bool_)
        terminals[np.cumsum(lengths) - 1] = True
        return {**rows, "terminals": terminals}

    return make


@pytest.fixture
def make_npz(tmp_path: Path, make_rows) -> Callable[..., str]:
    def make(
        lengths: Sequence[int] = (5, 5, 7),
        *,
        name: str = "cube-single-play.npz",
        seed: int = 0,
        compressed: bool = True,
        without: Sequence[str] = (),
        **replaced: np.ndarray,
    ) -> str:
        rows = {**make_rows(lengths, seed), **replaced}
        rows = {key: value for key, value in rows.items() if key not in without}
        path = tmp_path / name
        (np.savez_compressed if compressed else np.savez)(path, **rows)
        return str(path)

    return make


@pytest.fixture
def make_plan(tmp_path: Path, tasks) -> Callable[..., plan.StorePlan]:
    def make(path: str, *, out: str = "store", val: str | None = None, **options):
        inputs = [("train", OgbenchNpz(path))]
        if val is not None:
            inputs.append(("val", OgbenchNpz(val)))
        options = {
            "dataset": "cube-single-play",
            "environment_id": "cube-single-v0",
            "tasks": tasks,
            "discounts": (0.9, 0.99),
            "part_rows": 12,
            "versions": {"numpy": "0"},
            **options,
        }
        chosen = {
            field.name: options.pop(field.name)
            for field in dataclasses.fields(plan.PlanOptions)
            if field.name in options
        }
        return plan.plan_inputs(
            str(tmp_path / out),
            plan.describe_inputs(inputs),
            options=plan.PlanOptions(**chosen),
            **options,
        )

    return make


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of observations of every later read, with blocks of one episode each."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    counts: list[int] = []
    read_rows = Store.read_rows

    def read(self, part, field, first, last):
        if field == "observations":
            counts.append(last - first)
        return read_rows(self, part, field, first, last)

    monkeypatch.setattr(Store, "read_rows", read)
    return counts


@pytest.fixture(scope="session")
def read_tree() -> Callable[..., dict[str, bytes]]:
    """Reads every file of a folder, to compare two folders byte by byte.

    ``whole`` leaves out files that a writer has begun and not yet renamed. Such files
    come and go while a writer works, and stay if it is killed.
    """

    def read(root: str | Path, *, whole: bool = False) -> dict[str, bytes]:
        found = {
            str(path.relative_to(root)): path for path in sorted(Path(root).rglob("*"))
        }
        return {
            name: path.read_bytes()
            for name, path in found.items()
            if not (whole and layout.is_unfinished_file(name)) and path.is_file()
        }

    return read
