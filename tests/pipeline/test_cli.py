import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import ogbench.utils
import pytest

import pipeline
from pipeline.beam import runners
from pipeline.cli import main
from pipeline.store import claims
from pipeline.store.reader import Store
from tests.stores import write_store

LENGTHS = (5, 5, 7, 4, 1, 6)
ROOT = Path(pipeline.__file__).parents[1]
COLLECT = ("collect", "cube-single-v0", "--dataset-type", "play", "--max-rows", "11")


def command(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment},
    )


def succeed(*arguments, cwd, **environment):
    done = command(*arguments, cwd=cwd, **environment)
    said = done.stderr.splitlines()
    # Neither Beam nor a simulator logs anything beside the commands' own lines.
    ours = ("Collecting cube-single", "collect: ", "write: ")
    assert all(line.startswith(ours) for line in said), done
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A folder with a store collected from the command line, and its npz."""
    folder = tmp_path_factory.mktemp("collection")
    options = ("--episodes", 3, "--val-episodes", 1, "--seed", 7)
    succeed(*COLLECT, *options, "--out", "one", "--npz", "a.npz", cwd=folder)
    return folder


def test_a_collection_does_not_depend_on_the_number_of_workers(collection, read_tree):
    options = ("--episodes", 3, "--val-episodes", 1, "--seed", 7, "--workers", 2)
    # No proxy listens at this port, so a call through it would fail.
    proxy = {"http_proxy": "http://127.0.0.1:9"}
    succeed(*COLLECT, *options, "--out", "two", cwd=collection, **proxy)
    one = read_tree(collection / "one")
    assert one == read_tree(collection / "two")
    assert {name.split("/")[0] for name in one} == {"dataset.json", "parts"}


@pytest.mark.slow
def test_s3_a_killed_collection_goes_on_where_it_stopped(tmp_path, read_tree):
    arguments = [*COLLECT[:-1], "101", "--episodes", "8"]
    first = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments, "--out", "killed"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    staged = tmp_path / "killed" / "staging" / "train"
    while not staged.exists() or len(list(staged.glob("*.npz"))) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = command("inspect", "killed", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = command(*arguments, "--out", "killed", cwd=tmp_path)
    assert done.returncode == 0
    assert "of them are staged already" in done.stderr
    assert ", 0 of them are staged already" not in done.stderr
    succeed(*arguments, "--out", "clean", cwd=tmp_path)
    assert read_tree(tmp_path / "killed") == read_tree(tmp_path / "clean")


def test_a_collection_is_sound_and_is_described(collection):
    out = succeed("verify", "one", "--deep", cwd=collection)
    assert "sound; 2 parts, 44 rows" in out
    facts = json.loads(succeed("inspect", "one", "--json", cwd=collection))
    assert facts["splits"]["train"] == {
        "parts": 1,
        "episodes": 3,
        "rows": 33,
        "transitions": 30,
    }
    assert [task["task"] for task in facts["tasks"]] == [1, 2, 3, 4, 5]
    assert facts["fields"]["observations"]["shape"] == [28]
    assert facts["versions"]["mujoco"]


def test_its_npz_makes_an_equal_store(collection):
    out = succeed(
        *("shard", "a.npz", "--dataset", "cube-single-play", "--out", "from-npz"),
        cwd=collection,
    )
    assert "train: 33 rows in 3 episodes" in out
    assert "val: 11 rows in 1 episode" in out
    manifests = [
        json.loads((collection / name / "dataset.json").read_text())
        for name in ("one", "from-npz")
    ]
    assert manifests[0]["tasks"] == manifests[1]["tasks"]
    checksums = [[part["checksums"] for part in m["parts"]] for m in manifests]
    assert checksums[0] == checksums[1]


def test_ogbench_reads_the_npz(collection):
    data = ogbench.utils.load_dataset(str(collection / "a.npz"), add_info=True)
    assert data["observations"].shape == (30, 28)
    assert np.flatnonzero(data["terminals"]).tolist() == [9, 19, 29]
    succeed("export", "one", "--npz", "b.npz", cwd=collection)
    assert (collection / "a.npz").read_bytes() == (collection / "b.npz").read_bytes()


def shard(path, tmp_path, *options, out="store"):
    return main(
        [
            *("shard", path, "--dataset", "cube-single-play"),
            *("--out", str(tmp_path / out), *map(str, options)),
        ]
    )


def assert_one_line(capsys, *parts):
    out, error = capsys.readouterr()
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    for part in parts:
        assert part in error
    return out


def test_the_plan_is_printed_and_a_dry_run_stops_there(make_npz, tmp_path, capsys):
    path = make_npz(LENGTHS)
    assert shard(path, tmp_path, "--part-rows", 12, "--dry-run") == 0
    out, _ = capsys.readouterr()
    assert "train: 28 rows in 6 episodes, 2 parts, from cube-single-play.npz" in out
    assert "5 tasks, discounts 0.99" in out
    assert "1 episode of one row, without a transition" in out
    assert not (tmp_path / "store").exists()


def test_sharding_again_finds_it_finished(make_npz, tmp_path, capsys, read_tree):
    path = make_npz(LENGTHS)
    assert shard(path, tmp_path) == 0
    before = read_tree(tmp_path / "store")
    assert "finished, 28 rows in 1 part," in capsys.readouterr().out
    assert shard(path, tmp_path) == 0
    assert "already finished, nothing to do\n" in capsys.readouterr().out
    assert shard(path, tmp_path, "--discounts", 0.5) == 2
    assert_one_line(capsys, "already holds a finished store", "choose another folder")
    assert read_tree(tmp_path / "store") == before


def test_sharding_the_first_files_of_a_store_again_tells_of_the_others(
    make_npz, tmp_path, capsys
):
    make_npz(LENGTHS, name="a.npz")
    make_npz((6, 9, 9), name="b.npz", seed=5)
    assert shard(str(tmp_path / "*.npz"), tmp_path) == 0
    capsys.readouterr()
    assert shard(str(tmp_path / "a.npz"), tmp_path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing to do; it also holds 24 rows of other input, give another" in said


def test_n6_labels_of_ogbench_may_be_of_the_state_after_the_step(
    make_npz, tmp_path, capsys
):
    path = make_npz(LENGTHS)
    assert shard(path, tmp_path) == 0
    assert shard(path, tmp_path / "b", "--success-timing", "post") == 0
    before, after = (Store(str(f / "store")) for f in (tmp_path, tmp_path / "b"))
    for store, timing in ((before, "pre"), (after, "post")):
        assert {task.success_timing for task in store.manifest.tasks} == {timing}
    (task, *_) = after.manifest.tasks
    assert task.environment_kwargs == {"success_timing": "post"}
    solved, reached = (s.read("masks", split="train") for s in (before, after))
    inside = np.delete(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS) - 1)
    assert not solved[inside].all()
    np.testing.assert_array_equal(reached[inside], solved[inside + 1])
    capsys.readouterr()
    assert main(["verify", "--deep", after.root]) == 0
    assert shard(path, tmp_path / "c", "--environment", "cube-single-v0") == 2
    assert_one_line(capsys, "--environment: expected none for data of OGBench")


def test_a_twin_is_refused_until_it_is_told_to_take_over(make_npz, tmp_path, capsys):
    path, out = make_npz(LENGTHS), tmp_path / "store"
    with claims.hold(str(out), "shard.json", ["sha256:0"], what="store") as claim:
        assert shard(path, tmp_path) == 2
        assert_one_line(capsys, f"process {os.getpid()} on", "add --take-over")
        assert claim.stands()
        assert shard(path, tmp_path, "--take-over") == 0
        assert not claim.stands()
    assert not (out / "shard.json").exists()
    (lost,) = out.rglob("qvel/zarr.json")
    lost.unlink()
    assert shard(path, tmp_path) == 2
    assert_one_line(capsys, "says that this store is finished", "qvel/zarr.json is")


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("a bug")])
def test_a_failure_leaves_no_claim(make_npz, tmp_path, monkeypatch, error):
    seen = []

    def fail(*_):
        seen.extend(path.name for path in (tmp_path / "store").iterdir())
        raise error

    monkeypatch.setattr(runners, "run", fail)
    if isinstance(error, OSError):
        assert shard(make_npz(LENGTHS), tmp_path) == 1
    else:
        with pytest.raises(ValueError, match="a bug"):
            shard(make_npz(LENGTHS), tmp_path)
    assert seen == ["shard.json"]
    assert list((tmp_path / "store").iterdir()) == []


def test_a_folder_of_others_is_refused_before_the_input_is_read(
    tmp_path, capsys, read_tree
):
    out = tmp_path / "store"
    (out / "parts" / "photos").mkdir(parents=True)
    (out / "parts" / "photos" / "a.jpg").write_bytes(b"mine")
    (tmp_path / "cube-single-play.npz").write_bytes(b"no npz")
    assert shard(str(tmp_path / "cube-single-play.npz"), tmp_path) == 2
    assert_one_line(capsys, "holds parts/photos/a.jpg and no store", "another folder")
    assert read_tree(out) == {"parts/photos/a.jpg": b"mine"}


def test_b1_bad_episodes_from_the_command_line(make_npz, make_rows, tmp_path, capsys):
    rows = make_rows(LENGTHS)
    rows["observations"][11, 3] = np.nan
    path = make_npz(LENGTHS, **rows)
    assert shard(path, tmp_path) == 2
    assert_one_line(
        capsys, "cube-single-play.npz, episode 2, row 1: observations[3] is nan"
    )
    assert main(["inspect", str(tmp_path / "store")]) == 2
    assert_one_line(capsys, "dataset.json", "found none")
    assert shard(path, tmp_path, "--on-bad-episode", "skip") == 2
    assert_one_line(capsys, "1 of 6 episodes are bad", "--max-bad-share")
    options = ("--on-bad-episode", "skip", "--max-bad-share", 0.2)
    assert shard(path, tmp_path, *options) == 0
    assert "1 bad episode left out" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "store")]) == 0
    assert "1 nonfinite" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "store"), "--deep"]) == 0


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["shard", "no*.npz", "--dataset", "cube-single-play"], ["no*.npz", "found"]),
        (
            ["shard", "x.npz", "--dataset", "cube-single-play", "--workers", "0"],
            ["at least 1 worker"],
        ),
        (
            ["collect", "cub-v0", "--dataset-type", "play", "--episodes", "1"],
            ["cub-v0"],
        ),
        ([*COLLECT, "--episodes", "0"], ["at least 1 episode"]),
        ([*COLLECT[:-1], "1", "--episodes", "1"], ["at least 2 rows"]),
        (
            [
                *("collect", "antmaze-large-v0", "--dataset-type", "navigate"),
                *("--episodes", "1"),
            ],
            ["antmaze-large-navigate"],
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments, parts, tmp_path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "store")]) == 2
    assert_one_line(capsys, *parts)
    assert not (tmp_path / "store").exists()


def test_a_name_that_ogbench_does_not_know_is_one_line(make_npz, tmp_path, capsys):
    arguments = ["shard", make_npz(LENGTHS), "--dataset", "cube-sngle-play"]
    assert main([*arguments, "--out", str(tmp_path / "store")]) == 2
    assert_one_line(capsys, "cube-sngle-play", "nearest known: cube-single-play")


def test_data_of_one_s_own_need_rewards(make_npz, tmp_path, capsys):
    arguments = ["shard", make_npz(LENGTHS, name="x.npz"), "--dataset", "own"]
    assert main([*arguments, "--out", str(tmp_path / "store")]) == 2
    said = capsys.readouterr().err
    assert "x.npz: expected rewards, one number a row, got observations, acti" in said
    assert "antmaze" not in said
    store = str(write_store(tmp_path / "own", dataset="own", S=2, A=1, tasks=1))
    assert main(["relabel", store, "--tasks", "2"]) == 2
    said = capsys.readouterr().err
    assert f"got {store} of own, whose rewards came with the data" in said
    assert "antmaze" not in said


def test_an_environment_s_module_is_not_for_shard(tmp_path, capsys):
    path = str(tmp_path / "own.npz")
    rows = {"observations": np.zeros((3, 2)), "actions": np.zeros((3, 1))}
    np.savez(path, **rows, rewards=np.ones(3), terminals=np.eye(3)[2], masks=np.ones(3))
    arguments = ["shard", path, "--dataset", "own", "--environment", "walk:Walk-v0"]
    assert main([*arguments, "--out", str(tmp_path / "store")]) == 2
    assert_one_line(capsys, "expected ID, got walk:Walk-v0", "set-environment")


def test_bad_files_are_one_line(make_npz, tmp_path, capsys):
    whole = Path(make_npz(LENGTHS)).read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 3])
    assert shard(str(cut), tmp_path) == 2
    assert_one_line(capsys, "cut.npz", f"{len(whole) // 3:,} bytes")
    assert shard(make_npz(LENGTHS, without=["qpos"]), tmp_path) == 2
    assert_one_line(capsys, "needs qpos")
    assert shard(make_npz(LENGTHS), tmp_path, "--discounts", 1.5) == 2
    assert_one_line(capsys, "discounts in (0, 1]")
    assert not (tmp_path / "store").exists()


def test_stores_that_cannot_be_read_are_one_line(make_npz, tmp_path, capsys):
    for arguments in (["inspect"], ["verify"], ["export", "--npz", "x.npz"]):
        assert main([*arguments, str(tmp_path / "nothing")]) == 2
        assert_one_line(capsys, "nothing/dataset.json")
    assert shard(make_npz(LENGTHS), tmp_path) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "store"), "--npz", "x.h5"]) == 2
    assert_one_line(capsys, "ending in .npz")


def test_an_export_replaces_no_file(make_npz, tmp_path, capsys):
    assert shard(make_npz(LENGTHS), tmp_path) == 0
    for name in ("x.npz", "x-val.npz"):
        file = tmp_path / name
        file.write_bytes(b"of somebody")
        new = str(tmp_path / "x.npz")
        assert main(["export", str(tmp_path / "store"), "--npz", new]) == 2
        assert f"expected a new file, but {file} exists" in capsys.readouterr().err
        assert file.read_bytes() == b"of somebody"
        file.unlink()


def test_verify_lists_the_damage_and_exits_with_1(make_npz, tmp_path, capsys):
    assert shard(make_npz(LENGTHS), tmp_path) == 0
    assert main(["verify", str(tmp_path / "store")]) == 0
    assert "sound" in capsys.readouterr().out
    (part,) = (tmp_path / "store" / "parts").iterdir()
    (part / "qvel" / "zarr.json").unlink()
    (part / "masks" / "c" / "0" / "0").unlink()
    assert main(["verify", str(tmp_path / "store")]) == 1
    out = capsys.readouterr().out
    assert f"parts/{part.name}/qvel: cannot be read" in out
    assert f"parts/{part.name}/masks: cannot be read" in out
    assert "damaged, 2 findings" in out


def test_inspect_shows_everything(make_npz, tmp_path, capsys):
    make_npz((3, 4), name="cube-single-play-val.npz", seed=1)
    assert shard(make_npz(LENGTHS), tmp_path, "--discounts", 0.9, 0.99) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "store")]) == 0
    out = capsys.readouterr().out
    for text in (
        "cube-single-play, made in cube-single-v0",
        "observations",
        "returns/0.99",
        "task5_diagonal2",
        "parts/00001",
        "val",
        "cube-single-play.npz",
        "sha256:",
        "mujoco",
    ):
        assert text in out


def test_a_store_tells_what_it_was_made_and_changed_by(make_npz, tmp_path, capsys):
    store = tmp_path / "store"
    more = make_npz((3, 4), name="more.npz", seed=1)
    assert shard(make_npz(LENGTHS), tmp_path, "--discounts", 0.99, 0.9) == 0
    assert main(["append", str(store), more, "--part-rows", "5"]) == 0
    assert main(["relabel", str(store), "--discounts", "0.5"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(store), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["format_version"] == 2
    assert [step["command"] for step in facts["history"]] == [
        "shard --dataset cube-single-play --discounts 0.9 0.99 --part-rows 1000000 "
        "--on-bad-episode refuse --on-bad-file refuse",
        "append --part-rows 5 --on-bad-episode refuse --on-bad-file refuse "
        "--on-known-episode refuse",
        "relabel --discounts 0.5",
    ]
    assert all(step["versions"]["numpy"] for step in facts["history"])
    # Paths and workers do not enter the history, so that bytes do not depend on them.
    assert str(tmp_path) not in (store / "dataset.json").read_text()
    assert main(["inspect", str(store)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "relabel --discounts 0.5, with mujoco" in out
    digests = [part["digest"] for part in facts["parts"]]
    assert len(set(digests)) == 2
    assert all(digest[:19] in out for digest in digests)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inspect_draws_the_histograms(make_npz, tmp_path, capsys):
    assert shard(make_npz(LENGTHS), tmp_path, "--discounts", 0.9, 0.99) == 0
    capsys.readouterr()
    picture = tmp_path / "labels.png"
    command = ["inspect", str(tmp_path / "store"), "--json", "--plot"]
    assert main([*command, str(picture)]) == 0
    json.loads(capsys.readouterr().out)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "labels.pdf"]) == 2
    assert_one_line(capsys, "ending in .png", "labels.pdf")


def test_what_follows_two_dashes_is_beam_s(make_npz, tmp_path, capsys, monkeypatch):
    seen = []

    def make_options(workers, arguments):
        seen.append((workers, list(arguments)))
        return real(1)

    real = runners.make_options
    monkeypatch.setattr(runners, "make_options", make_options)
    flags = ["--runner=FnApiRunner", "--job_name=x"]
    assert shard(make_npz(LENGTHS), tmp_path, "--", *flags) == 0
    assert seen == [(1, flags)] * 2


def test_commands_without_beam_refuse_its_options(tmp_path, capsys):
    assert main(["inspect", str(tmp_path), "--", "--runner=X"]) == 2
    assert_one_line(capsys, "--runner=X")


def test_an_unknown_option_exits_with_2(tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["inspect", str(tmp_path), "--jsn"])
    assert caught.value.code == 2
