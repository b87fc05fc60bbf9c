"""The pages of the repository, as tests read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What git would commit, so that nothing built is looked at.
PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
) or sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])


def name_of(page: Path) -> str:
    """For the name of a test."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """What the fences of one language hold."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def names_of_users() -> dict[str, set[str]]:
    """The names of each room on the page of stability."""
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").partition("## Names")[2]
    rows = re.findall(r"^\| `(spgnn[.a-z]*)` \|(.*)\|$", page, re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", names)) for room, names in rows}
