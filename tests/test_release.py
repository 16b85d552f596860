"""A release has one version, wherever it is written."""

import re
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# An image is named after the version inside it, which the launchers check.
IMAGE = re.compile(r"(?:vast-rl-[a-z-]+:|VERSION=)(\d+\.\d+\.\d+)")


def test_version_and_date_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[(.+?)\](?: - (.+))?$", changelog, re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    version, day = sections[1]
    assert version == PROJECT["version"]
    assert date.fromisoformat(day)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\ndate-released: {day}\n" in citation


def test_images_are_shown_with_the_version() -> None:
    pages = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("infra/containers/*.Dockerfile"),
        ROOT / "infra/README.md",
    ]
    shown = {version for page in pages for version in IMAGE.findall(page.read_text())}
    assert shown == {PROJECT["version"]}
