"""Texts of users are printed unchanged, and are no markup."""

import ast
import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

import pipeline
from pipeline.output import say, show, working

ROOT = Path(pipeline.__file__).parents[1]
SOURCES = [
    path
    for name in ("pipeline", "trainer", "infra")
    for path in ROOT.glob(f"{name}/**/*.py")
]
TEXTS = ["/data/[/a]/x", "[red]run[/red]", "[v1]", ":heart:", "\\[x]", "~/run"]


def console(**options):
    return Console(file=io.StringIO(), width=20, **options)


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_printed_as_it_is(text):
    to = console(force_terminal=False)
    say(to, text * 4)
    with working(to, text) as say_now:
        say_now(text)
    assert to.file.getvalue().splitlines()[0] == text * 4


@pytest.mark.parametrize("text", TEXTS)
def test_cells_are_printed_as_they_are(text):
    from pipeline.output import Output

    to = Output.standard().results
    to.file, to.width = io.StringIO(), 80
    table = Table(text)
    table.add_row(text)
    show(to, table)
    assert to.file.getvalue().count(text) == 2


def find_markup(tree):
    """Finds calls that print, and calls that read text as markup by default."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        attribute, name = (getattr(node.func, each, "") for each in ("attr", "id"))
        told = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if attribute in ("print", "status", "from_markup"):
            yield node.lineno, attribute
        if "TextColumn" in (attribute, name) and told.get("markup") != "False":
            yield node.lineno, "TextColumn"


def test_the_search_finds_what_it_is_for():
    code = (
        "c.print(x)\nc.status(x)\nTextColumn(x)\nTextColumn(x, markup=False)\nprint(x)"
    )
    found = list(find_markup(ast.parse(code)))
    assert found == [(1, "print"), (2, "status"), (3, "TextColumn")]


def test_everything_that_is_printed_passes_one_place():
    assert len(SOURCES) > 100
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        if path != ROOT / "pipeline" / "output.py"
        for line, name in find_markup(ast.parse(path.read_text()))
    ]
    assert found == []
