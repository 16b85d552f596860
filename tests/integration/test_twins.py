"""Two commands on one store: the second takes over from the first, which is stopped.

The first command is stopped at a random moment and continues after the second has
ended; then it ends by itself or is killed. In every case the store must equal that of
one command alone.
"""

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline.inspection.verify import verify_store
from pipeline.store import layout
from pipeline.store.reader import Store
from tests.twins import Run

Arguments = list[object]


def write_npz(path: Path, lengths: Sequence[int], seed: int) -> Path:
    """Writes data with rewards, so that no command needs a simulator."""
    random = np.random.default_rng(seed)
    rows = sum(lengths)
    ends = np.zeros(rows, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    np.savez(
        path,
        observations=random.normal(size=(rows, 3)).astype(np.float32),
        actions=random.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=random.normal(size=rows).astype(np.float32),
        masks=np.ones(rows, np.float32),
        terminals=ends,
    )
    return path


def read_tree(root: Path) -> dict[str, bytes]:
    """Reads all files, without the unfinished ones that a killed process left."""
    tree = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    return {n: data for n, data in tree.items() if not layout.is_unfinished_file(n)}


def run(arguments: Arguments, log: Path) -> tuple[int, str]:
    return Run(arguments, log).wait()


def drill(
    folder: Path,
    base: Path | None,
    make: Callable[[Path], Arguments],
    *,
    moments: int,
    already: str,
    seed: int,
) -> None:
    """Stops a command at several moments, and checks its store each time.

    Args:
        folder: An empty folder.
        base: Store to start from; None for no store.
        make: Makes the command's arguments for a store.
        moments: Number of moments.
        already: Part of the command's message if everything is done already.
        seed: Seed of the moments.
    """

    def begin(name: str) -> Path:
        out = folder / name
        if base is not None:
            shutil.copytree(base, out)
        return out

    alone = begin("alone")
    first = Run(make(alone), folder / "alone.log")
    most = first.most_files(alone)
    assert first.wait()[0] == 0
    expected = read_tree(alone)
    assert not any("/" not in name for name in expected if name != "dataset.json")
    assert verify_store(Store(str(alone)), deep=True) == []

    before = 0 if base is None else len(read_tree(base))
    assert most > before + 10
    random = np.random.default_rng(seed)
    stopped = lost = 0
    for moment in range(moments):
        out = begin(f"{moment}")
        first = Run(make(out), folder / f"{moment}-first.log")
        files = random.integers(before + 1, most + 1)
        still = first.stop_at(out, files, random.uniform(0, 0.02))
        second = [*make(out), "--take-over"]
        code, said = run(second, folder / f"{moment}-second.log")
        # If the first was stopped amid its commit, it holds the lock of the manifest,
        # and the second must say so.
        held = still and "dataset.json: another process has held its lock" in said
        if held:
            assert code == 1, said
            first.signal(signal.SIGKILL)
            code, said = run(second, folder / f"{moment}-third.log")
        assert code == 0, said
        assert verify_store(Store(str(out)), deep=True) == []
        first.signal(signal.SIGCONT)
        killed = held or (still and moment % 2 == 1)
        if killed and not held:
            time.sleep(random.uniform(0, 0.1))
            first.signal(signal.SIGKILL)
        code, said = first.wait()
        stopped += still
        if still and not killed:
            lost += 1
            lines = [line for line in said.splitlines() if line]
            if code:
                assert code in (1, 2), said
                assert lines[-1].startswith("error: "), said
                assert "Traceback" not in said
            else:
                assert already in lines[-1] or "finished" in lines[-1], said
        code, said = run(make(out), folder / f"{moment}-again.log")
        assert code == 0, said
        assert already in said, said
        assert verify_store(Store(str(out)), deep=True) == []
        found = read_tree(out)
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        assert found == expected
        shutil.rmtree(out)
    assert stopped >= moments / 2
    assert lost > 0


def shard(data: Path, out: Path) -> Arguments:
    return [
        *("shard", data, "--dataset", "mine", "--out", out),
        *("--part-rows", 60, "--discounts", 0.9, 0.99),
    ]


def test_of_two_that_shard_neither_harms_the_store(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "mine.npz", [20] * 12, seed=0)
    drill(
        tmp_path,
        None,
        lambda out: shard(data, out),
        moments=2,
        already="already finished",
        seed=1,
    )


@pytest.mark.slow
def test_twenty_moments_of_two_that_shard(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "mine.npz", [20] * 30, seed=0)
    drill(
        tmp_path,
        None,
        lambda out: shard(data, out),
        moments=20,
        already="already finished",
        seed=2,
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A store of 200 rows in four parts."""
    data = write_npz(tmp_path / "mine.npz", [20] * 10, seed=0)
    code, said = run(shard(data, tmp_path / "base"), tmp_path / "base.log")
    assert code == 0, said
    return tmp_path / "base"


@pytest.mark.slow
def test_twenty_moments_of_two_that_append(base: Path, tmp_path: Path) -> None:
    more = write_npz(tmp_path / "more.npz", [20] * 30, seed=1)
    drill(
        tmp_path,
        base,
        lambda out: ["append", out, more, "--part-rows", 60],
        moments=20,
        already="holds all of this input already",
        seed=3,
    )


@pytest.mark.slow
def test_twenty_moments_of_two_that_relabel(base: Path, tmp_path: Path) -> None:
    drill(
        tmp_path,
        base,
        lambda out: ["relabel", out, "--discounts", 0.5, 0.7, 0.8],
        moments=20,
        already="holds these labels already",
        seed=4,
    )


@pytest.mark.slow
def test_twenty_moments_of_two_that_collect(tmp_path: Path) -> None:
    drill(
        tmp_path,
        None,
        lambda out: [
            *("collect", "pointmaze-medium-v0", "--dataset-type", "navigate"),
            *("--episodes", 30, "--max-rows", 21, "--out", out),
        ],
        moments=20,
        already="already finished",
        seed=5,
    )


@pytest.mark.slow
def test_twenty_moments_of_two_that_merge(base: Path, tmp_path: Path) -> None:
    more = write_npz(tmp_path / "more.npz", [20] * 30, seed=1)
    code, said = run(shard(more, tmp_path / "other"), tmp_path / "other.log")
    assert code == 0, said
    drill(
        tmp_path,
        None,
        lambda out: ["merge", base, tmp_path / "other", "--out", out],
        moments=20,
        already="already finished",
        seed=6,
    )
