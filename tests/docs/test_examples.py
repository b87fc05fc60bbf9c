"""What pages show is run as it is printed, on one rank and on two; commands, in an empty folder."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from importlib import import_module

import pytest

from spgnn.testing import run_ranks
from tests.docs.pages import PAGES, ROOT, blocks, name_of, printed

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
    for script in blocks(page, "sh"):
        printed(["bash", "-euo", "pipefail", "-c", script], tmp_path)


@slow
@pytest.mark.parametrize(
    "program", sorted((ROOT / "docs" / "gallery").glob("*.py")), ids=lambda program: program.stem
)
def test_gallery(program, tmp_path):
    assert printed([sys.executable, program], tmp_path, MPLBACKEND="Agg")


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
    lines = printed(["bash", "-c", command.removeprefix("$ ")], ROOT).splitlines()
    assert expected
    for line in expected:
        assert line == "…" or any(alike(line, other) for other in lines), (line, lines)


SCRIPTS = sorted((ROOT / "experiments").rglob("*.py"))
OURS = [path for path in SCRIPTS if "__main__" in path.read_text()]


@pytest.mark.parametrize("program", OURS, ids=name_of)
def test_help_says_what_a_program_does(program, monkeypatch, capsys):
    monkeypatch.syspath_prepend(program.parent)
    monkeypatch.setattr(sys, "argv", [str(program), "--help"])
    with pytest.raises((SystemExit, ModuleNotFoundError)) as end:
        runpy.run_path(str(program), run_name="__main__")
    if end.errisinstance(ModuleNotFoundError):
        pytest.skip(f"{end.value}")  # of a guest
    usage, _, sentence = capsys.readouterr().out.partition("\n\n")
    assert usage.lower().startswith("usage")
    assert len(sentence.partition("\n\n")[0].split()) > 4
    assert not end.value.code
