"""Every feature in every mode says what docs/support.md says, on every rank."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

from spgnn.testing import run_ranks
from tests.support.page import DOCUMENT, in_document, page
from tests.support.sweep import RANKS, all_cells, swept

CELLS = [cell for cell, _, _ in all_cells()]
SHARE = 13  # of all cells, one in so many is run where time is short
MOST_REFUSALS = 0.06


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path))


def check(chosen: list[tuple[str, str, str]]) -> None:
    expected = in_document()
    for cells in run_ranks(swept, RANKS, chosen, backend="gloo"):
        assert cells == {cell: expected[cell] for cell in chosen}


def test_some_of_each_row_and_column():
    """Refusals and what works, spread over the table."""
    check(CELLS[::SHARE])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SHARE))
def test_all_others(first):
    check(CELLS[first::SHARE])


def test_the_page_is_what_its_cells_write():
    """``python -m tests.support`` writes it."""
    cells = in_document()
    assert DOCUMENT.read_text() == page(cells)
    assert sum(said != "yes" for said in cells.values()) <= MOST_REFUSALS * len(cells)
