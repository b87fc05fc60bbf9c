"""Two levels: vertices to nodes, then those of a node to its ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.layout import RowLayout
from spgnn.partition import gvb as multilevel
from spgnn.partition.adjacency import Adjacency, Int32Array, Int64Array
from spgnn.partition.methods import Problem, in_thousandths

# How far a rank may exceed its share of the rows that its node sends to others. A tenth costs 1 to
# 5 % of the total, three tenths 1 to 3 %; either takes up to a fifth off the busiest rank.
SEND_SLACK = 0.2


def two_level(problem: Problem, nodes: int) -> Int32Array:
    """Labels in which the parts of one node are neighbours: gvb into nodes, then each node by gvb.

    Inside a node, the rows of other nodes count too: each is one more vertex without weight, which
    goes where it is needed most; so the volume is what a row costs that arrives at one rank of the
    node and is passed to the others. A second balance shares out the rows that go to other nodes.

    Parameters
    ----------
    problem : Problem
        Without labels to refine.
    nodes : int
        Divides the number of parts; at least 2, and fewer than parts.

    Returns
    -------
    int32 [n]
    """
    adjacency, size = problem.adjacency, problem.parts // nodes
    # Half of the imbalance, as a factor, for nodes; ranks get what their node has left of it.
    slack = np.full(problem.weights.shape[1], np.sqrt(1 + problem.imbalance) - 1)
    top = replace(problem, parts=nodes)
    node_of = _gvb(top, adjacency.indptr, adjacency.indices, slack)
    leaving = _needed_elsewhere(adjacency, node_of, nodes)
    ones = np.broadcast_to(np.True_, adjacency.edges)
    shape = (adjacency.vertices, adjacency.vertices)
    A = sp.csr_array((ones, adjacency.indices, adjacency.indptr), shape=shape)
    labels = np.empty(adjacency.vertices, np.int32)
    most = problem.weights.sum(axis=0) * (1 + problem.imbalance) / problem.parts
    for node in range(nodes):
        members = np.flatnonzero(node_of == node)
        weights = np.column_stack((problem.weights[members], leaving[members]))
        inner = replace(problem, parts=size, weights=weights)
        labels[members] = node * size + _inside_node(inner, A[members], members, most)
    return labels


def _inside_node(
    problem: Problem, rows: sp.csr_array, members: Int64Array, most: npt.NDArray[np.float64]
) -> Int32Array:
    """The rank in its node of each member, given their rows of the matrix; `most` a rank's load."""
    size, weights = problem.parts, problem.weights
    if len(members) <= size or rows.nnz == 0:
        return np.repeat(np.arange(size, dtype=np.int32), RowLayout.even(len(members), size).sizes)
    others = np.setdiff1d(rows.indices, members)
    number = np.empty(rows.shape[1], np.int32)
    number[members] = np.arange(len(members))
    number[others] = len(members) + np.arange(len(others))
    indptr = np.concatenate((rows.indptr, np.full(len(others), rows.nnz)))
    share = np.maximum(weights[:, :-1].sum(axis=0) / size, 1e-9)
    slack = np.append(np.maximum(most / share - 1, 0), SEND_SLACK)
    padded = np.concatenate((weights, np.zeros((len(others), weights.shape[1]), np.int64)))
    found = _gvb(replace(problem, weights=padded), indptr, number[rows.indices], slack)
    return found[: len(members)]


def _gvb(
    problem: Problem, indptr: Int64Array, indices: Int32Array, imbalance: npt.NDArray[np.float64]
) -> Int32Array:
    return multilevel.gvb(
        indptr,
        indices,
        problem.parts,
        weights=problem.weights,
        imbalance=imbalance,
        seed=problem.seed,
        preset=problem.preset,
        objective=problem.objective,
        receive=problem.receive,
        threads=problem.threads,
        progress=in_thousandths(problem.progress),
    )


def _needed_elsewhere(adjacency: Adjacency, node_of: Int32Array, nodes: int) -> Int64Array:
    """How many other nodes need each row, int64 [n]."""
    row_node = np.repeat(node_of, adjacency.row_lengths)
    away = np.flatnonzero(row_node != node_of[adjacency.indices])
    columns = adjacency.indices[away].astype(np.int64)
    pairs = np.unique(columns * nodes + row_node[away])
    return np.bincount(pairs // nodes, minlength=adjacency.vertices).astype(np.int64)
