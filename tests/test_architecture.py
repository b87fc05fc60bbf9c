"""Add-ons come in by doors, sizes only fall, and files of users are not unpickled.

import-linter and ruff check the other rules (pyproject).
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "spgnn"
ADDONS, SYSTEMS = ENGINE / "addons", ROOT / "experiments" / "systems"
NOT_NAMES = frozenset("found made kept given wanted said told asked known held".split())  # noqa: SIM905
NOT_FIRST = ("Of", "Those", "Whoever", "Whatever", "What", "Nobody")


def test_arrays_and_weights_are_read_without_pickles():
    for path, tree in _parsed(ENGINE.rglob("*.py")):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "weights_only"}:
                safe = node.arg == "weights_only"
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is safe, path


@pytest.mark.parametrize("house", [ADDONS, SYSTEMS], ids=["add-ons", "systems"])
def test_what_stands_on_the_engine_comes_in_by_its_doors(house):
    past = []
    for path, tree in _parsed(house.rglob("*.py")):
        inside = ".".join(path.relative_to(ROOT).parts[:3]) if house is ADDONS else ""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                past += [(path, a.name) for a in node.names if a.name.startswith("spgnn.")]
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("spgnn"):
                continue
            room = str(node.module)
            if inside and (room == inside or room.startswith(inside + ".")):
                continue  # an add-on's own files
            folder = ROOT.joinpath(*room.split("."))
            one_file = room.count(".") == 1 and not folder.is_dir()
            names = {alias.name for alias in node.names}
            if room == "spgnn":  # rooms, as modules; the compiled one is a room as well
                names = {name for name in names if not (ENGINE / name).is_dir()} - {"_native"}
            if not one_file and not (folder.is_dir() and names <= _exported(folder)):
                past.append((path, f"{room}: {', '.join(sorted(names))}"))
    assert not past, "\n".join(f"{path}: {name} is in no door" for path, name in past)


def test_the_house_is_within_its_budget():
    budget = tomllib.loads((ROOT / "budget.toml").read_text())
    over = [
        f"{name}: {size:,}, the budget is {budget.get(name, 0):,}"
        for name, size in sizes().items()
        if size > budget.get(name, 0)
    ]
    assert not over, (
        "delete as much as you add, or argue the new number of budget.toml in the commit: "
        + "; ".join(over)
    )


def sizes() -> dict[str, int]:
    """Lines, files and slips of language, by the names in ``budget.toml``."""
    python = list(ENGINE.rglob("*.py"))
    engine = [path for path in python if ADDONS not in path.parents]
    of_addons = Counter[str]()
    for path in set(python) - set(engine):
        of_addons[path.relative_to(ADDONS).parts[0]] += _lines([path])
    prose = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    names, first_words = 0, 0
    for _, tree in _parsed([*python, *SYSTEMS.rglob("*.py")]):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names += node.id in NOT_NAMES
            elif isinstance(node, ast.arg):
                names += node.arg in NOT_NAMES
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                first = (ast.get_docstring(node) or "-").split()[0].rstrip(",:")
                first_words += first in NOT_FIRST
    return {
        "engine_lines": _lines(engine),
        "engine_files": len(engine),
        "door_names": sum(len(_exported(path.parent)) for path in ENGINE.rglob("__init__.pyi")),
        "addon_lines": of_addons.total(),
        "largest_addon_lines": max(of_addons.values(), default=0),
        "system_lines": _lines(SYSTEMS.rglob("*.py")),
        "native_lines": _lines(
            path for suffix in ("cpp", "hpp", "cu", "cuh") for path in ENGINE.rglob(f"*.{suffix}")
        ),
        "test_lines": _lines((ROOT / "tests").rglob("*.py")),
        "words_of_documents": sum(len(path.read_text().split()) for path in prose),
        "names_of_nothing": names,
        "docstrings_that_name_nothing": first_words,
    }


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _parsed(paths: Iterable[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for path in paths:
        yield path, ast.parse(path.read_text())


def _exported(folder: Path) -> set[str]:
    stub = folder / "__init__.pyi"
    tree = ast.parse((stub if stub.exists() else folder / "__init__.py").read_text())
    return {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
