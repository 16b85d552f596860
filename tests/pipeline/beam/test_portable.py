"""Beam's portable protocol: its own job service, with workers of two kinds."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.beam import pipelines, runners
from pipeline.store.errors import DataFormatError
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)
ROOT = Path(runners.__file__).parents[2]
_PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


@contextlib.contextmanager
def server(module, port_option, log):
    """Runs one of Beam's servers; yields its address once the server answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module, f"{port_option}={port}"],
            stdout=file,
            stderr=file,
            cwd=ROOT,
            # A pool starts its workers as `python`, which is looked up in PATH.
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": _PATH},
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("localhost", port), 1).close()
                break
            assert process.poll() is None, Path(log).read_text()
            assert time.monotonic() < deadline, Path(log).read_text()
            time.sleep(0.05)
        yield f"localhost:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def job_endpoint(tmp_path_factory):
    module = "apache_beam.runners.portability.local_job_service_main"
    log = tmp_path_factory.mktemp("jobs") / "log"
    with server(module, "--port", log) as address:
        yield address


@pytest.fixture
def pool_endpoint(tmp_path):
    module = "apache_beam.runners.worker.worker_pool_main"
    with server(module, "--service_port", tmp_path / "pool.log") as address:
        yield address


def run(plan, job_endpoint, *environment):
    options = runners.make_options(
        1,
        ["--runner=PortableRunner", f"--job_endpoint={job_endpoint}", *environment],
    )
    return runners.run(
        lambda root: pipelines.define_sharding(root, plan, runs=2), options
    )


def check(make_npz, make_plan, read_tree, job_endpoint, *environment):
    path = make_npz(LENGTHS)
    plan, pure = make_plan(path, out="portable"), make_plan(path, out="pure")
    counters = run(plan, job_endpoint, *environment)
    commit_store(pure, write_alone(*pure.parts))
    assert read_tree(plan.root) == read_tree(pure.root)
    assert counters["rows_finished"] == sum(LENGTHS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_beside_the_launcher_write_the_same_bytes(
    make_npz, make_plan, read_tree, job_endpoint
):
    environment = "--environment_type=LOOPBACK"
    check(make_npz, make_plan, read_tree, job_endpoint, environment)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_a_pool_write_the_same_bytes(
    make_npz, make_plan, read_tree, job_endpoint, pool_endpoint
):
    environment = [
        "--environment_type=EXTERNAL",
        f"--environment_config={pool_endpoint}",
    ]
    check(make_npz, make_plan, read_tree, job_endpoint, *environment)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_worker_s_error_comes_back_in_one_line(
    make_npz, make_plan, make_rows, job_endpoint
):
    rows = make_rows(LENGTHS)
    rows["observations"][0, 0] = float("nan")
    plan = make_plan(make_npz(LENGTHS, **rows))
    with pytest.raises(DataFormatError, match=r"episode 0, row 0: observations\[0\]"):
        run(plan, job_endpoint, "--environment_type=LOOPBACK")


def test_an_error_is_one_line_though_beam_logs_it_by_the_root_logger(
    make_npz, tmp_path, job_endpoint
):
    """Needs a process of its own, because pytest adds handlers to the root logger."""
    rewards = np.zeros(28)
    rewards[3] = np.nan
    own = {"rewards": rewards, "masks": np.ones(28, bool)}
    path = make_npz(LENGTHS, without=["qpos", "qvel"], **own)
    command = [sys.executable, "-m", "pipeline", "shard", path, "--dataset", "mine"]
    command += ["--out", str(tmp_path / "s"), "--runner", "PortableRunner", "--"]
    command += [f"--job_endpoint={job_endpoint}", "--environment_type=LOOPBACK"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    (line,) = (line for line in lines if not line.startswith("write: "))
    assert line.startswith("error: cube-single-play.npz, episode 0, row 3: rewards")
    assert not list((tmp_path / "s").glob("*.json"))


def test_the_loggers_are_as_they_were_afterwards(caplog):
    root, beams = logging.getLogger(), logging.getLogger("apache_beam")
    before = (beams.level, list(root.handlers), list(root.filters))
    with runners._silence_logs():
        logging.getLogger("apache_beam.some.where").error("of Beam")
        logging.error("of Beam, by the root logger")
        logging.getLogger("another.library").error("of another")
        root.addHandler(logging.NullHandler())
    assert (beams.level, list(root.handlers), list(root.filters)) == before
    assert [record.message for record in caplog.records] == ["of another"]
