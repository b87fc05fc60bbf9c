"""Shares of ranks: together they are the graph, whoever reads it, and none has more work."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import connect
from spgnn.data import Graph, open_shards, write_shards
from spgnn.data.distribute import RankShare, from_shards, scatter
from spgnn.data.generators import rmat
from spgnn.sparse import CSR
from spgnn.testing import run_ranks


def small_graph(directed: bool, labels: torch.dtype = torch.int64) -> Graph:
    rng = np.random.default_rng(0)
    n = 37
    pattern = rng.random((n, n)) < 0.15
    pattern[3] = True
    A = CSR.from_scipy(sp.csr_array(pattern if directed else pattern | pattern.T))
    x, train = torch.arange(n * 2, dtype=torch.float32).view(n, 2), torch.arange(n) % 2 == 0
    y = torch.arange(n) % 3
    if labels != torch.int64:  # a table, of which some is not known
        y = torch.from_numpy(rng.integers(-1, 2, (n, 3))).to(labels)
    if labels == torch.float32:
        y[y < 0] = torch.nan
    return Graph("small", A, directed, x=x, y=y, train_mask=train)


def share_of(
    rank: int, graph: Graph, labels: np.ndarray | None, c: int, folder: Path | None, shares: int = 1
):
    """What a rank gets, as arrays."""
    comm = connect()
    parts = comm.size // c
    if folder is not None:
        share = from_shards(open_shards(folder), comm, parts, shares=shares)
    else:
        share = scatter(graph if rank == 0 else None, labels, comm, parts, shares=shares)
    return numbers_of(share)


def numbers_of(share: RankShare) -> dict[str, np.ndarray]:
    assert share.adjacency is not None
    return {
        "offsets": share.layout.offsets,
        "rows": share.adjacency.to_scipy().toarray(),
        "ids": share.vertex_ids.numpy(),
        "x": share.data.x.numpy(),
        "y": share.data.y.numpy(),
        "train": share.data.train_mask.numpy(),
    }


@pytest.mark.parametrize("source", ["scattered", "shards"])
@pytest.mark.parametrize(
    ("ranks", "c", "columns", "kind", "directed"),
    [
        (3, 1, 1, torch.int8, True),
        (4, 2, 1, torch.int64, False),
        (4, 4, 1, torch.float32, True),
        (6, 3, 3, torch.int64, False),
    ],
)
def test_shares_are_the_graph_under_other_numbers(
    tmp_path, monkeypatch, ranks, c, columns, kind, directed, source
):
    # Eight rows of two features are handed over at a time.
    monkeypatch.setattr(sys.modules["spgnn.data.distribute"], "PIECE_BYTES", 64)
    graph, blocks = small_graph(directed, kind), ranks // c
    labels = np.random.default_rng(1).integers(0, blocks, graph.vertices)
    folder = None
    if source == "shards":
        folder = tmp_path / "shards"
        write_shards(graph, labels, blocks, folder)
        open_shards(folder).check()
    shares = run_ranks(share_of, ranks, graph, labels, c, folder, columns)
    offsets = shares[0]["offsets"]
    assert all((share["offsets"] == offsets).all() for share in shares)
    assert [len(share["ids"]) for share in shares] == np.diff(offsets).tolist()
    ids = np.concatenate([share["ids"] for share in shares])
    assert sorted(ids) == list(range(graph.vertices))
    # Block row i is part i.
    for rank, share in enumerate(shares):
        assert (labels[share["ids"]] == rank // c).all()
    whole = graph.adjacency.to_scipy().toarray()
    rows = np.concatenate([share["rows"] for share in shares])
    np.testing.assert_array_equal(rows, whole[np.ix_(ids, ids)])
    for name, array in (("x", graph.x), ("y", graph.y), ("train", graph.train_mask)):
        got = np.concatenate([share[name] for share in shares])
        assert got.dtype == array.numpy().dtype
        np.testing.assert_array_equal(got, array.numpy()[ids])
    # Where ranks share feature columns, none has a row more to turn than it must.
    sizes = np.diff(offsets).reshape(-1, columns)
    assert np.ptp(sizes, axis=1).max() <= 1


def nonzeros_of(rank: int, graph: Graph, labels: np.ndarray, folder: Path | None) -> int:
    mesh = Mesh.grid(connect(), 4)
    parts = mesh.axes.size("row")
    if folder is not None:
        share = from_shards(open_shards(folder), mesh.everyone, parts)
    else:
        share = scatter(graph if rank == 0 else None, labels, mesh.everyone, parts)
    stage = DistMatrix.build(share.adjacency, share.layout, mesh).plan.stages[0]
    return stage.local.nnz + (0 if stage.remote is None else stage.remote.nnz)


@pytest.mark.parametrize("source", ["scattered", "shards"])
@pytest.mark.parametrize("ranks", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_replicas_share_the_work_of_vertices_sorted_by_degree(tmp_path, ranks, source):
    """Slices cut evenly by rows would give the first replica two thirds of all nonzeros."""
    graph = rmat(12, 8, seed=3)
    order = torch.argsort(graph.adjacency.row_lengths, descending=True, stable=True)
    graph = graph.relabel(order)
    # Block rows of equal work, from vertices of all degrees.
    labels = np.arange(graph.vertices) % (ranks // 4)
    folder = None
    if source == "shards":
        folder = tmp_path / "shards"
        write_shards(graph, labels, ranks // 4, folder)
    nonzeros = np.array(run_ranks(nonzeros_of, ranks, graph, labels, folder))
    assert nonzeros.sum() == graph.edges
    assert nonzeros.max() / nonzeros.mean() <= 1.1
