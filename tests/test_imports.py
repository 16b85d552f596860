"""What each half must not bring along: checked in a fresh interpreter."""

import subprocess
import sys

import pytest

LISTED = """
import importlib, pkgutil, sys
for package in {packages}:
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(" ".join(sorted(sys.modules)))
"""


def loaded(*packages: str) -> set[str]:
    """Modules in memory after importing every module of the packages."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED.format(packages=packages)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_trainer_loads_neither_beam_nor_mujoco() -> None:
    modules = loaded("trainer")
    assert {"jax", "grain", "trainer.loop"} <= modules
    assert not {"apache_beam", "mujoco", "ogbench", "gymnasium", "dm_control"} & modules


def test_the_pipeline_loads_neither_jax_nor_the_trainer() -> None:
    modules = loaded("pipeline")
    assert {"apache_beam", "tensorstore", "pipeline.build"} <= modules
    assert not {"jax", "flax", "optax", "grain", "orbax", "trainer"} & modules


def test_the_store_loads_no_beam() -> None:
    modules = loaded("pipeline.store")
    assert "tensorstore" in modules
    assert not {"apache_beam", "mujoco", "jax"} & modules


@pytest.mark.parametrize("module", ["trainer.agents", "trainer.state"])
def test_agents_and_updates_need_no_grain(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print('grain' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
