"""Files of users are not unpickled. import-linter and ruff check the other rules (pyproject)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_arrays_and_weights_are_read_without_pickles():
    for path in (ROOT / "spgnn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "weights_only"}:
                safe = node.arg == "weights_only"
                assert isinstance(node.value, ast.Constant)
                assert node.value.value is safe, path
