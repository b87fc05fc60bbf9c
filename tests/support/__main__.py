"""``python -m tests.support`` runs every cell, and writes docs/support.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import systems  # noqa: F401  (registers what they bring)

from spgnn.testing import run_ranks
from tests.support.page import DOCUMENT, in_document, page
from tests.support.sweep import RANKS, all_cells, swept

if __name__ == "__main__":
    # Modes of these names alone, or all: others say what the page says.
    cells = [cell for cell, _, _ in all_cells() if cell[2] in (sys.argv[1:] or cell)]
    first, *others = run_ranks(swept, RANKS, cells, True, backend="gloo")
    for cell, said in first.items():
        if any(other[cell] != said for other in others):
            first[cell] = "ranks do not agree"
    DOCUMENT.write_text(page(first if not sys.argv[1:] else in_document() | first))
