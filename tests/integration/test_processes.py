"""Training in any number of processes gives the same run as in one process."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.stores import write_store
from tests.trainer.parallel.strangers import knocking
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import read_run

DEVICES = 8
TOML = """
dataset = "pointmaze-medium-navigate"
[agent]
name = "vast"
max_horizon = 6
width = 16
depth = 1
flow_steps = 2
[trainer]
steps = {steps}
batch_size = 16
updates_per_call = 5
log_every = 10
checkpoint_every = 20
keep_checkpoints = 10
[mesh]
{mesh}
"""
# Sums over a batch are taken in another order, and Adam's division by small roots
# enlarges the differences.
TOLERANCE = {"rtol": 2e-3, "atol": 2e-5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("data") / "store")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def start(
    store: Path,
    out: Path,
    *,
    processes: int,
    steps: int = 40,
    mesh: str = "data = -1",
    only: tuple[int, ...] | None = None,
    timeout_s: int = 300,
    overrides: dict[int, list[str]] | None = None,
    devices: dict[int, int] | None = None,
    address: str | None = None,
    token: str = "",
) -> list[subprocess.Popen]:
    """Starts a run as a launcher does: one command, with variables for each process."""
    config = out.parent / f"{out.name}-{steps}-{processes}.toml"
    config.write_text(TOML.format(steps=steps, mesh=mesh))
    address = address or free_address()
    flags = re.sub(r"--xla_force_host\S+", "", os.environ["XLA_FLAGS"])
    started = []
    for index in range(processes) if only is None else only:
        environment = os.environ | {
            "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count="
            f"{(devices or {}).get(index, DEVICES // processes)}",
        }
        if processes > 1:
            environment |= {
                "VAST_COORDINATOR_ADDRESS": address,
                "VAST_NUM_PROCESSES": str(processes),
                "VAST_PROCESS_ID": str(index),
                "VAST_START_TIMEOUT": str(timeout_s),
                # No proxy listens at this address; processes must not use it among
                # themselves.
                "http_proxy": "http://127.0.0.1:9",
                "VAST_TOKEN": token,
            }
        started.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "trainer", "train", str(config)),
                    *("--store", str(store), "--task", "1", "--out", str(out)),
                    *(overrides or {}).get(index, []),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Waits for all processes; returns the exit code and output of each."""
    ended = []
    for process in processes:
        output, _ = process.communicate(timeout=500)
        ended.append((process.returncode, " ".join(output.split())))
    return ended


def train(store: Path, out: Path, **options) -> str:
    """Trains to the end; returns the output of process 0."""
    ended = finish(start(store, out, **options))
    assert [code for code, _ in ended] == [0] * len(ended), ended
    return ended[0][1]


def weights(out: Path, step: int) -> np.ndarray:
    """All parameters of a checkpoint, as one vector."""
    run = read_run(RunFolder.open(out))
    params = CheckpointReader(RunFolder.open(out)).restore_params(
        step, run.agent(), seeds=1
    )
    return np.concatenate([np.ravel(leaf) for leaf in _leaves(params)])


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


ASSEMBLE = """
import sys

import jax
import numpy as np
from jax.sharding import Mesh

from trainer.parallel.mesh import AXES, assemble_batch, find_local_part

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
Q, B = 2, 16
whole = np.arange(3 * Q * B * 5).reshape(3, Q, B, 5)
# As the hosts of a TPU slice, of which each has a square of chips: rows of devices
# alternate between the processes.
devices = np.array(jax.devices())[[0, 1, 4, 5, 2, 3, 6, 7]]
for sizes in ((1, 8, 1, 1), (1, 2, 4, 1), (2, 4, 1, 1), (1, 4, 1, 2)):
    mesh = Mesh(devices.reshape(sizes), AXES)
    held, rows = find_local_part(mesh, seeds=Q, batch_size=B)
    made = assemble_batch(mesh, {"x": whole[:, held, rows]}, seeds=Q, batch_size=B)
    assert made["x"].shape == whole.shape, made["x"].shape
    shards = made["x"].addressable_shards
    assert len(shards) == 4
    for shard in shards:
        np.testing.assert_array_equal(shard.data, whole[shard.index])
    print(sizes, sum(shard.data.size for shard in shards), whole[:, held, rows].size)
"""


