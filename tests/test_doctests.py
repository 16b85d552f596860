"""Runs the examples in docstrings.

pytest's own `--doctest-modules` would import all modules to look for examples, in every
worker, even if only a single test was asked for.
"""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for package in ("infra", "pipeline", "trainer")
    for file in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in file.read_text()
]


def test_there_are_examples() -> None:
    assert len(MODULES) > 10


@pytest.mark.parametrize("name", MODULES)
def test_examples_come_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
