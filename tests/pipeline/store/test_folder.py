import pytest

from pipeline.assembly.commit import claim, commit_store
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from pipeline.store.folder import check_folder
from tests.fake_gcs import serve
from tests.parts import write_alone


def test_a_folder_that_is_not_there_or_empty_is_free(tmp_path):
    check_folder(str(tmp_path / "new"))
    (tmp_path / "old" / "lost+found").mkdir(parents=True)
    check_folder(str(tmp_path / "old"))


@pytest.mark.parametrize("name", ["a.jpg", "parts/photos/a.jpg", "staging/a.npz"])
def test_a_folder_of_others_is_refused(tmp_path, name):
    files.write(str(tmp_path), name, b"mine")
    with pytest.raises(DataFormatError, match=f"holds {name} and no store; nothing"):
        check_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["mine.npz", "mine.npz/store"])
def test_a_file_is_no_folder(tmp_path, name):
    (tmp_path / "mine.npz").write_bytes(b"mine")
    with pytest.raises(DataFormatError, match=r"but \S+mine\.npz is a file; choose"):
        check_folder(str(tmp_path / name))


def test_what_we_began_may_be_gone_on_with(make_npz, make_plan):
    plan = make_plan(make_npz())
    write_alone(plan.parts[0])
    check_folder(plan.root)  # Even without a claim: parts have a shape of their own.
    files.write(plan.root, "notes.txt", b"mine")
    with pytest.raises(DataFormatError, match=r"holds notes\.txt"):
        claim(plan)
    files.delete(plan.root, "notes.txt")
    with claim(plan) as claimed:
        files.write(plan.root, "notes.txt", b"mine")
        check_folder(plan.root)
        commit_store(plan, write_alone(*plan.parts), claimed)
    check_folder(plan.root)
    assert files.read(plan.root, "notes.txt").data == b"mine"


def test_a_claim_of_other_programs_is_none_of_ours(tmp_path):
    files.write(str(tmp_path), "shard.json", b"{}")
    files.write(str(tmp_path), "a.jpg", b"mine")
    with pytest.raises(DataFormatError, match=r"holds a\.jpg"):
        check_folder(str(tmp_path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bucket_is_treated_as_a_disk_is():
    with serve() as client:
        client.create_bucket("vast-folder")
        root = "gs://vast-folder/store"
        check_folder(root)
        for name in ("parts/photos/a.jpg", "parts/00000/part.json"):
            files.write(root, name, b"mine")
        with pytest.raises(DataFormatError, match=r"holds parts/photos/a\.jpg"):
            check_folder(root)
        files.delete_where(root, "parts", lambda name: name.endswith("part.json"))
        assert files.list_names(root) == ["parts/photos/a.jpg"]
