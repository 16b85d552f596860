"""Dask: a scheduler and two worker processes write the local runner's bytes."""

import copy
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from pipeline.assembly import parts
from pipeline.assembly.commit import commit_store
from pipeline.beam import dask_runner, pipelines, runners, transforms
from pipeline.cli import main
from pipeline.store.errors import BadEpisodeError, DataFormatError

LENGTHS = (5, 5, 7, 4, 1, 6)
ROOT = Path(runners.__file__).parents[2]
# Tornado's loop, which Dask runs in a thread.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def cluster():
    """A user's cluster: a scheduler in this process and two worker processes."""
    options = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    # An idle worker takes over another one's tasks at once, not once a second.
    soon = {"distributed.scheduler.work-stealing-interval": "50ms"}
    with (
        dask.config.set(soon),
        LocalCluster(
            n_workers=2, threads_per_worker=1, scheduler_kwargs=options, silence_logs=60
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def on_dask(cluster):
    """Arguments that run a command on the cluster."""
    return ["--runner", "dask", "--dask-address", cluster.scheduler_address]


def own(rows):
    return {"rewards": np.arange(rows, dtype=float), "masks": np.ones(rows, bool)}


def make_own(make_npz, lengths, **options):
    """Makes an npz with rewards, for which no simulator is started."""
    more = own(sum(lengths)) | options
    return make_npz(lengths, without=["qpos", "qvel"], **more)


def run(plan, cluster, *more, divided=False):
    options = runners.make_options(
        1,
        ["--runner=dask", f"--dask_client_address={cluster.scheduler_address}", *more],
    )
    return runners.run(
        lambda root: pipelines.define_sharding(
            root, plan, runs=len(plan.parts), divided=divided
        ),
        options,
    )


def test_shard_append_and_relabel_write_the_local_runner_s_bytes(
    make_npz, tmp_path, read_tree, on_dask, capsys
):
    path = make_own(make_npz, LENGTHS)
    more = make_own(make_npz, (6, 9, 9), name="more.npz", seed=5)
    commands = [
        ["shard", path, "--dataset", "mine", "--part-rows", "12", "--out"],
        ["append", "STORE", more, "--part-rows", "12"],
        ["relabel", "STORE", "--discounts", "0.5"],
    ]
    for name, engine in (("local", []), ("dask", on_dask)):
        out = str(tmp_path / name)
        for command in commands:
            words = [out if word == "STORE" else word for word in command]
            words += [out] if words[-1] == "--out" else []
            assert main([*words, *engine]) == 0
    assert read_tree(tmp_path / "dask") == read_tree(tmp_path / "local")
    out, err = capsys.readouterr()
    # Totals of both runners' commits are the same, and no library logs beside them.
    assert out.count("finished, 28 rows in 2 parts") == 2
    assert out.count("finished, 24 rows in 2 parts") == 2
    assert all(line.startswith(("write: ", "relabel: ")) for line in err.splitlines())


def test_collect_makes_the_local_runner_s_episodes(tmp_path, read_tree, on_dask):
    arguments = ["collect", "pointmaze-medium-v0", "--dataset-type", "navigate"]
    arguments += ["--episodes", "4", "--max-rows", "20"]
    assert main([*arguments, "--out", str(tmp_path / "local")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "dask"), *on_dask]) == 0
    assert read_tree(tmp_path / "dask") == read_tree(tmp_path / "local")


@pytest.mark.parametrize("divided", [False, True])
def test_both_workers_write_parts_and_each_is_written_and_counted_once(
    make_npz, make_plan, cluster, tmp_path, read_tree, divided
):
    plan = make_plan(make_npz((5,) * 40), part_rows=20)
    assert len(plan.parts) == 10
    seen = tmp_path / "seen"
    seen.mkdir()

    def watch():
        def write(run):
            time.sleep(0.2)  # Dask moves no work that takes less time than moving it.
            for part in run:
                (seen / f"{os.getpid()}-{part.index}-{time.time_ns()}").touch()
            return parts.write_parts(run)

        transforms.write_parts = write

    def unwatch():
        transforms.write_parts = parts.write_parts

    with Client(cluster.scheduler_address) as client:
        client.run(watch)
        counters = run(plan, cluster, divided=divided)
        client.run(unwatch)
    assert counters == {"parts_finished": 10, "rows_finished": 200}
    names = [path.name.split("-") for path in seen.iterdir()]
    assert sorted(int(part) for _, part, _ in names) == list(range(10))
    assert len({process for process, _, _ in names}) == 2
    pure = make_plan(plan.parts[0].source.path, part_rows=20, out="pure")
    commit_store(pure, list(parts.write_parts(pure.parts)))
    assert read_tree(plan.root) == read_tree(pure.root)


def test_a_data_error_comes_back_as_it_was_raised(
    make_npz, make_plan, make_rows, cluster, capfd
):
    rows = make_rows(LENGTHS)
    rows["observations"][0, 0] = float("nan")
    plan = make_plan(make_npz(LENGTHS, **rows))
    with pytest.raises(DataFormatError) as caught:
        run(plan, cluster)
    assert str(caught.value).startswith("cube-single-play.npz, episode 0, row 0: obs")
    assert capfd.readouterr() == ("", "")


def test_a_file_that_a_worker_does_not_see_is_named_with_the_worker(
    make_npz, make_plan, cluster
):
    path = make_npz(LENGTHS)
    plan = make_plan(path)
    os.remove(path)
    with pytest.raises(DataFormatError) as caught:
        run(plan, cluster)
    said = str(caught.value)
    assert said.startswith(f"{path} is not there on host {socket.gethostname()}, ")
    (process,) = re.findall(r", process (\d+); expected a path that every", said)
    with Client(cluster.scheduler_address) as client:
        assert int(process) in client.run(os.getpid).values()


def test_errors_travel_with_all_that_they_hold():
    error = pickle.loads(pickle.dumps(BadEpisodeError("bad", reason="nonfinite")))
    assert (str(error), error.reason) == ("bad", "nonfinite")


def test_a_cluster_of_other_versions_is_refused(
    make_npz, make_plan, cluster, monkeypatch
):
    plan = make_plan(make_npz(LENGTHS))
    other = {**dask_runner.installed_versions(), "numpy": "0"}
    monkeypatch.setattr(Client, "run_on_scheduler", lambda self, function: other)
    with pytest.raises(DataFormatError, match=r"expected numpy \S+ on tcp.*, got 0;"):
        run(plan, cluster)


def test_an_address_where_nobody_answers_is_one_line(make_npz, tmp_path, capsys):
    path = make_own(make_npz, LENGTHS)
    out = tmp_path / "store"
    command = ["shard", path, "--dataset", "mine", "--out", str(out)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    assert main([*command, "--dask-address", address]) == 2
    assert "expected --runner dask beside it" in capsys.readouterr().err
    quick = ["--", "--dask_connection_timeout=1"]
    assert main([*command, "--runner", "dask", "--dask-address", address, *quick]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --dask-address: expected the scheduler of a Dask")
    assert address in line
    # No claim is left, so the command without the address works.
    assert not [path for path in out.rglob("*") if path.is_file()]
    assert main(command) == 0


def test_a_cluster_of_this_machine_does_without_what_slows_its_workers(monkeypatch):
    seen = {}

    def start(*, n_workers, **_):
        seen.update(copy.deepcopy(dask.config.config["distributed"]))
        raise OSError(f"{n_workers} workers")

    monkeypatch.setattr(dask_runner, "LocalCluster", start)
    options = runners.make_options(3, ["--runner=dask"])
    before = dask.config.get("distributed.nanny.pre-spawn-environ")
    with (
        pytest.raises(OSError, match=r"^3 workers$"),
        dask_runner.open_cluster(options),
    ):
        pass
    assert "MALLOC_TRIM_THRESHOLD_" in before
    expected = {name: value for name, value in before.items() if "TRIM" not in name}
    assert seen["nanny"]["pre-spawn-environ"] == expected
    assert seen["worker"]["profile"]["enabled"] is False
    # The settings are restored: they would also hold for a user's cluster.
    assert dask.config.get("distributed.nanny.pre-spawn-environ") == before


MANY = 24


@pytest.mark.slow
def test_a_cluster_of_this_machine_outlives_a_worker_and_ends_with_its_command(
    make_npz, tmp_path, read_tree
):
    """First a worker is killed in the middle, then the command of another cluster."""
    lengths = (500,) * 20 * MANY
    command = [sys.executable, "-m", "pipeline", "shard"]
    command += [make_own(make_npz, lengths), "--dataset", "mine"]
    command += ["--part-rows", "10000", "--out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, str(tmp_path / "local")], check=True, env=environment)
    for kill, name in ((signal.SIGKILL, "dask"), (signal.SIGTERM, "ended")):
        out = tmp_path / name
        engine = ["--runner", "dask", "--workers", "2"]
        process = subprocess.Popen([*command, str(out), *engine], env=environment)
        try:
            written = wait_for_parts(out, process)
            assert written < MANY
            workers = find_workers(process.pid)
            assert len(workers) == 2
            for worker in workers:
                assert "MALLOC_TRIM_THRESHOLD_" not in psutil.Process(worker).environ()
            os.kill(workers[0] if kill == signal.SIGKILL else process.pid, kill)
            code = process.wait(300)
        finally:
            process.kill()
            process.wait()
        assert code == (0 if kill == signal.SIGKILL else -signal.SIGTERM)
        deadline = time.monotonic() + 60
        while any(map(psutil.pid_exists, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert read_tree(tmp_path / "dask") == read_tree(tmp_path / "local")
    assert not (tmp_path / "ended" / "shard.json").exists()


def wait_for_parts(out, process):
    deadline = time.monotonic() + 300
    while not (written := len(list(out.glob("parts/*/part.json")))) >= 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return written


def find_workers(process):
    """Finds the workers among a process's children; another child tracks resources."""
    children = psutil.Process(process).children(recursive=True)
    return [
        child.pid for child in children if "spawn_main" in " ".join(child.cmdline())
    ]
