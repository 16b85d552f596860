"""Processes that join; tests/integration trains in them."""

import os
import re
import subprocess
import sys

from tests.trainer.parallel.test_roll_call import free_address

JOIN = """
import jax
from jax._src.xla_bridge import CUDA_VISIBLE_DEVICES

from trainer.parallel.processes import join_processes

with join_processes():
    print(jax.process_count(), "sees", CUDA_VISIBLE_DEVICES.value)
"""
# A step of two nodes with one task each, as Slurm describes it to a task.
STEP = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
}


def test_a_process_keeps_all_gpus_of_its_node_under_slurm() -> None:
    flags = re.sub(r"--xla_force_host\S+", "", os.environ["XLA_FLAGS"])
    address = free_address()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN],
            env={
                **os.environ,
                **STEP,
                "XLA_FLAGS": flags,
                "SLURM_PROCID": str(index),
                "VAST_COORDINATOR_ADDRESS": address,
                "VAST_NUM_PROCESSES": "2",
                "VAST_PROCESS_ID": str(index),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    ended = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    assert all("2 sees all" in said for said in ended), ended
