"""Every message for a user names a place, and says what to do next.

The messages are read from the source: the first argument of every ``OSError``, and of
every exception with an ``exit_code``. A message has to

- name a place, by an interpolated value, an option, a setting or a variable; and
- say what to do next, in a clause that begins with a verb of the list below. The step
  may be left out where it is obvious: in a message that begins with the option or field
  to correct, and says what was expected of it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for package in ("pipeline", "trainer", "infra")
    for path in sorted((ROOT / package).rglob("*.py"))
}
# An interpolated value, an option, or names before a colon at the beginning.
PLACE = re.compile(r"\{|--[a-z]|^[\w.]+( and [\w.]+)*: ")
# An option or a field at the beginning, perhaps after the file that holds it.
NAMED = re.compile(
    r"(\{[^{}]*\}: )?(--[a-z{]|\{\w*name\w*\}: |[a-z_]+(\.|: |, | and ))"
)
# Texts with fewer letters only join parts that are written elsewhere.
LEAST_LETTERS = 12
# The reader of a checkpoint adds the step to this text, and what to do.
COMPLETED_ELSEWHERE = re.compile(r": bytes have changed$")
ADVICE = re.compile(r"\{\w*(remedy|advice|hint)\w*", re.IGNORECASE)
VERBS = re.compile(
    r"(add|append|ask|begin|build|change|check|choose|clear|collect|compare|compile"
    r"|convert|copy|correct|delete|describe|download|end|evaluate|export|extract|fetch"
    r"|fill|finish|fit|fix|follow|free|give|increase|install|join|keep|leave|let|look"
    r"|lower|make|mark|mend|merge|move|name|omit|open|pip|put|raise|read|record|reduce"
    r"|relabel|remove|rename|repeat"
    r"|report|reshape|restart|resume|run|say|scale|see|send|set|shard|shorten|show|split"
    r"|start|stop|store|take|train|try|turn|update|upgrade|use|verify|wait|wrap|write)"
    r"\b",
    re.IGNORECASE,
)


def find_classes() -> frozenset[str]:
    """Names of exceptions with an exit code, and of classes derived from them."""
    classes = [
        node
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    names = {
        node.name
        for node in classes
        for line in node.body
        if isinstance(line, ast.Assign | ast.AnnAssign)
        and ast.unparse(line).startswith("exit_code")
    }
    while derived := {
        node.name
        for node in classes
        if node.name not in names
        and names & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    }:
        names |= derived
    return frozenset(names | {"OSError"})


def text_of(node: ast.expr) -> str:
    """The text of an expression, with interpolated values in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body):
            return text_of(body)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
    return f"{{{ast.unparse(node)}}}"


def find_messages() -> Iterator[tuple[str, str]]:
    """Every message, after its file and line."""
    classes = find_classes()
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            if ast.unparse(node.func).rpartition(".")[2] in classes:
                text = text_of(node.args[0])
                if (
                    sum(map(str.isalpha, re.sub(r"\{[^{}]*\}", "", text)))
                    >= LEAST_LETTERS
                ):
                    yield f"{path}:{node.lineno}", text


def find_fault(message: str) -> str | None:
    """Says what a message lacks; None if it is complete."""
    if PLACE.search(message) is None:
        return "no place"
    clauses = re.split(r"[;.:,]\s+(?:or |and |so |then |first )?", message)[1:]
    if any(pattern.search(message) for pattern in (ADVICE, COMPLETED_ELSEWHERE)):
        return None
    if any(map(VERBS.match, clauses)):
        return None
    if NAMED.match(message) and "expected" in message.lower():
        return None
    return "no next step, nor an option or field to correct"


def test_messages_name_a_place_and_a_next_step():
    messages = list(find_messages())
    assert len(messages) > 350
    faults = [
        f"{where}: {fault}: {message}"
        for where, message in messages
        if (fault := find_fault(message)) is not None
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("expected a number above 0", "no place"),
        ("{path}: is damaged", "no next step"),
        ("{path}: is damaged; the checksum differs", "no next step"),
        ("{path}: is damaged; fetch it again", None),
        ("{path}: expected 3 rows, got 4", "no next step"),
        ("{path}: expected 3 rows, got 4; write it again", None),
        ("{path}: tasks.{name}: expected a number from 1", None),
        ("--chips: expected at least 1", None),
        ("trainer.seeds: {agent} has no seeds", "no next step"),
    ],
)
def test_what_counts_as_a_fault(message, fault):
    found = find_fault(message)
    assert found == fault if fault is None else found.startswith(fault)
