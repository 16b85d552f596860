"""A run's folder on disk: what is there, and which folders a pattern stands for."""

import os
from pathlib import Path

import pytest
from etils import epath

from pipeline.store.errors import DataFormatError, UsageError
from trainer.errors import StorageError
from trainer.runs.folder import (
    METRICS_FILE,
    RUN_FILE,
    RunFolder,
    check_writable,
    find_runs,
)


def make_run(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    folder.write(RUN_FILE, b"{}")
    return folder


def test_a_folder_need_not_exist(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run")
    assert not folder.exists()
    assert folder.read(METRICS_FILE).data is None
    assert folder.read_lines(METRICS_FILE) == []
    assert not folder.remote
    assert str(folder) == str(tmp_path / "run")
    assert make_run(tmp_path / "run").exists()


def test_the_name_of_here_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunFolder.open(".").name == tmp_path.name
    assert RunFolder.open("gs://bucket/runs/a").name == "a"
    assert RunFolder.open("gs://bucket/runs/a").remote


def test_half_a_line_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    folder.write(METRICS_FILE, b'{"step": 1}\n{"step": 2}\n{"st')
    assert folder.read_lines(METRICS_FILE) == [{"step": 1}, {"step": 2}]


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    before = folder.read(RUN_FILE)
    folder.commit(RUN_FILE, b"{1}", replacing=before)
    with pytest.raises(DataFormatError, match="another run has committed"):
        folder.commit(RUN_FILE, b"{2}", replacing=before)
    assert folder.read(RUN_FILE).data == b"{1}"


def test_patterns_stand_for_runs_only(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a-2", "a-1", ".a-3", "b-1")]
    (tmp_path / "a-0").mkdir()
    assert find_runs(tmp_path / "a-*") == [runs[1], runs[0]]
    assert find_runs(tmp_path / ".a*") == [runs[2]]
    # A folder as given is taken whatever it holds: what reads it says what is wrong.
    assert find_runs(tmp_path / "a-0") == [RunFolder.open(tmp_path / "a-0")]
    with pytest.raises(DataFormatError, match="matches no folder of a run"):
        find_runs(tmp_path / "c-*")


def test_a_folder_may_be_called_as_a_pattern_is_written(tmp_path: Path) -> None:
    named = make_run(tmp_path / "a[1]")
    make_run(tmp_path / "a1")
    assert find_runs(tmp_path / "a[1]") == [named]


def test_other_object_stores_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a local path or gs://"):
        RunFolder.open("s3://bucket/run")


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(epath.Path(tmp_path / "made" / "later"))
    check_writable(epath.Path("gs://bucket/run"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"expected a folder, but \S+file is a file"):
        check_writable(epath.Path(tmp_path / "file" / "later"))
    # Tests may run as root, who may write everywhere.
    refused = {str(tmp_path)}
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in refused)
    with pytest.raises(StorageError, match="later: cannot be written to; check its"):
        check_writable(epath.Path(tmp_path / "made" / "later"))