def test_devices_of_a_process_that_hold_no_neighbouring_rows() -> None:
    flags = re.sub(r"--xla_force_host\S+", "", os.environ["XLA_FLAGS"])
    flags += " --xla_force_host_platform_device_count=4"
    address = free_address()
    ended = finish(
        [
            subprocess.Popen(
                [sys.executable, "-c", ASSEMBLE, address, str(index)],
                env=os.environ | {"XLA_FLAGS": flags},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(2)
        ]
    )
    assert [code for code, _ in ended] == [0, 0], ended
    # The range that covers this process's rows is longer than they are.
    assert "(1, 8, 1, 1) 240 360" in ended[0][1]


@pytest.fixture(scope="module")
def alone(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process of eight devices."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(store, out, processes=1)
    return out


def test_two_processes_train_what_one_does(
    store: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = train(store, out, processes=2)
    assert "8 cpu device(s) of 2 process(es)" in said
    host = socket.gethostname()
    assert f"process 0 on {host}: cpu 0, 1, 2, 3; seed 0, rows 0 to 7 of" in said
    assert f"process 1 on {host}: cpu " in said
    assert "seed 0, rows 8 to 15 of each batch" in said
    np.testing.assert_allclose(weights(out, 40), weights(alone, 40), **TOLERANCE)
    assert np.abs(weights(out, 40) - weights(out, 20)).max() > 1e-3
    # Process 0 writes the records, and no other process does.
    lines = RunFolder.open(out).read_lines(METRICS_FILE)
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    losses = [
        [line["loss"] for line in RunFolder.open(each).read_lines(METRICS_FILE)]
        for each in (out, alone)
    ]
    np.testing.assert_allclose(*losses, rtol=2e-3)


@pytest.mark.slow
def test_strangers_at_the_port_change_nothing(store: Path, tmp_path: Path) -> None:
    """Strangers knock before process 0 listens, and later at JAX's own server."""
    quiet, out = tmp_path / "quiet", tmp_path / "run"
    train(store, quiet, processes=2)
    address = free_address()
    host, port = address.split(":")
    with knocking((host, int(port))) as strangers:
        said = train(
            store, out, processes=2, address=address, token="secret", timeout_s=120
        )
    assert all(strangers.knocks.values()), strangers.knocks
    print(strangers.knocks)  # noqa: T201 (the drill's counts)
    assert "8 cpu device(s) of 2 process(es)" in said
    np.testing.assert_array_equal(weights(out, 40), weights(quiet, 40))
    assert np.abs(weights(out, 40) - weights(out, 20)).max() > 1e-3


@pytest.mark.slow
def test_a_run_goes_on_in_other_numbers_of_processes_and_on_other_meshes(
    store: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(store, out, processes=2, steps=20)
    said = train(store, out, processes=1, steps=40, mesh="data = 2\nfsdp = 4")
    assert "going on from the checkpoint of step 20" in said
    np.testing.assert_allclose(weights(out, 40), weights(alone, 40), **TOLERANCE)
    said = train(store, out, processes=4, steps=60, mesh="data = 4\ntensor = 2")
    assert "going on from the checkpoint of step 40" in said
    train(store, alone, processes=1, steps=60)
    np.testing.assert_allclose(weights(out, 60), weights(alone, 60), **TOLERANCE)


@pytest.mark.slow
def test_sigterm_to_one_stops_all_after_the_same_update(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    processes = start(store, out, processes=2, steps=1_000_000)
    deadline = time.monotonic() + 400
    while not RunFolder.open(out).read_lines(METRICS_FILE):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGTERM)
    ended = finish(processes)
    assert [code for code, _ in ended] == [75, 75], ended
    step = CheckpointReader(RunFolder.open(out)).latest()
    assert step == RunFolder.open(out).read_lines(METRICS_FILE)[-1]["step"]
    assert f"stopped at step {step} of 1000000" in ended[1][1]


@pytest.mark.slow
def test_sigterm_does_not_wait_for_a_log_point(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    far = ["--trainer.log-every", "1000000", "--trainer.checkpoint-every", "100"]
    processes = start(
        store, out, processes=2, steps=1_000_000, overrides={0: far, 1: far}
    )
    wait_for_a_checkpoint(out)
    processes[1].send_signal(signal.SIGTERM)
    since = time.monotonic()
    ended = finish(processes)
    # The next log point is hours away.
    assert time.monotonic() - since < 200
    assert [code for code, _ in ended] == [75, 75], ended
    assert (
        f"stopped at step {CheckpointReader(RunFolder.open(out)).latest()} of 1000000"
        in ended[0][1]
    )


@pytest.mark.slow
def test_a_folder_of_each_machine_s_own_is_refused(store: Path, tmp_path: Path) -> None:
    other = ["--out", str(tmp_path / "other")]
    since = time.monotonic()
    ended = finish(start(store, tmp_path / "run", processes=2, overrides={1: other}))
    assert time.monotonic() - since < 200
    for code, said in ended:
        assert code == 1
        assert "is another folder for process 1 on" in said
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_a_missing_process_is_named_in_bounded_time(
    store: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    ended = finish(
        start(store, tmp_path / "run", processes=4, only=(0, 2), timeout_s=60)
    )
    assert time.monotonic() - started < 300
    for code, said in ended:
        assert code == 1
        assert "1, 3 of 4 processes" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_other_settings_are_refused_by_name(
    store: Path, tmp_path: Path
) -> None:
    ended = finish(
        start(
            store,
            tmp_path / "run",
            processes=2,
            overrides={1: ["--agent.temperature", "0.5"]},
        )
    )
    for code, said in ended:
        assert code == 1
        assert "config.agent.temperature differs: 0.05 in process 0" in said


@pytest.mark.slow
def test_a_host_that_lacks_devices_is_named(store: Path, tmp_path: Path) -> None:
    ended = finish(start(store, tmp_path / "run", processes=2, devices={1: 2}))
    for code, said in ended:
        assert code == 1, said
        assert "got 4 in process 0, 2 in process 1 (this is process" in said


def wait_for_a_checkpoint(out: Path) -> None:
    deadline = time.monotonic() + 400
    while (
        not (out / "checkpoints").is_dir()
        or not CheckpointReader(RunFolder.open(out)).steps()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def survivor_of(killed: int, store: Path, out: Path) -> tuple[int, str]:
    """Kills one of two processes after a checkpoint; returns how the other one ends."""
    processes = start(store, out, processes=2, steps=1_000_000)
    wait_for_a_checkpoint(out)
    processes[killed].kill()
    since = time.monotonic()
    code, said = finish(processes)[1 - killed]
    assert time.monotonic() - since < 60
    return code, said


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_all_go_on(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said = survivor_of(1, store, out)
    assert code == 1, said
    assert f"error: process 1 on {socket.gethostname()} is gone; start all of" in said
    step = CheckpointReader(RunFolder.open(out)).latest()
    said = train(store, out, processes=2, steps=(step // 20 + 2) * 20)
    assert "going on from the checkpoint" in said


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_one_trainer_a_folder(store: Path, tmp_path: Path, processes: int) -> None:
    out = tmp_path / "run"
    first = start(store, out, processes=processes, steps=1_000_000)
    wait_for_a_checkpoint(out)
    named = f"is being trained by process {first[0].pid} on {socket.gethostname()}"
    for code, said in finish(start(store, out, processes=processes, steps=60)):
        assert code == 2, said
        assert named in said
    assert all(each.poll() is None for each in first)
    # A trainer with --take-over may start, and the first one saves nothing afterwards.
    over = {index: ["--take-over"] for index in range(processes)}
    second = start(store, out, processes=processes, steps=1_000_000, overrides=over)
    code, said = finish(first)[0]
    assert code == 1, said
    assert f"process {second[0].pid} on {socket.gethostname()}" in said
    assert "has taken over; this process has saved nothing since" in said
    # After a killed trainer, the next one need not wait.
    for each in second:
        each.kill()
    finish(second)
    last = max(CheckpointReader(RunFolder.open(out)).steps(), default=0)
    said = train(store, out, processes=processes, steps=last + 40)
    assert "watching for" not in said
    assert not (out / "training.json").exists()


@pytest.mark.slow
def test_without_process_0_the_others_end_at_once(store: Path, tmp_path: Path) -> None:
    code, said = survivor_of(0, store, tmp_path / "run")
    # JAX would abort them, too, but later than ours end.
    assert code == 1, said
    assert f"error: process 0 on {socket.gethostname()} is gone" in said


@pytest.mark.slow
def test_an_error_of_one_process_alone_ends_all(store: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    ended = finish(
        start(
            store,
            tmp_path / "run",
            processes=2,
            overrides={1: ["--out", str(tmp_path / "taken")]},
        )
    )
    assert [code for code, _ in ended] == [1, 1], ended
    assert f"error: process 1 on {socket.gethostname()} is gone" in ended[0][1]
    assert f"{tmp_path}/taken is a file; give another --out" in ended[1][1]
