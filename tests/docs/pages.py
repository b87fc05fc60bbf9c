"""The pages of the repository, as tests read them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def printed(command, folder, **variables):
    """Output of a command that ends well; it looks for programs beside this Python first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path} | variables
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


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
