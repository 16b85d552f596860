"""Calls that compute for long, in a process whose XLA optimises what it compiles."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

# Compiling is most of what the tests cost, and what they compile runs a few times: XLA
# is told to be quick about it.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def call_optimised(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns; it and its arguments are pickled."""
    flags = os.environ["XLA_FLAGS"].replace(QUICK, "")
    spawn = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, XLA_FLAGS=flags),
        ProcessPoolExecutor(1, mp_context=spawn) as process,
    ):
        return process.submit(function, *arguments).result()
