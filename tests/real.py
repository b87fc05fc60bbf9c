"""Published graphs, where SPGNN_DATA names a folder that has them; nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def file_of(name: str) -> Path:
    """Where a graph is, if it is there."""
    return Path(os.environ.get("SPGNN_DATA", "")) / f"{name}.npz"


def needs(name: str) -> pytest.MarkDecorator:
    """Leave a test out where there is no such graph."""
    there = "SPGNN_DATA" in os.environ and file_of(name).is_file()
    return pytest.mark.skipif(not there, reason=f"needs {name}.npz in SPGNN_DATA")


def each(names: dict[str, tuple[object, ...]]) -> list[object]:
    """Parameters of a test, one set for each graph: its name, and what is known of it."""
    return [pytest.param(name, *known, marks=needs(name), id=name) for name, known in names.items()]
