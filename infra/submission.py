"""What is handed to somebody else's service, and handing it over."""

import importlib.metadata
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import LaunchError
from pipeline.output import Output, say

_INSTALL = {
    "kubectl": "https://kubernetes.io/docs/tasks/tools/",
    "sky": "pip install skypilot, in an environment of its own",
}


@dataclass(frozen=True)
class Submission:
    """One submission.

    Attributes:
        command: What is run here; ``{}`` in it stands for a file that holds the
            document.
        document: YAML it is given, on standard input or in that file; None if the
            command says it all.
        takes: What that would take: machines, chips, hours; one line each.
        reads: Folders in a bucket that must be readable, ``gs://`` only.
        writes: The same for those that must be writable.
        region: Where it runs; the buckets must be there.
        last_check: Looks, for a minute or so, at what is about to be submitted, and
            returns what to say of it; None if there is nothing to look at.
    """

    command: tuple[str, ...]
    document: str | None
    takes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    region: str | None = None
    last_check: Callable[[], str] | None = None

    def shown(self) -> str:
        """Exactly what is submitted, as text that a shell or kubectl takes."""
        return (
            format_command(self.command) if self.document is None else self.document
        ).rstrip("\n")


def launch(submission: Submission, output: Output, *, dry_run: bool) -> int:
    """Submits, or says what would be submitted.

    Args:
        submission: What.
        output: The submission is a result; what it takes is told beside it, so that
            the first can be piped on.
        dry_run: Only say so.

    Returns:
        0 on a dry run, else the exit code of the command.

    Raises:
        LaunchError: If a bucket, a permission, a region or a program is not as it
            must be; nothing has been started then.
    """
    for line in submission.takes:
        say(output.progress, f"# {line}")
    if submission.document is not None:
        command = ["FILE" if part == "{}" else part for part in submission.command]
        say(output.progress, f"# with: {shlex.join(command)}")
    if dry_run:
        say(output.results, submission.shown())
        return 0
    program = submission.command[0]
    if shutil.which(program) is None:
        raise LaunchError(
            f"{program}: not installed here; see {_INSTALL.get(program, 'its manual')}"
        )
    from infra.checks import bucket

    for path in (*submission.reads, *submission.writes):
        bucket.require(path, region=submission.region, write=path in submission.writes)
    if submission.last_check is not None:
        say(output.progress, f"# {submission.last_check()}")
    return _run(submission)


def _run(submission: Submission) -> int:
    if submission.document is None or "{}" not in submission.command:
        return subprocess.run(
            submission.command, input=submission.document, text=True, check=False
        ).returncode
    with tempfile.TemporaryDirectory(prefix="vast-rl-launch-") as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(submission.document)
        command = [str(file) if part == "{}" else part for part in submission.command]
        return subprocess.run(command, check=False).returncode


def python(*arguments: str) -> tuple[str, ...]:
    """A command of ours, run by the Python that runs this."""
    return (sys.executable or "python", "-m", *arguments)


def version() -> str:
    """Of the package here; images have to hold the same."""
    return importlib.metadata.version("vast-rl")


def format_command(command: Sequence[str]) -> str:
    r"""Lays a command out for a shell, an option a line.

    Example:
        >>> print(format_command(["python", "-m", "x", "a b", "--y", "1"]))
        python -m x 'a b' \
          --y 1
    """
    program = "python" if command[0] == sys.executable else command[0]
    lines = [shlex.quote(program)]
    for part in command[1:]:
        if part.startswith("--"):
            lines.append(shlex.quote(part))
        else:
            lines[-1] += f" {shlex.quote(part)}"
    return " \\\n  ".join(lines)


def to_yaml(documents: Sequence[Any]) -> str:
    """Writes documents in the order of their keys, the same every time."""
    import yaml  # Help, and whatever launches nothing, do without the package.

    class Dumper(yaml.SafeDumper):
        """Texts of several lines stay readable, and nothing is said by reference."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    return yaml.dump_all(
        documents,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=88,
        explicit_start=True,
    )
