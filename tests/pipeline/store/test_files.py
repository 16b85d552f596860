import os
import resource
from types import SimpleNamespace

import pytest

from pipeline.store import files
from pipeline.store.errors import DataFormatError, UsageError


def test_a_file_that_may_not_be_written_comes_with_advice():
    with (
        pytest.raises(OSError, match=r"x/y: PERMISSION_DENIED: No; check the permiss"),
        files.storage_errors("x/y"),
    ):
        raise ValueError("PERMISSION_DENIED: No")


def test_an_absent_file_reads_as_none(tmp_path):
    assert files.read(str(tmp_path), "a.json").data is None


def test_what_is_written_is_read_back_and_replaced(tmp_path):
    root = str(tmp_path / "new" / "folder")
    files.write(root, "deep/a.json", b"one")
    assert files.read(root, "deep/a.json").data == b"one"
    files.write(root, "deep/a.json", b"two")
    assert files.read(root, "deep/a.json").data == b"two"


def test_half_a_file_on_disk_never_has_its_name(tmp_path):
    file = tmp_path / "new" / "page.html"
    files.write_local(file, b"whole")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files stands for a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"new/page\.html: "):
            files.write_local(file, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert file.read_bytes() == b"whole"
    assert list(file.parent.iterdir()) == [file]


def test_of_two_commits_from_one_state_the_first_wins(tmp_path):
    root = str(tmp_path)
    absent = files.read(root, "a.json")
    files.commit(root, "a.json", b"first", replacing=absent)
    with pytest.raises(DataFormatError, match="another run has committed"):
        files.commit(root, "a.json", b"second", replacing=absent)
    assert files.read(root, "a.json").data == b"first"


def test_a_commit_may_be_repeated_and_may_follow_another(tmp_path):
    root = str(tmp_path)
    absent = files.read(root, "a.json")
    files.commit(root, "a.json", b"first", replacing=absent)
    files.commit(root, "a.json", b"first", replacing=absent)
    files.commit(root, "a.json", b"next", replacing=files.read(root, "a.json"))
    assert files.read(root, "a.json").data == b"next"


def test_names_are_listed_and_deleted_below_a_folder_only(tmp_path):
    root = str(tmp_path)
    for name in ("parts/1/a", "parts/1/b/c", "parts/10/a", "other"):
        files.write(root, name, b"x")
    assert files.list_names(root, "parts/1") == ["a", "b/c"]
    assert files.list_names(root, "nothing") == []
    for path in ("parts/1", "nothing"):
        files.delete_where(root, path, lambda name: True)
    assert files.list_names(root) == ["other", "parts/10/a"]
    assert not (tmp_path / "parts" / "1").exists()


def test_only_what_is_meant_is_deleted_and_no_folder_of_others(tmp_path):
    root = str(tmp_path)
    for name in ("p/ours/1", "p/both/1", "p/both/2"):
        files.write(root, name, b"x")
    (tmp_path / "p" / "empty").mkdir()
    away = tmp_path / "away"
    away.mkdir()
    (away / "1").write_bytes(b"x")
    (tmp_path / "p" / "link").symlink_to(away)
    files.delete_where(root, "p", lambda name: name.endswith("/1"))
    assert files.list_names(root, "p/both") == ["2"]
    assert not (tmp_path / "p" / "ours").exists()
    assert (tmp_path / "p" / "empty").is_dir()
    assert (away / "1").exists()


def test_a_file_that_is_not_ours_is_found(tmp_path):
    root = str(tmp_path)
    assert files.find_foreign(f"{root}/nothing", lambda name: False) is None
    for name in ("a.json", "deep/b.json", "deep/notes.txt"):
        files.write(root, name, b"x")
    found = files.find_foreign(root, lambda name: name.endswith(".json"))
    assert found == "deep/notes.txt"
    assert files.find_foreign(root, lambda name: True) is None


UNLOCKED = {"file_io_locking": {"mode": "none"}}


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("gs://bucket", "", {"driver": "gcs", "bucket": "bucket", "path": ""}),
        ("gs://bucket/", "a", {"driver": "gcs", "bucket": "bucket", "path": "a/"}),
        ("gs://b/c/d/", "e/f", {"driver": "gcs", "bucket": "b", "path": "c/d/e/f/"}),
        ("/tmp/s", "e", {"driver": "file", "path": "/tmp/s/e/", **UNLOCKED}),
    ],
)
def test_folders_are_described_to_tensorstore(root, path, expected):
    assert files.kvstore_spec(root, path) == expected


def test_other_object_stores_are_refused():
    assert files.is_remote("s3://bucket")
    with pytest.raises(ValueError, match="gs://bucket/path"):
        files.kvstore_spec("s3://bucket")


def test_a_path_of_other_bytes_than_utf_8_is_refused(tmp_path):
    files.write(str(tmp_path / "ünï cødé 日本"), "a.json", b"x")
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for work in (files.read, files.list_names):
        with pytest.raises(UsageError, match=r"expected a path in UTF-8.*caf\\udce9"):
            work(folder, "a.json")


def test_a_slow_upload_to_a_bucket_is_waited_for(monkeypatch):
    """A bucket has no lock that a stopped process could hold."""
    waits = []

    class Request:
        generation = b"1"

        def result(self, timeout=None):
            waits.append(timeout)
            return self

    folder = SimpleNamespace(write=lambda *file, **condition: Request())
    opened = SimpleNamespace(result=lambda: folder)
    store = SimpleNamespace(open=lambda spec: opened)
    monkeypatch.setattr(files, "ts", SimpleNamespace(KvStore=store))
    absent = files.Content(None, b"")
    files.commit("gs://bucket/store", "dataset.json", b"{}", replacing=absent)
    assert waits == [None]
