"""Features of edges from files, directories and blocks to ranks: each stays with its edge."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn.comm import connect
from spgnn.data import Graph, load_dataset, open_shards, open_source, write_shards
from spgnn.data.npz import read_npz, write_npz
from spgnn.data.splits import held_out
from spgnn.errors import InputError
from spgnn.sparse import CSR
from spgnn.testing import run_ranks

N = 23


def some_graph() -> Graph:
    """Edge (i, j) has the features (i, j)."""
    A = sp.random(N, N, density=0.2, format="csr", random_state=1, dtype="float32")
    A.sort_indices()
    rows = np.repeat(np.arange(N), np.diff(A.indptr))
    ends = np.stack((rows, A.indices), 1).astype(np.float32)
    block = CSR.from_scipy(A).with_values(None)
    x = torch.arange(float(N))[:, None]
    return Graph("ends", block, directed=True, x=x, edge_attr=torch.from_numpy(ends))


def check_ends(graph: Graph) -> None:
    """Of any order of vertices, whose old numbers are its x."""
    old = graph.x[:, 0]
    rows = torch.arange(N).repeat_interleave(graph.adjacency.row_lengths)
    ends = torch.stack((old[rows], old[graph.adjacency.indices.long()]), 1)
    assert torch.equal(graph.edge_attr, ends)


def test_files_and_records(tmp_path):
    graph = some_graph()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    check_ends(graph.relabel(order))
    block = graph.block(3, 9)
    begin = int(graph.adjacency.indptr[3])
    assert torch.equal(block.edge_attr, graph.edge_attr[begin : begin + block.adjacency.nnz])
    path = tmp_path / "ends.npz"
    write_npz(graph, path)
    check_ends(read_npz(path))
    assert torch.equal(open_source(path).edge_attr(), graph.edge_attr)
    labels = np.arange(N) * 7 % 3
    write_shards(open_source(path), labels, 3, tmp_path / "cut")
    check_ends(open_shards(tmp_path / "cut").graph())
    write_shards(open_shards(tmp_path / "cut"), None, 2, tmp_path / "again")
    check_ends(load_dataset(str(tmp_path / "again")))
    open_shards(tmp_path / "again").check()


def check_on_ranks(rank: int, source: str, how: dict) -> None:
    comm = connect()
    graph = spgnn.distribute(source, comm=comm, **how)
    x = graph.x if how.get("algo") else graph.halo(graph.x)
    source_rows, target = graph.local_edge_index
    ends = torch.stack((graph.x[target, 0], x[source_rows, 0]), 1)
    assert torch.equal(graph.edge_attr, ends)
    assert comm.agree(len(ends), "sum") == some_graph().edges


@pytest.mark.parametrize("ranks", [1, 3])
def test_on_ranks(tmp_path, ranks):
    path = tmp_path / "ends.npz"
    write_npz(some_graph(), path)
    labels = np.arange(N) * 5 % 4 % ranks
    run_ranks(check_on_ranks, ranks, str(path), {"partition": labels})
    write_shards(some_graph(), labels, ranks, tmp_path / "cut")
    run_ranks(check_on_ranks, ranks, str(tmp_path / "cut"), {})


def check_blocks(rank: int) -> None:
    comm, graph = connect(), some_graph()
    first, last = (N * r // comm.size for r in (rank, rank + 1))
    mine = spgnn.distribute(graph.block(first, last), comm=comm)
    x = mine.halo(mine.x)
    source, target = mine.local_edge_index
    ends = torch.stack((mine.x[target, 0], x[source, 0]), 1)
    assert torch.equal(mine.edge_attr, ends)
    left, _ = held_out(mine.share, (0.2, 0.2), 0, comm)
    part = mine.subgraph(mine.vertex_ids % 3 > 0)
    x = part.halo(part.vertex_ids[:, None].float())
    source, target = part.local_edge_index
    ends = torch.stack((part.vertex_ids[target].float(), x[source, 0]), 1)
    assert torch.equal(part.edge_attr, ends)
    assert len(left.edge_attr) == left.adjacency.nnz
    begin, end = graph.adjacency.indptr[[first, last]].tolist()
    without = spgnn.data.GraphBlock(
        graph.block(first, last).adjacency,
        first,
        torch.arange(first, last),
        graph.edge_attr[begin:end] if rank else None,
    )
    if comm.size > 1:
        with pytest.raises(InputError, match="edge_attr"):
            spgnn.distribute(without, comm=comm)


def test_blocks():
    for ranks in (1, 2):
        run_ranks(check_blocks, ranks)
