"""Devices of the jobs of a sweep: cores and GPUs are divided among them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.store.errors import UsageError
from trainer.sweep import devices
from trainer.sweep.devices import find_gpus, make_cpu_environment, make_environments
from trainer.sweep.run import ProcessRunner


@pytest.mark.parametrize(
    ("cores", "shared"),
    [
        (2, "1 --xla_of_the_user=1 --xla_cpu_multi_thread_eigen=false"),
        (1, "1 --xla_of_the_user=1 --xla_cpu_multi_thread_eigen=false"),
        (9, "4 --xla_of_the_user=1"),
    ],
)
def test_jobs_share_the_cores(
    cores: int, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child"
    script.write_text('#!/bin/bash\necho "$PJRT_NPROC $XLA_FLAGS"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(devices, "count_usable_cores", lambda: cores)
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    log = tmp_path / "log"
    assert ProcessRunner()(["train"], log, lambda: None) == 0
    assert ProcessRunner(make_environments(2, []))(["train"], log, lambda: None) == 0
    alone, sharing = log.read_text().splitlines()
    assert alone == " --xla_of_the_user=1"
    assert sharing == shared


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads of Linux")
def test_xla_has_as_many_threads_as_it_is_given() -> None:
    # The variable is no documented setting of JAX, so a new version may drop it.
    count = (
        "import jax, pathlib; jax.block_until_ready(jax.numpy.ones(3) + 1)\n"
        "names = [path.read_text() for path in pathlib.Path('/proc/self/task').glob("
        "'*/comm')]\n"
        "print(sum(name.startswith('tf_XLAEigen') for name in names))"
    )
    threads = []
    for asked in (1, 3):
        env = {**os.environ, **make_cpu_environment(asked), "JAX_PLATFORMS": "cpu"}
        env["XLA_FLAGS"] = ""  # One device, not the eight of the tests.
        done = subprocess.run(
            [sys.executable, "-c", count],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        threads.append(int(done.stdout))
    assert threads == [1, 3]


def test_jobs_at_once_have_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, both = tmp_path / "child", threading.Barrier(2, timeout=30)
    script.write_text('#!/bin/bash\nsleep 0.3; echo "$CUDA_VISIBLE_DEVICES"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-7")
    monkeypatch.delenv("JAX_PLATFORMS")
    processes = ProcessRunner(make_environments(2, find_gpus()))

    def work(name: str) -> None:
        for _ in range(2):
            both.wait()
            assert processes(["train"], tmp_path / name, lambda: None) == 0

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    a, b = ((tmp_path / name).read_text().split() for name in ("a", "b"))
    assert len(a) == 2
    assert [{*pair} for pair in zip(a, b, strict=True)] == [{"4,5", "6,GPU-7"}] * 2


def test_gpus_are_those_that_jax_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/bash\necho 0\necho 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert find_gpus() == []
    monkeypatch.setenv("JAX_PLATFORMS", "")
    assert find_gpus() == ["0", "1"]
    assert make_environments(1, ["0", "1"]) == [{}]  # All of them.
    with pytest.raises(UsageError, match="--jobs: expected at most 2, one for each"):
        make_environments(3, ["0", "1"])
    program.write_text("#!/bin/bash\nexit 9\n")
    assert find_gpus() == []
