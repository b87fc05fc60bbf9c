"""What pages show is run as it is printed, on one rank and on two; commands, in an empty folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from spgnn.testing import run_ranks
from tests.docs.pages import PAGES, ROOT, blocks, name_of

# tests/kernels/test_torch_integration.py runs these.
ELSEWHERE = ("docs/kernels.md",)
PROGRAMS = [page for page in PAGES if name_of(page) not in ELSEWHERE and blocks(page, "python")]
COMMANDS = [page for page in PAGES if blocks(page, "sh")]
slow = pytest.mark.slow
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyG
]


def run(rank, sources, page):
    """The programs of a page, one after the other, with the names of those before."""
    scope = {"__name__": "__main__"}
    for source in sources:
        exec(compile(source, page, "exec", dont_inherit=True), scope)


def test_programs_import_what_there_is():
    """The programs themselves run in the slow set."""
    for page in PAGES:
        for source in blocks(page, "python"):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spgnn"):
                    module = import_module(node.module)
                    for name in node.names:
                        assert hasattr(module, name.name), (
                            f"{name_of(page)}: {node.module} {name.name}"
                        )


@slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_programs(page, ranks):
    run_ranks(run, ranks, blocks(page, "python"), str(page))


@slow
@pytest.mark.parametrize("page", COMMANDS, ids=name_of)
def test_commands(page, tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for script in blocks(page, "sh"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@slow
@pytest.mark.parametrize(
    "program", sorted((ROOT / "docs" / "gallery").glob("*.py")), ids=lambda program: program.stem
)
def test_gallery(program, tmp_path):
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


EXAMPLES = blocks(ROOT / "docs" / "examples.md", "console")
NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)"


def alike(line: str, other: str) -> bool:
    """The same words, and numbers that differ by a rounding."""
    (ours, theirs) = (re.split(NUMBER, " ".join(one.split())) for one in (line, other))
    if ours[::2] != theirs[::2]:
        return False
    numbers = ([float(one.replace(",", "")) for one in parts[1::2]] for parts in (ours, theirs))
    return all(a == pytest.approx(b, rel=0.02) for a, b in zip(*numbers, strict=True))


@slow
@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.split()[-1])
def test_examples_print_what_their_page_shows(block):
    command, *expected = block.splitlines()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command.removeprefix("$ ")],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert expected
    for line in expected:
        assert line == "…" or any(alike(line, other) for other in printed), (line, printed)
