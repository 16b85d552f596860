"""Runs are compiled, or given figures are checked, before they are submitted."""

import json
import subprocess

import pytest

from infra.cli import main
from infra.commands import compiling
from infra.errors import LaunchError
from infra.estimates.compiled import parse_figures
from tests.infra.command_lines import GPU, TPU, printed, refused
from tests.infra.compiled_call import FIGURES

COMMAND = f"{TPU} --chips 16".replace(
    "tests/infra/run.toml", "configs/cube-single-play.toml"
)


@pytest.fixture
def given(tmp_path):
    """Writes figures with some changed values, and returns the options for them."""

    def write(**others):
        path = tmp_path / "costs.json"
        path.write_text(json.dumps(FIGURES | others))
        return f"{COMMAND} --compiled {path}"

    return write


def test_figures_that_fit_are_told(given, capsys):
    _, error = printed(capsys, f"{given()} -- --mesh.data 1 --mesh.fsdp 16")
    assert (
        "# compiled for v6e-16: 8 GB, 25% of a chip's memory; at least 0.200 ms an "
        "update, bound by links\n"
    ) in error


@pytest.mark.parametrize(
    ("others", "more", "said"),
    [
        ({}, "", "mesh.data: 1, launched 16; mesh.fsdp: 16, launched 1"),
        ({}, "--mesh.data 1 --mesh.fsdp 16 --agent.width 1024", "512, launched 1024"),
        ({}, "--mesh.data 1 --mesh.fsdp 16 --agent fql", "agent."),
        ({"accelerator": "v5e"}, "", "accelerator: 'v5e', launched 'v6e'"),
        (
            {"memory_share": 1.2},
            "--mesh.data 1 --mesh.fsdp 16",
            "does not fit v6e-16: it takes 8 GB, 120% of a chip's memory",
        ),
        ({"memory": 3}, "", "costs.json: expected figures of"),
    ],
)
def test_other_programs_and_what_does_not_fit_are_refused(
    others, more, said, given, capsys
):
    assert said in refused(capsys, f"{given(**others)} -- {more}")


def test_a_program_for_gpus_must_fit_what_jax_takes_of_them():
    gpu = FIGURES | {"topology": "h100-8", "accelerator": "h100"}
    assert "70%" in compiling._check_fits(parse_figures(gpu | {"memory_share": 0.7}))
    with pytest.raises(
        LaunchError, match="90% of a chip's memory, of which JAX uses 75%"
    ):
        compiling._check_fits(parse_figures(gpu | {"memory_share": 0.9}))


@pytest.fixture
def launched(monkeypatch):
    """Replaces submitting, which is recorded, and compiling, with given answers."""
    ran, compiled = [], []
    answer = subprocess.CompletedProcess((), 0, json.dumps(FIGURES), "")
    monkeypatch.setattr("infra.checks.bucket.require", lambda *args, **kwargs: None)
    monkeypatch.setattr("infra.submission.shutil.which", lambda name: name)
    monkeypatch.setattr("infra.submission._find_earlier", lambda submission: None)
    monkeypatch.setattr("infra.submission._run", lambda each: ran.append(each) or 0)
    monkeypatch.setattr(
        "infra.commands.compiling.subprocess.run",
        lambda command, **_: compiled.append(command[3:]) or answer,
    )
    return ran, compiled, answer


def test_a_launch_compiles_first_what_it_launches(launched, capsys):
    ran, compiled, answer = launched
    command = COMMAND.replace("--dry-run ", "")
    more = "-- --profile gs://b/t --agent fql --trainer.seeds 8"
    assert main([*command.split(), *more.split()]) == 0
    assert [
        *("compile", "configs/cube-single-play.toml", "--topology", "v6e-16"),
        *("--task", "1", "--json", "--agent", "fql", "--trainer.seeds", "8"),
    ] == list(compiled[0])
    assert "compiled for v6e-16: 8 GB, 25%" in capsys.readouterr().err
    assert len(ran) == 1
    assert main([*command.split(), "--no-compile"]) == 0
    assert (len(ran), len(compiled)) == (2, 1)

    answer.stdout, answer.returncode = "", 2
    answer.stderr = "--topology v6e-16: the compiler for TPUs is not installed; ...\n"
    assert main(command.split()) == 0
    said = capsys.readouterr().err
    assert "# not compiled before it is launched: --topology v6e-16: the comp" in said
    assert len(ran) == 3


def test_what_does_not_fit_is_not_launched(launched, capsys):
    ran, _, answer = launched
    answer.stdout, answer.returncode = json.dumps(FIGURES | {"memory_share": 1.1}), 1
    command = f"{GPU} --chips 8".replace("--dry-run ", "")
    assert "does not fit" in refused(capsys, command)
    answer.stdout = ""
    answer.stderr = "the call does not fit: the compiler gives up at 20G of 16G\n"
    assert "h100-8: the call does not fit" in refused(capsys, command)
    assert ran == []
