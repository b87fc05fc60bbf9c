"""Random graphs, files of graphs, and the checks that the data tests share."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st

from spgnn import CSR
from spgnn.data.arrays import ArrayRecord, ArrayWriter
from spgnn.data.generators import block_model
from spgnn.data.graph import MASKS, Graph, GraphBlock, VertexData
from spgnn.data.shards import META, PART, fingerprint, write_part
from spgnn.data.source import GraphSource
from spgnn.data.structure import stack_rows
from spgnn.sparse import take_rows

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def adjacencies(draw, *, weighted=None, symmetric=False, loops=True, max_vertices=12):
    """A canonical square CSR block, any shape from empty to full.

    Weights are eighths, which text and float32 both hold exactly; none is 0.
    """
    n = draw(st.integers(0, max_vertices))
    if weighted is None:
        weighted = draw(st.booleans())
    rng = np.random.default_rng(draw(SEEDS))
    weights = rng.integers(1, 40, (n, n)) * rng.choice([-1, 1], (n, n)) / 8
    present = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]))
    dense = np.where(present, weights if weighted else 1.0, 0.0)
    if symmetric:
        dense = np.tril(dense) + np.tril(dense, -1).T
    if not loops:
        np.fill_diagonal(dense, 0)
    A = sp.csr_array(dense.astype(np.float32))
    return CSR.from_scipy(A if weighted else A.astype(np.bool_))


@st.composite
def graphs(draw, **kwargs):
    """A graph with any subset of features (dense or sparse), labels and masks."""
    A = draw(adjacencies(**kwargs))
    n = A.shape[0]
    rng = np.random.default_rng(draw(SEEDS))
    x = y = None
    kind = draw(st.sampled_from(["none", "dense", "sparse"]))
    f = draw(st.integers(1, 5))
    if kind == "dense":
        x = torch.from_numpy(rng.standard_normal((n, f), dtype=np.float32))
    elif kind == "sparse":
        table = rng.standard_normal((n, f)) * (rng.random((n, f)) < 0.4)
        x = CSR.from_scipy(sp.csr_array(table.astype(np.float32)))
    labels = draw(st.sampled_from(["none", "classes", "several", "numbers"]))
    if labels == "classes":
        y = torch.from_numpy(rng.integers(-1, max(n, 1), n))
    elif labels == "several":
        y = torch.from_numpy(rng.integers(-1, 2, (n, f), dtype=np.int8))
    elif labels == "numbers":
        numbers = rng.standard_normal((n, f), dtype=np.float32)
        numbers[rng.random((n, f)) < 0.2] = np.nan
        y = torch.from_numpy(numbers)
    masks = {}
    if draw(st.booleans()):
        shape = (n, 3) if draw(st.booleans()) else (n,)
        masks = {name: torch.from_numpy(rng.random(shape) < 0.3) for name in MASKS}
    directed = not kwargs.get("symmetric", False)
    return Graph("drawn", A, directed, x=x, y=y, **masks)


def permutations_of(n: int) -> st.SearchStrategy[torch.Tensor]:
    return st.permutations(range(n)).map(lambda p: torch.tensor(p, dtype=torch.int64))


def assert_same_csr(a: CSR, b: CSR) -> None:
    assert a.shape == b.shape
    assert torch.equal(a.indptr, b.indptr)
    assert torch.equal(a.indices, b.indices)
    assert a.indices.dtype == b.indices.dtype
    assert (a.values is None) == (b.values is None)
    if a.values is not None:
        assert torch.equal(a.values, b.values)


def assert_same_vertices(a: Graph | GraphBlock, b: Graph | GraphBlock) -> None:
    """Features, labels and masks agree bit for bit."""
    for name in ("x", "y", *MASKS):
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, CSR):
            assert_same_csr(left, right)
        elif left is None:
            assert right is None, name
        else:
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right, name)


def assert_canonical(A: CSR) -> None:
    """Columns rise strictly inside every row."""
    for row in range(A.shape[0]):
        columns = A.indices[A.indptr[row] : A.indptr[row + 1]]
        assert bool((columns.diff() > 0).all()), f"row {row}"


def pattern(A: CSR) -> np.ndarray:
    """The nonzero pattern as a dense boolean array."""
    dense = np.zeros(A.shape, np.bool_)
    rows = np.repeat(np.arange(A.shape[0]), A.row_lengths.numpy())
    dense[rows, A.indices.numpy()] = True
    return dense


def check_source(source: GraphSource, graph: Graph, data: st.DataObject) -> None:
    """Whatever a source hands out is what the graph has there, bit for bit."""
    n = graph.vertices
    assert_same_csr(source.structure(), graph.adjacency)
    assert_same_csr(source.structure(), graph.adjacency)
    assert (source.vertex_ids is None) == (graph.vertex_ids is None)
    if graph.vertex_ids is not None:
        assert torch.equal(source.vertex_ids, graph.vertex_ids)
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, n - 1), max_size=8)) if n else [], dtype=torch.int64
    )
    first = data.draw(st.integers(0, n))
    for wanted in (ids, slice(first, data.draw(st.integers(first, n)))):
        assert_same_vertices(source.rows(wanted), VertexData(**graph.take(wanted)))
        rows = torch.arange(n)[wanted]
        assert_same_csr(source.adjacency(wanted), take_rows(graph.adjacency, rows))
    check_pieces(source, graph, data.draw(st.integers(1, 5)))
    assert_same_vertices(source.graph(), graph)
    assert_same_csr(source.graph().adjacency, graph.adjacency)


def check_pieces(source: GraphSource, graph: Graph, rows: int) -> None:
    """The pieces, one after another, are the graph."""
    pieces = list(source.pieces(rows))
    assert [first for first, _ in pieces] == list(range(0, max(graph.vertices, 1), rows))
    for name in ("x", "y", *MASKS):
        found = [getattr(piece, name) for _, piece in pieces]
        whole = getattr(graph, name)
        if whole is None:
            assert found == [None] * len(found)
        elif isinstance(whole, CSR):
            assert_same_csr(stack_rows(found), whole)
        else:
            np.testing.assert_array_equal(torch.cat(found), whole)


MTX = "%%MatrixMarket matrix coordinate "
PACK = {".gz": lambda raw: gzip.compress(raw, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}


def put(directory, name, content):
    """Write a file, packed if it is named so."""
    path = directory / name
    raw = content.encode() if isinstance(content, str) else content
    pack = PACK.get(path.suffix.lower())
    path.write_bytes(raw if pack is None else pack(raw))
    return path


def rewrite(directory: Path, part: int, name: str, array: np.ndarray | None) -> None:
    """Give a part another array (``None``: none), and describe it as if it had been written so."""
    folder = directory / f"part-{part:05d}"
    described = json.loads((folder / PART).read_text())["arrays"]
    records = {key: ArrayRecord.of(key, entry) for key, entry in described.items()}
    if array is None:
        del records[name]
        (folder / f"{name}.npy").unlink()
    else:
        writer = ArrayWriter(folder / f"{name}.npy", array)
        writer.append(array)
        records[name] = writer.finish()
    digest = write_part(folder, part, records)
    meta = json.loads((directory / META).read_text())
    meta["digests"][part] = digest
    restate(directory, meta)


def restate(directory: Path, meta: dict) -> None:
    """Give a directory another description."""
    meta["digest"] = fingerprint(meta)
    (directory / META).write_text(json.dumps(meta))


def small_graph():
    """Of 60 vertices."""
    return block_model(60, 300, classes=3, features=4, seed=2)
