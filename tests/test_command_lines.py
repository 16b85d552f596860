"""The three programs treat help, the version and mistakes alike."""

import importlib.metadata
from pathlib import Path

import pytest

import infra.cli
import pipeline.cli
import trainer.cli
from pipeline import front_door
from pipeline.front_door import Program

PROGRAMS = (pipeline.cli.PROGRAM, trainer.cli.PROGRAM, infra.cli.PROGRAM)
COMMANDS = [(program, name) for program in PROGRAMS for name in program.commands]
by_name = pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda program: str(program.name)
)


@by_name
def test_help_lists_the_commands(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("-h", "--help"):
        assert front_door.run(program, [flag]) == 0
        shown, said = capsys.readouterr()
        assert said == ""
        for name in program.commands:
            assert f"python -m {program.name} {name} " in shown


@by_name
def test_the_version_is_the_package_s(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front_door.run(program, ["--version"]) == 0
    version = importlib.metadata.version("vast-rl")
    assert capsys.readouterr() == (f"vast-rl {version}\n", "")


@by_name
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["trian"], "error: unknown command 'trian'; expected one of"),
        (["--verbose"], "error: unknown command '--verbose'; expected one of"),
        ([], "error: no command; expected one of"),
    ],
)
def test_an_unknown_command_is_a_line_and_a_list(
    program: Program,
    arguments: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert front_door.run(program, arguments) == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    first, *others = said.splitlines()
    assert first == line
    assert len(others) == len(program.commands)


@pytest.mark.parametrize(
    ("program", "name"), COMMANDS, ids=[f"{p.name}-{name}" for p, name in COMMANDS]
)
def test_every_command_has_help(
    program: Program, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        front_door.run(program, [name, "--help"])
    assert ended.value.code == 0
    shown, said = capsys.readouterr()
    assert said == ""
    assert f"usage: python -m {program.name} {name}" in shown
    summary = (program.commands[name].__doc__ or "").splitlines()[0]
    assert " ".join(summary.split()[:3]) in shown


@pytest.mark.parametrize(
    ("program", "words", "ending"),
    [
        ("pipeline", ["set-environment"], "OPTIONS] STORE [ENVIRONMENT]"),
        ("trainer", ["train"], "OPTIONS] [CONFIG]"),
        ("trainer", ["evaluate"], "OPTIONS] RUN"),
        # tyro lists few options themselves.
        (
            "trainer",
            ["checkpoint", "export"],
            " export [-h] RUN --out PATH [--format {safetensors,stablehlo}] "
            "[--step INT] [--seed INT]",
        ),
        ("trainer", ["sweep"], "OPTIONS] SWEEP"),
        ("infra", ["launch", "train"], "OPTIONS] CONFIG"),
    ],
)
def test_positional_arguments_are_named(
    program: str, words: list[str], ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (known,) = (p for p in PROGRAMS if p.name == program)
    with pytest.raises(SystemExit):
        front_door.run(known, [*words, "--help"])
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage.endswith(ending)


@by_name
def test_a_wrong_option_ends_with_2(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    name = list(program.commands)[-1]
    with pytest.raises(SystemExit) as ended:
        front_door.run(program, [name, "--nonsense"])
    assert ended.value.code == 2
    shown, said = capsys.readouterr()
    assert shown == ""
    assert said != ""


@pytest.mark.parametrize(
    ("program", "words", "option"),
    [
        ("pipeline", "fetch cube-single-play", "--out"),
        ("pipeline", "export STORE", "--npz"),
        ("pipeline", "inspect STORE", "--plot"),
        ("pipeline", "inspect STORE", "--html"),
        (
            "pipeline",
            "collect cube-single-v0 --dataset-type play --episodes 1 --out gs://b/store",
            "--npz",
        ),
        ("trainer", "checkpoint export RUN", "--out"),
        ("trainer", "compile CONFIG --topology v5e:2x2", "--out"),
        ("trainer", "toy", "--out"),
    ],
)
def test_files_of_this_machine_are_written_to_no_bucket(
    program: str,
    words: str,
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (called,) = [each for each in PROGRAMS if each.name == program]
    assert front_door.run(called, [*words.split(), option, "gs://b/of/x.npz"]) == 2
    assert capsys.readouterr().err == (
        f"error: {option}: expected a local path, got gs://b/of/x.npz; write to a "
        "local folder, and copy the files to the bucket afterwards\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("pipeline", "export STORE --npz out/gs:/x.npz"),
        ("pipeline", "export gs://b/store --npz C:/x.npz"),
        ("trainer", "checkpoint inspect gs://b/run"),
        ("trainer", "report gs://b/run --out gs://b/report"),
        ("trainer", "subgoals gs://b/run --store gs://b/store --out gs://b/goals"),
    ],
)
def test_other_paths_may_be_in_a_bucket(program: str, words: str) -> None:
    (called,) = [each for each in PROGRAMS if each.name == program]
    front_door.parse(called, words.split())
