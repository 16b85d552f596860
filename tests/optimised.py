"""Runs long computations in a process in which XLA optimises its programs."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

# Compiling takes most of the time of the tests, and a compiled program runs only a few
# times. So XLA is told to compile quickly: without optimisation by LLVM, without MLIR
# for fusions, and each program as one module, which takes less work than several.
QUICK = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)


def call_optimised(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module; the function and its arguments are pickled."""
    flags = os.environ["XLA_FLAGS"].replace(QUICK, "")
    spawn = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, XLA_FLAGS=flags),
        ProcessPoolExecutor(1, mp_context=spawn) as process,
    ):
        return process.submit(function, *arguments).result()
