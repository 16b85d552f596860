"""Submissions: jobs for a service, and the function that hands them over."""

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

# Where to get programs that no extra of this package can install.
_INSTALL = {
    "kubectl": "https://kubernetes.io/docs/tasks/tools/",
    "sky": "pip install skypilot, in an environment of its own",
}


@dataclass(frozen=True)
class EarlierJob:
    """A job of an earlier launch, which the service keeps under the same name.

    Attributes:
        name: Kind and name of the job.
        ended: Whether the job has ended or is being removed.
        removal: Command that removes the job and waits until it is gone.
    """

    name: str
    ended: bool
    removal: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be submitted.

    Attributes:
        command: Command to run on this machine; ``{}`` in it stands for the path of a
            file that contains the document.
        document: YAML for the command, on standard input or in that file; None if the
            command needs none.
        costs: Lines that say what the job would take: machines, chips, hours.
        reads: Folders in buckets that must be readable, ``gs://`` only.
        writes: Folders in buckets that must be writable, ``gs://`` only.
        region: Region of the job, which the buckets must have, too.
        last_check: Function that checks the job for a minute or so before it is
            submitted, and returns a line to report; None if there is no such check.
        find_earlier: Function that finds the job in whose place this one would be; None
            for services that keep no job in the way of another.
    """

    command: tuple[str, ...]
    document: str | None
    costs: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    region: str | None = None
    last_check: Callable[[], str] | None = None
    find_earlier: Callable[[], EarlierJob | None] | None = None

    def format(self) -> str:
        """Returns the submission as text that a shell or kubectl accepts."""
        # A dry run prints this, so that it can be read, kept or piped on.
        return (
            format_command(self.command) if self.document is None else self.document
        ).rstrip("\n")


def launch(submission: Submission, output: Output, *, dry_run: bool) -> int:
    """Submits a job, or prints what would be submitted.

    A job of the same name that has not ended is left alone; one that has ended is
    removed first, because its service would not run it again.

    Args:
        submission: The job to submit.
        output: Console of results, for the submission itself, and of progress, for what
            it would take.
        dry_run: Whether to print only.

    Returns:
        0 on a dry run, or if an earlier job is left alone; else the exit code of the
        command.

    Raises:
        LaunchError: If a program is missing, or a bucket, its permissions or its region
            do not suit the job; nothing has been started then.
    """
    # Costs go to standard error: standard output is then a document that can be piped
    # into kubectl.
    for line in submission.costs:
        say(output.progress, f"# {line}")
    if submission.document is not None:
        command = ["FILE" if part == "{}" else part for part in submission.command]
        say(output.progress, f"# with: {shlex.join(command)}")
    if dry_run:
        say(output.results, submission.format())
        return 0
    require_program(submission.command[0])
    # Asked before the checks, which are of no use then.
    if _leave_alone(_find_earlier(submission), output):
        return 0
    # Imported late, because a dry run needs no client of Cloud Storage.
    from infra.checks import bucket

    for path in (*submission.reads, *submission.writes):
        bucket.require(path, region=submission.region, write=path in submission.writes)
    # This check comes last: it takes longest, and is of no use if a bucket is wrong.
    if submission.last_check is not None:
        say(output.progress, f"# {submission.last_check()}")
    # Asked again: during minutes of checks, somebody else may have launched the job.
    earlier = _find_earlier(submission)
    if _leave_alone(earlier, output):
        return 0
    if earlier is not None:
        say(output.progress, f"# {earlier.name} has ended; a new one takes its place")
        code = subprocess.run(earlier.removal, check=False).returncode
        if code != 0:
            return code
    return _run(submission)


def _find_earlier(submission: Submission) -> EarlierJob | None:
    return None if submission.find_earlier is None else submission.find_earlier()


def _leave_alone(earlier: EarlierJob | None, output: Output) -> bool:
    """Says whether a job is in the way that has not ended, and tells the user."""
    if earlier is None or earlier.ended:
        return False
    say(
        output.progress,
        f"# left alone: {earlier.name} has not ended; `{shlex.join(earlier.removal)}` "
        "would stop and remove it",
    )
    return True


def ask(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs a command to read what it prints, which the terminal does not show.

    Args:
        command: Program and arguments.

    Returns:
        The command that has ended, and the last line of its errors, for a message.
    """
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = asked.stderr.strip().splitlines()
    return asked, lines[-1] if lines else "it said nothing"


def require_program(name: str) -> None:
    """Raises a LaunchError if a program is not installed on this machine."""
    if shutil.which(name) is None:
        raise LaunchError(
            f"{name}: not installed here; see {_INSTALL.get(name, 'its manual')}"
        )


def _run(submission: Submission) -> int:
    # The command's output is not captured: its progress and errors go to this terminal.
    if submission.document is None or "{}" not in submission.command:
        return subprocess.run(
            submission.command, input=submission.document, text=True, check=False
        ).returncode
    with tempfile.TemporaryDirectory(prefix="vast-rl-launch-") as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(submission.document)
        command = [str(file) if part == "{}" else part for part in submission.command]
        return subprocess.run(command, check=False).returncode


def make_command(*arguments: str) -> tuple[str, ...]:
    """Makes the command of a module of this package, for the running interpreter.

    Args:
        *arguments: Name of the module, and its arguments.

    Returns:
        The command.
    """
    # Embedded interpreters have no path of their own.
    return (sys.executable or "python", "-m", *arguments)


def read_version() -> str:
    """Returns the version of this package, which images must contain, too."""
    return importlib.metadata.version("vast-rl")


def format_command(command: Sequence[str]) -> str:
    r"""Formats a command for a shell, with each option on its own line.

    Args:
        command: Program and arguments.

    Returns:
        Text that a POSIX shell parses to the same arguments.

    Example:
        >>> print(format_command(["python", "-m", "x", "a b", "--y", "1"]))
        python -m x 'a b' \
          --y 1
    """
    # The path of this interpreter means nothing on another machine.
    program = "python" if command[0] == sys.executable else command[0]
    lines = [shlex.quote(program)]
    for part in command[1:]:
        if part.startswith("--"):
            lines.append(shlex.quote(part))
        else:
            lines[-1] += f" {shlex.quote(part)}"
    return " \\\n  ".join(lines)


def to_yaml(documents: Sequence[Any]) -> str:
    """Writes YAML documents, with keys in the order of the given mappings.

    Args:
        documents: Plain values.

    Returns:
        The same text for the same documents.
    """
    # Help, and commands that launch nothing, work without this package.
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper that keeps texts of several lines readable, and uses no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            # An object that occurs twice is written twice: readers of a manifest should
            # not have to look up `*id001`.
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
