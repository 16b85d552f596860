"""A store's page: which episodes are read, what is shown of them, and frames."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.domains import frames
from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.frames import PhysicsState
from pipeline.domains.opengl import NoBackendError
from pipeline.inspection import sample, store_page
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import PartManifest
from pipeline.store.reader import Store
from tests.browsers import CHROMIUM, SCREENS, check_page, open_browser
from tests.fake_gcs import serve
from tests.stores import write_store

PARTS, VAL = ((40, 30, 1, 25), (50, 12)), ((20, 21),)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return write_store(folder / "store", PARTS, val=VAL, discounts=(0.9, 0.99))


def test_every_episode_against_its_rows(root: Path) -> None:
    store = Store(str(root))
    found = sample.draw_sample(store)
    assert found.total == len(found.episodes) == 8
    assert all(each.read == each.length for each in found.episodes)
    assert [each.number for each in found.episodes] == [*range(6), 0, 1]
    assert [each.split for each in found.episodes] == ["train"] * 6 + ["val"] * 2
    solved = 0
    for split in ("train", "val"):
        table = store.episodes(split)
        rewards, masks, returns = (
            store.read(name, split=split)
            for name in (schema.REWARDS, schema.MASKS, "returns/0.99")
        )
        of_split = [each for each in found.episodes if each.split == split]
        for each, start, length in zip(
            of_split, table.starts, table.lengths, strict=True
        ):
            rows = slice(start, start + length)
            assert each.length == length
            np.testing.assert_allclose(each.rewards, rewards[rows][:-1].sum(axis=0))
            np.testing.assert_array_equal(each.returns[1], returns[start])
            lengths = [stretch.sum() for stretch in each.stretches]
            assert lengths == (masks[rows] == 0).sum(axis=0).tolist()
            solved += sum(lengths)
    assert solved > 5


def test_stretches() -> None:
    for text, lengths in (("", []), ("000", []), ("1", [1]), ("110100111", [2, 1, 3])):
        solved = np.array([each == "1" for each in text], bool)
        assert sample.measure_stretches(solved).tolist() == lengths


def test_a_sample_is_even_and_bounded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(root))
    found = sample.draw_sample(store, most=3)
    assert [(e.split, e.number) for e in found.episodes] == [
        ("train", 0),
        ("train", 4),
        ("val", 1),
    ]
    assert len(found.episodes) < found.total == len(found.lengths) == 8
    monkeypatch.setattr(sample, "_MAX_ROWS", 55)  # Two episodes of 24.9 rows.
    monkeypatch.setattr(sample, "_EPISODE_ROWS", 15)
    read: list[str] = []

    def count_rows(part: PartManifest, field: str, first: int, last: int) -> Any:
        read.extend([field] * (last - first))
        return Store.read_rows(store, part, field, first, last)

    monkeypatch.setattr(store, "read_rows", count_rows)
    found = sample.draw_sample(store)
    # Of 199 rows, those of two episodes and the first return of each are read.
    assert Counter(read) == {
        schema.REWARDS: 30,
        schema.MASKS: 30,
        "returns/0.9": 2,
        "returns/0.99": 2,
    }
    assert [(each.length, each.read) for each in found.episodes] == [(40, 15), (21, 15)]
    notes = store_page.make_page(store).notes
    assert "made from 2 of 8 episodes, at even distances" in notes[0]
    assert "2 of these episodes are too long to read whole" in notes[1]


def test_the_page_of_a_store(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    assert main(["inspect", str(root), "--html", str(file)]) == 0
    assert f"{file}: written" in capsys.readouterr().out.replace("\n", "")
    page = file.read_text()
    assert "This page is made from every episode" in page
    assert "199 rows in 8 episodes" in page
    assert "No frames: they are drawn from physics states" in page
    assert page.count("data:image/svg+xml;base64,") == 6
    for wrong in ("page.pdf", str(tmp_path / "missing" / "page.html")):
        assert main(["inspect", str(root), "--html", wrong]) == 2
        assert "--html: expected a file" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_page_of_a_store_on_a_bucket(root: Path, tmp_path: Path) -> None:
    store_page.write_page(Store(str(root)), str(tmp_path / "disk.html"))
    with serve() as client:
        bucket = client.create_bucket("vast-pages")
        for file in filter(Path.is_file, root.rglob("*")):
            name = f"store/{file.relative_to(root)}"
            bucket.blob(name).upload_from_filename(str(file))
        command = ["inspect", "gs://vast-pages/store", "--html"]
        assert main([*command, str(tmp_path / "bucket.html")]) == 0
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("disk", "bucket")]
    assert pages[0] == pages[1]


# The return of 9 rows, which are 8 steps of reward -1.
REST = f"{-sum(0.99**step for step in range(8)):.5g}"


def test_a_store_of_many_tasks_and_none_solved(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", ((9,),), tasks=9, share=0.0)
    page = store_page.make_page(Store(str(root)))
    assert "first 6 of 9 tasks" in page.notes[-1]
    assert page.episodes[0].title == "Episodes train 0"
    assert "solved" not in [picture.name for picture in page.pictures]
    assert page.episodes[0].rows[0][2:5] == ["-8", "never", REST]


def test_an_empty_store_is_refused(root: Path, tmp_path: Path) -> None:
    store = Store(str(root))
    object.__setattr__(store.manifest, "parts", ())
    with pytest.raises(DataFormatError, match="expected episodes to show"):
        store_page.write_page(store, str(tmp_path / "page.html"))


def draws_here() -> bool:
    """Tells whether this machine has a driver that MuJoCo can draw with."""
    names = ("libEGL.so.1", "libOSMesa.so.8", "libOSMesa.so.6")
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    return any((Path(f) / name).exists() for f in folders for name in names)


MAZE = TaskEnvironment("pointmaze-medium-singletask-task1-v0")
STATES = [PhysicsState(np.array([x, 0.0]), np.zeros(2), None) for x in (0.0, 4.0)]


@pytest.mark.skipif(not draws_here(), reason="no OpenGL driver here")
def test_states_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    one, other = frames.draw_states(MAZE, STATES, width=96, height=72)
    assert one.shape == (72, 96, 3)
    assert one.dtype == np.uint8
    assert (one != other).any()


def test_what_cannot_be_drawn_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "choose_backends", lambda environ: ("nonesuch",))
    with pytest.raises(NoBackendError, match=r"nothing is drawn .*nonesuch: ") as error:
        frames.draw_states(MAZE, STATES, width=96, height=72)
    assert "\n" not in str(error.value)


def test_a_process_that_dies_while_drawing_is_outlived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "choose_backends", lambda environ: ("any",))
    # os.abort takes no arguments, so calling it with some raises an error.
    monkeypatch.setattr(frames, "_serve", os.abort)
    with pytest.raises(NoBackendError, match=r"has died \(exit code 1\)"):
        frames.draw_states(MAZE, STATES, width=96, height=72)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: make browser")
def test_the_page_on_a_screen(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    store_page.write_page(Store(str(root)), str(file))
    with open_browser() as browser:
        for width, scheme in SCREENS:
            check_page(browser, file, width, scheme, pictures=6)
