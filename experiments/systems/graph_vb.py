"""Graph-VB: recursive bipartitioning that balances volumes (Acer, Selvitopi, Aykanat 2016).

*Improving performance of sparse matrix dense matrix multiplication on large-scale parallel
systems*, Parallel Computing 59. Parts are cut in two level by level, by METIS with least edge cut.
A cut balances two weights of each vertex: its work, and the rows that it sends by then, which is
how many other parts of the partition so far need its row. They are counted before each cut.

Ours are the allowed imbalance of volumes, 10 %, and that sent rows alone are balanced, which is
what the ICPP'24 paper asks of it. The authors' model by hypergraphs is not here.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from spgnn.errors import InputError
from spgnn.layout import Int32Array, Int64Array

VOLUME_IMBALANCE = 0.1
SEED = 8  # METIS_OPTION_SEED


def graph_vb(problem: Any) -> Int32Array:
    """Labels of least edge cut with balanced work and balanced sent rows, int32 [vertices]."""
    adjacency, n = problem.adjacency, problem.adjacency.vertices
    edges, nets = (
        sp.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(n, n))
        for indptr, indices in (adjacency.undirected, adjacency.column_nets)
    )
    levels = (problem.parts - 1).bit_length()
    work_imbalance = (1 + problem.imbalance) ** (1 / levels) - 1
    labels = np.zeros(n, np.int32)
    waiting = deque([(0, problem.parts)])  # breadth first: other parts are of the same level
    while waiting:
        first, parts = waiting.popleft()
        if parts == 1:
            continue
        own, middle = np.flatnonzero(labels == first), first + (parts + 1) // 2
        shares = 1 / problem.portions[first : first + parts]
        left = float(shares[: middle - first].sum() / shares.sum())
        weights = np.stack((problem.weight[own], sent_rows(nets[own], labels, first)), 1)
        imbalances = (work_imbalance, VOLUME_IMBALANCE)
        right = in_two(edges[own][:, own], weights, left, imbalances, problem.seed)
        labels[own[right]] = middle
        waiting += [(first, middle - first), (middle, first + parts - middle)]
    return labels


def sent_rows(nets: Any, labels: Int32Array, own: int) -> Int64Array:
    """Parts other than `own` among the pins of each net, int64 [nets]."""
    net = np.repeat(np.arange(nets.shape[0]), np.diff(nets.indptr))
    part, base = labels[nets.indices], int(labels.max(initial=0)) + 1
    outside = part != own
    pairs = np.unique(net[outside] * base + part[outside])
    return np.bincount(pairs // base, minlength=nets.shape[0])


def in_two(
    edges: Any, weights: Int64Array, left: float, imbalances: tuple[float, ...], seed: int
) -> Any:
    """The vertices of the second side, bool [n]; the first gets the share `left` of each weight."""
    n = len(weights)
    if n < 2:
        return np.zeros(n, np.bool_)
    library, index = metis()
    if max(len(edges.indices), int(weights.sum(axis=0).max())) > np.iinfo(index).max:
        raise InputError(f"this METIS counts in {index} and cannot take {weights.sum():,} nonzeros")
    columns = np.flatnonzero(weights.any(axis=0)) if weights.any() else [0]
    constraints, options = len(columns), np.empty(40, index)
    library.METIS_SetDefaultOptions(options.ctypes.data_as(ctypes.c_void_p))
    options[SEED] = seed
    side = np.zeros(n, index)
    arguments = [
        *(np.array([number], index) for number in (n, constraints)),
        *(np.ascontiguousarray(a, index) for a in (edges.indptr, edges.indices)),
        np.ascontiguousarray(weights[:, columns], index),
        *(None, None),  # sizes of vertices, weights of edges
        np.array([2], index),
        np.repeat(np.array([left, 1 - left], np.float32), constraints),
        np.array([1 + imbalances[c] for c in columns], np.float32),
        *(options, np.zeros(1, index), side),
    ]
    pointers = (None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in arguments)
    if library.METIS_PartGraphRecursive(*pointers) != 1:
        raise InputError(f"METIS could not cut {n:,} vertices in two")
    return side == 1


@cache
def metis() -> tuple[Any, Any]:
    """The METIS inside pymetis, whose Python takes one weight a vertex, and its integers."""
    try:
        import pymetis

        library = ctypes.CDLL(pymetis._internal.__file__)
        library.METIS_PartGraphRecursive  # noqa: B018  (is it exported?)
    except (ImportError, OSError, AttributeError):
        raise InputError(
            "graph-vb needs METIS of pymetis: pip install 'spgnn[partition]'"
        ) from None
    return library, pymetis.zero_copy_dtype()
