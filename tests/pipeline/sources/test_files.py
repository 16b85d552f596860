"""Many files at once, on disk and on a real Cloud Storage server on loopback."""

import json
import os
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from google.cloud import storage

from pipeline.assembly.plan import describe_inputs
from pipeline.cli import main
from pipeline.sources import files, seek_points
from pipeline.sources.detection import find_sources
from pipeline.sources.episodes import cut
from pipeline.sources.kinds import KINDS
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.fake_gcs import failing, serve

LENGTHS = (5, 5, 7)


@pytest.fixture
def folder(make_npz, tmp_path):
    """Eleven files and the validation files of two of them."""
    (tmp_path / "data").mkdir()
    for i in range(11):
        make_npz(LENGTHS, name=f"data/cube-single-play-v0-{i:03d}.npz", seed=i)
    for i in (0, 10):
        name = f"data/cube-single-play-v0-{i:03d}-val.npz"
        make_npz((4,), name=name, seed=100 + i)
    (tmp_path / "data" / "notes.txt").write_text("not data")
    return tmp_path / "data"


def shard(path, out, *options):
    arguments = ["shard", str(path), "--dataset", "cube-single-play", "--out", str(out)]
    return main([*arguments, *options])


def test_a_folder_is_one_store_with_its_validation_files(folder, tmp_path):
    assert shard(folder, tmp_path / "store") == 0
    value = Store(str(tmp_path / "store")).manifest
    assert [part.split for part in value.parts] == ["train"] * 11 + ["val"] * 2
    names = [part.origin.name for part in value.parts]
    assert names[10] == "cube-single-play-v0-010.npz"
    assert names[12] == "cube-single-play-v0-010-val.npz"
    data = np.load(folder / names[10])["observations"]
    store = Store(str(tmp_path / "store"))
    np.testing.assert_array_equal(store.read("observations")[-17:], data)


@pytest.mark.parametrize("pattern", ["/", "/*.npz", "/*-v0-???.npz"])
def test_folders_and_globs_mean_the_same_files(folder, pattern):
    expected = find_sources(str(folder), dataset="cube-single-play")
    assert find_sources(f"{folder}{pattern}", dataset="cube-single-play") == expected
    assert len(expected[1]) == 13


def test_a_validation_file_asked_for_alone_is_data_to_train_on(folder):
    path = str(folder / "cube-single-play-v0-000-val.npz")
    assert files.group_by_split([path]) == {"train": [path]}


@pytest.mark.parametrize("pattern", ["nothing*.npz", "nothing", "."])
def test_b3_a_glob_that_matches_nothing_is_an_error(tmp_path, pattern, capsys):
    assert shard(tmp_path / pattern, tmp_path / "store") == 2
    error = capsys.readouterr().err
    assert pattern.strip(".") in error
    assert ("found an empty folder" if pattern == "." else "found nothing") in error
    assert error.count("\n") == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            (),
            "with data/main_data.hdf5 or main_data.hdf5 or meta/info.json or features",
        ),
        (("--source", "minari"), ".h5 files or with data/main_data.hdf5 or main_data"),
        (("--source", "lerobot"), "expected a folder with meta/info.json"),
    ],
)
def test_a_folder_of_another_kind_is_described(tmp_path, source, expected, capsys):
    # Zarr, Minari's data sets in Arrow, or the folder above that of a data set.
    root = tmp_path / "data.zarr"
    for name in ("actions", "observations"):
        (root / name).mkdir(parents=True)
    (root / ".zgroup").write_text("{}")
    assert shard(root, tmp_path / "store", *source) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "found a folder of .zgroup, actions, observations; check the path" in error


def test_f5_a_file_cut_short_among_ten_good_ones(folder, tmp_path, capsys):
    bad = folder / "cube-single-play-v0-003.npz"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) * 3 // 10])
    assert shard(folder, tmp_path / "store") == 2
    error = capsys.readouterr().err
    assert f"{bad}: expected a whole npz archive" in error
    assert f"{len(whole) * 3 // 10:,} bytes" in error
    assert not (tmp_path / "store").exists()
    assert shard(folder, tmp_path / "store", "--on-bad-file", "skip") == 0
    assert "left out: cube-single-play-v0-003.npz" in capsys.readouterr().out
    facts = json.loads((tmp_path / "store" / "dataset.json").read_text())
    assert set(facts["skipped"]) == {bad.name}
    assert str(tmp_path) not in json.dumps(facts)
    assert Store(str(tmp_path / "store")).rows() == 10 * 17


