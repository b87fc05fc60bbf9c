"""Damaged text files: a graph, or one clear line, as `tests.data.test_fuzz` has it."""

from __future__ import annotations

import io

import pytest
import scipy.io

from tests.data import test_fuzz as fuzz
from tests.data.graphs import PACK

KINDS = ["general.mtx", "symmetric.mtx", "edges.txt", "edges.csv", "metis.graph"]
KINDS += [f"{kind}.gz" for kind in ("general.mtx", "edges.txt", "metis.graph")]


def text_of(kind: str) -> bytes:
    """The content of a text file of that kind."""
    A = fuzz.graph(weighted=kind.startswith(("general", "edges"))).adjacency
    coo = A.to_scipy().tocoo()
    triples = list(zip(coo.col.tolist(), coo.row.tolist(), coo.data.tolist(), strict=True))
    if kind.startswith("general"):
        file = io.BytesIO()
        scipy.io.mmwrite(file, coo, comment="made by a test", field="real", symmetry="general")
        return file.getvalue()
    if kind.startswith("symmetric"):
        lines = [f"{i + 1} {j + 1}" for j, i, _ in triples if j <= i]
        banner = "%%MatrixMarket matrix coordinate pattern symmetric"
        lines = [banner, f"30 30 {len(lines)}", *lines]
    elif kind.startswith("edges"):
        comma = ".csv" in kind
        lines = ["source,target,weight" if comma else "# Nodes: 31 Edges: 100"]
        lines += [("," if comma else "\t").join(map(str, triple)) for triple in triples]
    else:  # METIS
        lines = [f"% made by a test\n{A.shape[0]} {A.nnz // 2} 011"]
        for i in range(A.shape[0]):
            neighbours = [j for j, row, _ in triples if row == i]
            pairs = (f"{v}" for j in neighbours for v in (j + 1, (i + 1) * (j + 1) / 4))
            lines.append(" ".join(["7", *pairs]))
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", fuzz.SOME)
def test_damaged_files(tmp_path, monkeypatch, kind, numbers):
    raw = PACK[".gz"](text_of(kind)) if kind.endswith(".gz") else text_of(kind)
    monkeypatch.setitem(fuzz.WRITERS, kind, lambda path: path.write_bytes(raw))
    assert list(fuzz.faults(kind, numbers, tmp_path)) == []
