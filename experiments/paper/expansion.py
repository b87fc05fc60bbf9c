"""Ginex's graphs: larger ones that look like small ones (Belletti et al. 2019)."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data import MASKS, Graph, load_dataset
from spgnn.errors import InputError
from spgnn.files import AnyPath
from spgnn.memory import check_memory
from spgnn.progress import Progress
from spgnn.sparse import CSR

_EXPANDED = re.compile(r"expanded-([0-9]{1,9})-(.+)")


def reduced(A: Any, size: int, seed: int = 0) -> npt.NDArray[np.float64]:
    """A matrix [size, size] with the largest singular values of A, and means of its vectors."""
    from scipy.sparse.linalg import svds

    n = A.shape[0]
    if size < n:
        U, values, V = svds(A, size, v0=np.random.default_rng(seed).random(n))
    else:
        U, values, V = np.linalg.svd(A.toarray())
    begins, sides = np.arange(len(values)) * n // len(values), []
    for vectors in (U, V.T):  # stretches of rows become their means; columns orthonormal again
        means = np.add.reduceat(vectors, begins) / np.diff(begins, append=n)[:, None]
        P, _, Q = np.linalg.svd(means)
        sides.append(P @ Q)
    product: npt.NDArray[np.float64] = (sides[0] * values) @ sides[1].T
    return product


def expanded(graph: Graph, copies: int, *, train: float = 0.1, seed: int = 0) -> Graph:
    """A graph with `copies` times the vertices: the fractal expansion of Belletti et al. (2019).

    Block i, j is the adjacency with rows and columns in random orders, of which each entry stays
    with probability |R_ij| / max |R|; R is the reduced adjacency. If the graph is undirected, so is
    this one.
    """
    import scipy.sparse as sp

    A, n, rng = graph.adjacency, graph.vertices, np.random.default_rng(seed)
    if not 2 <= copies <= n:
        raise InputError(
            f"an expanded graph has 2 to {n} (as many as vertices) copies, got {copies}"
        )
    if graph.edge_attr is not None:
        raise InputError(f"{graph.name} has features of edges, which cannot be expanded")
    vertices, both = copies * n, not graph.directed
    name = f"expanded-{copies}-{graph.name}"
    check_memory(name, 9 * vertices + 12 * copies**2 * A.nnz)
    base = A.to_scipy()
    stays = np.abs(reduced(base, copies, seed))
    stays /= stays.max(initial=1e-300)
    base = base if A.values is not None else base.astype(bool)
    blocks: list[list[Any]] = [[None] * copies for _ in range(copies)]
    for i, j in itertools.product(range(copies), repeat=2):
        if both and i > j:
            blocks[i][j] = blocks[j][i].T
            continue
        rows = rng.permutation(n)
        block = base[rows][:, rows if both and i == j else rng.permutation(n)].tocoo()
        if both and i == j:
            block = sp.triu(block, format="coo")
        drawn = rng.random(block.nnz) < stays[i, j]
        row, column = (ends[drawn] for ends in block.coords)
        block = sp.coo_array((block.data[drawn], (row, column)), (n, n))
        blocks[i][j] = block + sp.triu(block, 1).T if both and i == j else block
    adjacency = CSR.from_scipy(sp.block_array(blocks, format="csr"))
    order = torch.from_numpy(rng.permutation(vertices))
    ends = [round(share * vertices) for share in (train, 1.1 * train, 1.2 * train)]
    masks = {}
    for mask, first, last in zip(MASKS, [0, *ends], ends, strict=False):
        masks[mask] = torch.zeros(vertices, dtype=torch.bool)
        masks[mask][order[first:last]] = True
    y = graph.y
    if y is not None:
        y = y.repeat(copies, *[1] * (y.dim() - 1))
    return Graph(name, adjacency, directed=graph.directed, y=y, **masks)


def load_expanded(
    text: str, data_dir: AnyPath | None, seed: int, progress: Progress | None
) -> Graph | None:
    """``expanded-COPIES-NAME``: any data set, so many times as large; ``None`` of other names."""
    sizes = _EXPANDED.fullmatch(text)
    if sizes is None or os.path.exists(text):
        return None
    return expanded(load_dataset(sizes[2], data_dir, seed, progress), int(sizes[1]), seed=seed)
