"""Container recipes. No image is built: a linter and these tests read the recipes."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from infra.targets.kubernetes import USER
from tests.infra.command_lines import installed

FOLDER = Path("infra/containers")
RECIPES = sorted(FOLDER.glob("*.Dockerfile"))
PIN = re.compile(r"([A-Za-z0-9_.-]+)==\S+( ; .+)?")


def test_there_is_a_recipe_for_each_kind_of_worker():
    assert [recipe.name for recipe in RECIPES] == [
        "pipeline.Dockerfile",
        "trainer-cuda.Dockerfile",
        "trainer-tpu.Dockerfile",
    ]


def lint(recipe: Path) -> subprocess.CompletedProcess[str]:
    program = installed("hadolint")
    return subprocess.run([program, str(recipe)], capture_output=True, text=True)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(recipe):
    done = lint(recipe)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_linter_can_fail(tmp_path):
    recipe = tmp_path / "Dockerfile"
    recipe.write_text("FROM debian:latest\nRUN cd /tmp && pip install x\n")
    done = lint(recipe)
    assert done.returncode == 1
    assert {"DL3007", "DL3003"} <= set(re.findall(r"DL\d+", done.stdout))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_what_is_in_an_image(recipe):
    text = recipe.read_text()
    lines = text.splitlines()
    (base,) = [line for line in lines if line.startswith("FROM ")]
    assert re.search(r":[\d.]+(-\S+)?$", base)
    users = [line for line in lines if line.startswith("USER ")]
    if recipe.stem == "pipeline":
        # Dataflow mounts folders of root's into the container.
        assert users == []
        assert re.search(
            r"^ENV .*\bRUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1$", text, re.M
        )
    else:
        # An image runs as its last user, which must be the user of the manifests.
        assert users[-1] == f"USER {USER}"
    assert f"useradd --uid {USER}" in text
    # Packages are installed by their hashes, and this project from the copied files.
    packages, project = re.findall(r"pip install (.*?)\\?\n", text)
    assert packages == (
        "--no-cache-dir --require-hashes --requirement infra/requirements.txt "
    )
    assert {"--no-index", "--no-deps", "--no-build-isolation", "."} < {*project.split()}
    locked = f"COPY infra/containers/{recipe.stem}.txt infra/requirements.txt\n"
    assert locked in text
    assert not re.search(r"secret|token|password|api.?key", text, re.IGNORECASE)
    copied = set(re.findall(r"^COPY ((?:\S+ )+)\S+$", text, re.MULTILINE))
    words = {word for line in copied for word in line.split()}
    ignored = recipe.with_name(f"{recipe.name}.dockerignore").read_text().splitlines()
    # Only files that are copied are sent to the builder.
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == words
    assert all(Path(word).exists() for word in words)


def test_the_driver_of_a_node_is_found():
    # "About the CUDA libraries" of GKE's page "Run GPUs": the node's driver is mounted
    # there, and only images of NVIDIA's have that folder in the loader's path.
    text = (FOLDER / "trainer-cuda.Dockerfile").read_text()
    assert re.search(r"^ENV .*\bLD_LIBRARY_PATH=/usr/local/nvidia/lib64$", text, re.M)


def read_locked(file: Path) -> dict[str, str]:
    """Reads versions by name from a file in which every package has its hashes."""
    text = file.read_text()
    digests = r"(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
    packages = re.findall(
        rf"^(\S+)==(\S+)(?: ; [^\\]+)? \\\n{digests}", text, re.MULTILINE
    )
    # The file has no other lines than these.
    assert len(packages) == len(re.findall(r"^\S", text, re.MULTILINE)) > 50
    return {name.partition("[")[0]: version for name, version in packages}


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("pipeline", ("pipeline", "cloud")),
        ("trainer-cuda", ("trainer", "eval", "report")),
        ("trainer-tpu", ("trainer", "eval", "report")),
    ],
)
def test_images_install_what_is_locked_by_hash(name, extras):
    locked = read_locked(FOLDER / f"{name}.txt")
    pinned = {}
    for file in (Path("infra/constraints.txt"), FOLDER / "accelerators.txt"):
        for line in file.read_text().splitlines():
            package, _, version = line.partition(" ;")[0].partition("==")
            pinned.setdefault(package, set()).add(version)
    # The package that builds this project is pinned only in these lists.
    others = {package for package in locked if package not in pinned}
    assert others <= {"setuptools"}
    assert all(locked[each] in pinned[each] for each in locked.keys() - others)
    project = tomllib.loads(Path("pyproject.toml").read_text())
    asked = list(project["project"]["dependencies"])
    for extra in extras:
        asked += project["project"]["optional-dependencies"][extra]
    asked += (FOLDER / f"{name}.in").read_text().split()
    assert {requirement_name(each) for each in asked} <= locked.keys()
    script = (FOLDER / "lock.sh").read_text()
    assert f"lock {name} {' '.join(extras)}\n" in script


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_neither_half_brings_the_other_along():
    pipeline = (FOLDER / "pipeline.Dockerfile").read_text()
    assert "trainer" not in pipeline.lower().replace("trainers", "")
    assert not {"jax", "flax", "orbax-checkpoint"} & {
        *read_locked(FOLDER / "pipeline.txt")
    }
    for kind, brought in (("cuda", "jax-cuda12-plugin"), ("tpu", "libtpu")):
        locked = read_locked(FOLDER / f"trainer-{kind}.txt")
        assert {"jax", "ogbench", brought} <= locked.keys()
        assert "apache-beam" not in locked


def test_accelerators_are_pinned_besides_the_lock_file():
    locked, more = (
        {
            found[1]
            for line in Path(file).read_text().splitlines()
            if (found := PIN.fullmatch(line))
        }
        for file in ("infra/constraints.txt", FOLDER / "accelerators.txt")
    )
    assert {"jax", "jaxlib", "apache-beam", "gcsfs", "google-cloud-storage"} <= locked
    assert {"jax-cuda12-plugin", "nvidia-nccl-cu12", "libtpu"} <= more
    assert not locked & more
    lines = (FOLDER / "accelerators.txt").read_text().splitlines()
    assert all(line.startswith("#") or PIN.fullmatch(line) for line in lines)
    # JAX and its plugin must be of one version.
    versions = {
        version
        for file in ("infra/constraints.txt", str(FOLDER / "accelerators.txt"))
        for version in re.findall(
            r"^(?:jaxlib|jax-cuda12-plugin)==(\S+)(?: ; python_full_version < .*)?$",
            Path(file).read_text(),
            re.MULTILINE,
        )
    }
    assert len(versions) == 1