def test_bad_files_of_one_name_are_all_listed(make_npz, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bad.npz").write_bytes(b"PK\3\4 and no more" + name.encode())
    paths = [make_npz(), *(str(tmp_path / name / "bad.npz") for name in ("a", "b"))]
    sources = [("train", OgbenchNpz(path)) for path in paths]
    skipped = describe_inputs(sources, on_bad_file="skip").skipped
    assert set(skipped) == {"bad.npz", "bad.npz (2)"}


def test_f5_nothing_but_bad_files_is_an_error(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 and no more")
    sources = [("train", OgbenchNpz(str(tmp_path / "bad.npz")))]
    with pytest.raises(DataFormatError, match=r"got none of 1 \(bad\.npz: expected"):
        describe_inputs(sources, on_bad_file="skip")


@pytest.mark.parametrize(
    ("name", "dataset", "members", "kind"),
    [
        ("a.npz", "cube-single-play-v0", {"rewards": np.zeros(17)}, "ogbench"),
        ("a.npz", "mine", {"rewards": np.zeros(17)}, "npz"),
    ],
)
def test_sources_are_inferred(make_npz, name, dataset, members, kind):
    path = make_npz(name=name, **members)
    assert find_sources(path, dataset=dataset)[0] == kind
    assert find_sources(path, dataset=dataset, kind="npz")[0] == "npz"


@pytest.mark.parametrize("name", ["exp [v1]", "a*b", "q?", "[/a]", "[red]x[/red]"])
def test_a_path_that_is_there_is_no_pattern(make_npz, tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    path = make_npz(name=f"{name}/x[0].npz")
    assert files.find(path, (".npz",)) == [path]
    assert files.find(f"{tmp_path / name}", (".npz",)) == [path]
    assert files.find(f"{tmp_path / name}/", (".npz",)) == [path]
    kind, [(split, source)] = find_sources(path, dataset="cube-single-play")
    assert (kind, split, source) == ("ogbench", "train", OgbenchNpz(path))


def test_a_pattern_beside_such_a_path_is_one_still(make_npz, tmp_path):
    (tmp_path / "a1").mkdir()
    path = make_npz(name="a1/x.npz")
    assert files.find(f"{tmp_path}/a[0-9]/*.npz", (".npz",)) == [path]
    assert files.find(f"{tmp_path}/a?/x.npz", (".npz",)) == [path]


def write_hdf5(path, *names):
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros((3, 1))
    return str(path)


@pytest.mark.parametrize(
    ("name", "members", "kind"),
    [
        ("a.hdf5", ("episode_5/observations", "episode_12/observations"), "minari"),
        ("a.h5", ("observations", "actions"), "d4rl"),
        ("a.data", ("observations", "actions"), "d4rl"),
        ("a.data", ("episode_0/actions",), "minari"),
    ],
)
def test_hdf5_is_told_by_what_it_holds(tmp_path, name, members, kind):
    path = write_hdf5(tmp_path / name, *members)
    assert find_sources(path, dataset="mine")[0] == kind


def test_what_is_of_no_kind_is_told_with_what_it_holds(tmp_path, make_npz):
    path = write_hdf5(tmp_path / "traces.hdf5", "runs/0/obs", "mask/train")
    with pytest.raises(DataFormatError, match=r"traces.*got mask, runs; ") as said:
        find_sources(path, dataset="mine")
    for kind in KINDS:
        assert kind in str(said.value)
    np.savez(tmp_path / "pixels.npz", image=np.zeros(3), label=np.zeros(3))
    with pytest.raises(DataFormatError, match=r"pixels.*got image, label; "):
        find_sources(str(tmp_path / "pixels.npz"), dataset="mine")


def test_a_damaged_first_file_does_not_decide(make_npz, tmp_path):
    good = make_npz(name="b.npz", rewards=np.zeros(17))
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 and no more")
    kind, found = find_sources(str(tmp_path / "*.npz"), dataset="mine")
    assert (kind, len(found)) == ("npz", 2)
    assert found[1][1].path == good


def test_files_of_several_kinds_are_refused(make_npz, tmp_path):
    make_npz(name="a.npz")
    write_hdf5(tmp_path / "b.hdf5", "observations")
    with pytest.raises(UsageError, match=r"b\.hdf5: expected files of one kind"):
        find_sources(str(tmp_path), dataset="cube-single-play")


@pytest.fixture(scope="module")
def bucket():
    """A bucket on a Cloud Storage server of its own, without any credentials."""
    files._client.cache_clear()
    with serve() as client:
        yield client.create_bucket("vast-rl-test")
    files._client.cache_clear()


def upload(bucket, folder, prefix):
    for path in sorted(Path(folder).iterdir()):
        bucket.blob(f"{prefix}/{path.name}").upload_from_filename(str(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_gs_paths_and_globs_give_the_bytes_of_local_ones(
    bucket, folder, tmp_path, read_tree, monkeypatch
):
    monkeypatch.setattr(files, "_REQUEST_BYTES", 512 * 1024)
    for path in sorted(folder.iterdir())[4:]:
        path.unlink()
    upload(bucket, folder, "raw")
    names = [path.name for path in sorted(folder.glob("*.npz"))]
    assert len(names) == 4
    for pattern in ("raw", "raw/", "raw/*.npz", "r?w/*-v0-*.npz"):
        found = files.find(f"gs://vast-rl-test/{pattern}", (".npz",))
        assert [path.rpartition("/")[2] for path in found] == names
    train = files.find("gs://vast-rl-test/raw/*-v0-???.npz", (".npz",))
    assert len(files.group_by_split(train)["val"]) == 1
    assert shard(folder, tmp_path / "local") == 0
    local = read_tree(tmp_path / "local")
    # From a bucket to a bucket, and read back from there.
    target = "gs://vast-rl-test/stores/one"
    assert shard("gs://vast-rl-test/raw", target) == 0
    blobs = {
        blob.name.removeprefix("stores/one/"): blob.download_as_bytes()
        for blob in bucket.list_blobs(prefix="stores/one/")
    }
    assert blobs == local
    assert main(["verify", target]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_gs_globs_that_match_nothing_are_errors(bucket, tmp_path, capsys):
    for pattern in ("nothing.npz", "noth*ing/*.npz"):
        assert shard(f"gs://vast-rl-test/{pattern}", tmp_path / "store") == 2
        assert "found nothing" in capsys.readouterr().err
    assert shard("s3://bucket/x.npz", tmp_path / "store") == 2
    assert "gs://bucket/path" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_part_of_a_bucket_s_file_fetches_nothing_of_what_lies_before(
    bucket, make_npz, tmp_path, monkeypatch
):
    path = make_npz((500,) * 40, name="large.npz")
    bucket.blob("large.npz").upload_from_filename(path)
    monkeypatch.setattr(seek_points, "_SPACING_BYTES", (32 << 10) + 1)
    monkeypatch.setattr(files, "_REQUEST_BYTES", 64 << 10)
    source = OgbenchNpz("gs://vast-rl-test/large.npz")
    parts = cut(source.describe().episodes, 2000)
    divided = source.starting_at(parts)
    fetched = []
    download = storage.Blob.download_as_bytes

    def note(blob, **options):
        fetched.append(len(found := download(blob, **options)))
        return found

    monkeypatch.setattr(storage.Blob, "download_as_bytes", note)
    for part, starting, expected in zip(
        parts, divided, OgbenchNpz(path).read(parts), strict=True
    ):
        fetched.clear()
        (block,) = starting.read([part])
        for name, values in expected.rows.items():
            np.testing.assert_array_equal(block.rows[name], values)
        # A tenth, the directory, and the ends of requests.
        assert 0 < sum(fetched) < os.path.getsize(path) / 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_files_of_a_bucket_are_looked_at_side_by_side(
    bucket, folder, tmp_path, monkeypatch
):
    paths = files.find(str(folder), (".npz",))
    upload(bucket, folder, "slow")
    there = files.find("gs://vast-rl-test/slow", (".npz",))
    assert len(there) == len(paths) > 10
    most = at_once = 0
    describe = OgbenchNpz.describe

    def noted(source):
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        try:
            return describe(source)
        finally:
            at_once -= 1

    monkeypatch.setattr(OgbenchNpz, "describe", noted)
    with failing(delay_s=0.05) as proxy:
        files._client.cache_clear()
        looked = describe_inputs([("train", OgbenchNpz(path)) for path in there])
        asked = sum(proxy.counts.values())
    files._client.cache_clear()
    assert most > 3
    expected = [OgbenchNpz(path).describe() for path in paths]
    assert [facts for _, _, facts in looked.described] == expected
    # Its size, the directory, a header of each member, the ends of episodes.
    assert asked / len(there) < 12


def test_of_many_bad_files_the_first_in_order_is_named(tmp_path):
    paths = [tmp_path / f"{number}.npz" for number in range(20)]
    for path in paths:
        path.write_bytes(b"PK no archive")
    sources = [("train", OgbenchNpz(str(path))) for path in paths]
    with pytest.raises(DataFormatError, match=r"/0\.npz"):
        describe_inputs(sources)


def test_where_one_fails_the_rest_is_left():
    begun = []

    def work(number):
        begun.append(number)
        if number == 0:
            raise UsageError("the first")
        time.sleep(0.05)
        return number

    with pytest.raises(UsageError, match="the first"):
        files.map_concurrently(work, range(1000))
    assert 0 in begun
    assert len(begun) < 100
    assert files.map_concurrently(work, range(1, 4)) == [1, 2, 3]
