"""What each half must not bring along: checked in a fresh interpreter."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import packaging.requirements
import packaging.utils

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
    assert not {"google.cloud.storage", "orbax", "pydantic", "tensorstore"} & modules


def test_updates_need_only_the_packages_of_an_accelerators_machine() -> None:
    """The GPU benchmark runs where nothing but these has been installed."""
    packages = required("jax", "flax", "optax", "orbax-checkpoint", "tensorstore")
    missing = {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not packages & set(map(packaging.utils.canonicalize_name, distributions))
    } - {"trainer", "pipeline", "tests"}
    assert {"grain", "mujoco", "ogbench", "pydantic", "tyro"} <= missing
    # None in place of a module: Python's way to say that it cannot be imported.
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.modules.update(dict.fromkeys({sorted(missing)!r}))\n"
            "import tests.benchmarks.gpu",
        ],
        check=True,
        cwd=Path(__file__).parents[1],
    )


def required(*names: str) -> set[str]:
    """Packages and all that they require, without extras."""
    found: set[str] = set()
    waiting = [packaging.utils.canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            requirement = packaging.requirements.Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(packaging.utils.canonicalize_name(requirement.name))
    return found
