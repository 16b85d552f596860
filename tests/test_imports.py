"""Modules that a package must not import, checked in a fresh interpreter."""

import ast
import functools
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import packaging.requirements
import packaging.utils
import pytest

from pipeline.front_door import EXTRAS
from tests.stores import write_store

ROOT = Path(__file__).parents[1]

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
    assert {"jax", "grain", "trainer.training.loop"} <= modules
    assert not {"apache_beam", "mujoco", "ogbench", "gymnasium", "dm_control"} & modules


def test_the_pipeline_loads_neither_jax_nor_the_trainer() -> None:
    modules = loaded("pipeline")
    assert {"apache_beam", "tensorstore", "pipeline.beam.pipelines"} <= modules
    assert not {"jax", "flax", "optax", "grain", "orbax", "trainer"} & modules


def test_the_store_loads_no_beam() -> None:
    modules = loaded("pipeline.store")
    assert "tensorstore" in modules
    assert not {"apache_beam", "mujoco", "jax"} & modules


API = """
import sys
import trainer.api
trainer.api.open_store({store!r}).fields
print(*sys.modules)
assert callable(trainer.api.train) and trainer.api.LoadedPolicy.act
"""


def test_a_store_is_opened_without_jax(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", API.format(store=str(write_store(tmp_path)))],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stdout.split())
    assert {"tensorstore", "trainer.api.policy", "trainer.api.training"} <= modules
    assert not {"apache_beam", "gymnasium", "grain", "jax", "orbax"} & modules


HELP = """
import contextlib, io, sys
import infra.cli, pipeline.cli, trainer.cli
for cli in (infra.cli, pipeline.cli, trainer.cli):
    assert cli.main(["--help"]) == 0
    for command in cli.PROGRAM.commands:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
print("loaded", *sys.modules)
"""


def test_help_loads_nothing_that_takes_seconds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert {"tyro", "trainer.commands.train", "pipeline.commands.shard"} <= modules
    heavy = {"apache_beam", "grain", "jax", "matplotlib", "mujoco", "numpy"}
    assert not heavy & modules
    heavy = {"google.cloud.storage", "orbax", "pydantic", "tensorstore", "yaml"}
    assert not heavy & modules


def test_updates_need_only_the_packages_of_an_accelerators_machine() -> None:
    """The GPU benchmark runs on a machine that has only these packages."""
    packages = required("jax", "flax", "optax", "orbax-checkpoint", "tensorstore")
    missing = {
        module
        for module, distributions in distributions_by_module().items()
        if not packages & set(map(packaging.utils.canonicalize_name, distributions))
    } - {"trainer", "pipeline", "tests"}
    assert {"grain", "mujoco", "ogbench", "pydantic", "tyro"} <= missing
    # None in place of a module makes Python refuse to import it.
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.modules.update(dict.fromkeys({sorted(missing)!r}))\n"
            "import tests.benchmarks.gpu",
        ],
        check=True,
        cwd=ROOT,
    )


def imported() -> set[str]:
    """Top-level names of the other projects' modules that the source imports."""
    names: set[str] = set()
    packages = ("pipeline", "trainer", "infra")
    for file in (file for name in packages for file in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - set(packages)


def test_whatever_may_be_missing_is_named_with_its_extra() -> None:
    base = provided_by("vast-rl")
    assert {"numpy", "tensorstore"} <= base
    names = imported()
    assert {"apache_beam", "jax", "mujoco"} <= names - base
    assert names - base <= EXTRAS.keys()


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_the_extra_that_is_named_brings_the_module(module: str, extra: str) -> None:
    if extra == "wandb":  # `make setup` does not install it.
        pytest.importorskip(module, reason="the extra wandb is not installed")
    assert module in provided_by(f"vast-rl[{extra}]")


@functools.cache
def distributions_by_module() -> dict[str, list[str]]:
    """Packages by the modules they contain; cached, as this takes a second."""
    return dict(importlib.metadata.packages_distributions())


def provided_by(requirement: str) -> set[str]:
    """Top-level names of the modules that a requirement installs."""
    packages = required(requirement)
    return {
        module
        for module, distributions in distributions_by_module().items()
        if packages & set(map(packaging.utils.canonicalize_name, distributions))
    }


def required(*lines: str) -> set[str]:
    """Names of packages, with their extras, and of all packages that they require."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [packaging.requirements.Requirement(line) for line in lines]
    while waiting:
        asked = waiting.pop()
        name = packaging.utils.canonicalize_name(asked.name)
        if (name, frozenset(asked.extras)) in found:
            continue
        found.add((name, frozenset(asked.extras)))
        for line in importlib.metadata.requires(name) or ():
            requirement = packaging.requirements.Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra})
                for extra in ("", *asked.extras)
            ):
                waiting.append(requirement)
    return {name for name, _ in found}
