"""Graphs, whole neighbourhoods and blocks that the tests of mini-batches share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR
from spgnn.nn.block import Block, Degrees, block_pattern

N, F_IN, CLASSES = 60, 7, 4


def directed(seed: int = 0, *, weighted: bool = False, loops: bool = True) -> sp.csr_array:
    """N vertices, some with self-loops, some without in-edges."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((N, N)) < 0.07).astype(np.float32)
    np.fill_diagonal(dense, rng.random(N) < 0.3 if loops else 0)
    dense[5] = 0
    if weighted:
        dense *= rng.random((N, N)).astype(np.float32) + 0.5
    A = sp.csr_array(dense)
    return A if weighted else A.astype(np.bool_)


def degrees_of(A: CSR) -> Degrees:
    """Of all vertices, one by one."""
    matrix = A.to_scipy()
    weight = torch.from_numpy(np.asarray(matrix.sum(axis=1), np.float32))
    bare = torch.from_numpy((matrix.diagonal() == 0).astype(np.float32))
    return Degrees(A.row_lengths, weight, bare)


def whole_hops(
    A: CSR, seeds: Tensor, hops: int
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Vertices within so many hops, and all in-edges of each hop: indptr, columns, edge numbers."""
    nodes, found = seeds.tolist(), []
    for _ in range(hops):
        place = {v: i for i, v in enumerate(nodes)}
        indptr, columns, edges = [0], [], []
        for v in list(nodes):
            for e in range(int(A.indptr[v]), int(A.indptr[v + 1])):
                u = int(A.indices[e])
                if u not in place:
                    place[u] = len(nodes)
                    nodes.append(u)
                columns.append(place[u])
                edges.append(e)
            indptr.append(len(columns))
        found.append(
            (
                torch.tensor(indptr),
                torch.tensor(columns, dtype=torch.int64),
                torch.tensor(edges, dtype=torch.int64),
                len(nodes),
            )
        )
    return torch.tensor(nodes), found


def whole_blocks(
    A: CSR, seeds: Tensor, hops: int, *, of_graph: bool = True
) -> tuple[Tensor, list[Block]]:
    """The same as blocks, outermost first."""
    nodes, found = whole_hops(A, seeds, hops)
    known, blocks = degrees_of(A), []
    for indptr, columns, edges, sources in found:
        ids = nodes[:sources]

        def degrees(ids: Tensor = ids) -> Degrees:
            assert known.bare is not None
            return Degrees(known.edges[ids], known.weight[ids], known.bare[ids])

        blocks.append(
            Block(
                block_pattern(indptr, columns, sources),
                ids,
                edge_weight=None if A.values is None else A.values[edges],
                degrees=degrees if of_graph else None,
                attributes={"edge_attr": attributes(A)[edges], "edge_type": edges % 3},
            )
        )
    return nodes, blocks[::-1]


def attributes(A: CSR) -> Tensor:
    """Three numbers an edge."""
    return torch.sin(torch.arange(3.0 * A.nnz)).view(-1, 3)
