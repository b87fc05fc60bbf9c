"""The import rules of docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spgnn"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the floor up; a room imports its own and those of floors below it, in functions as well.
FLOORS = [
    {"errors", "signals", "_native"},
    {"files", "memory", "progress", "hashing", "command"},
    {"pattern", "layout"},
    {"sparse"},
    {"kernels", "comm"},
    {"direct"},
    {"store", "sampling"},
    {"exchange"},
    {"autograd", "operands"},
    {"halo", "attention"},
    {"spmm"},
    {"data"},
    {"graph"},
    {"nn"},
    {"partition"},
    {"parts"},
    {"plan"},
    {"frontend"},
    {"train"},
    {"inference"},
    {"minibatch"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# The package's front door, its command and its test tool may use every room.
DOORS = {"__init__", "__main__", "testing"}
# The only readers of pickles: our own results (testing), and what Planetoid published
# (data/downloads, which refuses everything but arrays).
PICKLERS = {"spgnn/testing.py", "spgnn/data/downloads.py"}


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in FILES} - DOORS
    assert rooms == {room for room in FLOOR if not room.startswith("_")}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downwards(path):
    room = room_of(path)
    if room in DOORS:
        return
    for module in imports(path):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        if top != "spgnn" or other == room:
            continue
        if other not in FLOOR:
            assert rest in {"__version__"}, f"{name_of(path)} imports {module}"
            continue
        assert FLOOR[other] < FLOOR[room], f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_comm_knows_transports(path):
    if room_of(path) == "comm":
        return
    for module in imports(path):
        assert not module.startswith(("torch.distributed", "mpi4py")), module
    assert "torch.distributed" not in {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_library_imports_nothing_that_uses_it(path):
    for module in imports(path):
        assert module.partition(".")[0] not in {"experiments", "benchmarks", "tests"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_unpickles_a_users_file(path):
    picklers = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve"}
    used = {module.partition(".")[0] for module in imports(path)} & picklers
    assert not used or name_of(path) in PICKLERS
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "weights_only"}:
            safe = node.arg == "weights_only"
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is safe, name_of(path)


def test_only_autograd_defines_functions():
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                if any(base.endswith("autograd.Function") for base in bases):
                    found.add(name_of(path))
    assert found == {"spgnn/autograd.py"}
