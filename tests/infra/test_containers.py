"""Container recipes. None is built here: a linter reads them, and so do these tests."""

import re
import subprocess
from pathlib import Path

import pytest

from infra.targets.jobset import USER
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
    # The last user is the one it runs as, and the one the manifests ask for.
    assert [line for line in lines if line.startswith("USER ")][-1] == f"USER {USER}"
    assert f"useradd --uid {USER}" in text
    # Nothing is installed but under the lock file.
    (install,) = re.findall(r"pip install .*?&&", text, re.DOTALL)
    assert "--constraint infra/constraints.txt" in install
    assert not re.search(r"secret|token|password|api.?key", text, re.IGNORECASE)
    copied = set(re.findall(r"^COPY ((?:\S+ )+)\S+$", text, re.MULTILINE))
    words = {word for line in copied for word in line.split()}
    ignored = recipe.with_name(f"{recipe.name}.dockerignore").read_text().splitlines()
    # All but what is copied stays out of the build.
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == words
    assert all(Path(word).exists() for word in words)


def test_neither_half_brings_the_other_along():
    pipeline = (FOLDER / "pipeline.Dockerfile").read_text()
    assert "'.[pipeline,cloud]'" in pipeline
    assert "trainer" not in pipeline.lower().replace("trainers", "")
    for kind, extra in (("cuda", "cuda12"), ("tpu", "tpu")):
        trainer = (FOLDER / f"trainer-{kind}.Dockerfile").read_text()
        assert f"'jax[{extra}]'" in trainer
        extras = set(re.findall(r"'\.\[(\S+)\]'", trainer))
        assert extras == {"trainer,eval,report"}


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
