"""The programs' own parsers accept the commands that the documentation shows."""

import re
import shlex
from pathlib import Path

import pytest

import infra.cli
import pipeline.cli
import trainer.cli
from pipeline import front_door
from trainer import config as configuration

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    word: program
    for program in (pipeline.cli.PROGRAM, trainer.cli.PROGRAM, infra.cli.PROGRAM)
    for word in (f"python -m {program.name}", program.script)
}
READMES = ("README.md", "infra/README.md", "tests/benchmarks/README.md")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (*ROOT.glob("docs/**/*.md"), *map(ROOT.joinpath, READMES))
)


def shown_commands(text: str) -> list[list[str]]:
    """Words of each command line of the three programs in a page's fenced blocks."""
    lines = []
    for block in re.findall(r"^ *```[^\n]*\n(.*?)^ *```$", text, re.DOTALL | re.M):
        lines += block.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if is_ours(line)]
    # Lines with alternatives or omissions stand for several commands, and are skipped.
    whole = [line for line in words if not set("".join(line)) & set("{[")]
    whole = [line for line in whole if "..." not in line]
    return [line[2:] if line[0] == "python" else line for line in whole]


def is_ours(line: str) -> bool:
    return any(re.match(rf"\s*{re.escape(word)}\s", line) for word in PROGRAMS)


def check(words: list[str]) -> None:
    """Parses a command line, and resolves the configuration that it names."""
    name, *arguments = words
    program = next(
        program
        for word, program in PROGRAMS.items()
        if name in (word, word.rpartition(" ")[2])
    )
    command, more = front_door.parse(program, arguments)
    if arguments[0] in program.loose:
        configuration.resolve(
            command.config, agent=command.agent, dataset="x", overrides=more, prog=name
        )
    elif getattr(command, "config", None) is not None:
        configuration.load(command.config, task=1)


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_shows_are_accepted(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in shown_commands((ROOT / page).read_text()):
        try:
            check(words)
        except SystemExit:
            pytest.fail(f"{page}: {shlex.join(words)}")


def test_a_wrong_option_or_field_is_refused():
    text = "```\npython -m trainer train cube-single-play --store a --out b {}\n```\n"
    for wrong in ("--nonsense 1", "--agent.nonsense 1"):
        (words,) = shown_commands(text.format(wrong))
        with pytest.raises(SystemExit):
            check(words)
    (words,) = shown_commands(text.format("--agent.width 64"))
    check(words)
