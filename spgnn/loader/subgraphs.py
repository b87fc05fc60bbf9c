"""Subgraphs as batches: all edges between some vertices, whole clusters, GraphSAINT's draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.loader.layerwise import column_sums, squares_of
from spgnn.loader.sampling import (
    WEIGHTED,
    Draw,
    Float64Array,
    Sample,
    SampledRows,
    as_int64,
    draw_keys,
    relabel,
    sampled_rows,
    thread_count,
    to_samples,
    vertices_in_proportion,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

METHODS = ("node", "edge", "walk")
_ESTIMATE = 2**63  # epochs of draws that only estimate


def induced(
    rows: SampledRows, vertices: Tensor, *, layers: int, edge_ids: bool, threads: int
) -> Sample:
    """The subgraph of some vertices, each different, as so many hops; all its nodes are seeds."""
    check_integer("layers", layers, 1)
    listed = as_int64("vertices", vertices)
    try:
        (sample,) = to_samples(rows.graph.induced([listed], edge_ids, threads))
    except ValueError as error:
        raise InputError(f"vertices: {error}") from None
    return replace(sample, hops=sample.hops * layers)


class ClusterSampler:
    """Cluster batches: the subgraph of some clusters (Cluster-GCN; Chiang et al., KDD 2019).

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
    labels : Tensor, int64 [n]
        The cluster of each vertex, 0, 1, …: a partition into many parts.
    layers : int
        So many hops, all of them the same square matrix.
    edge_ids : bool
    threads : int, optional

    Raises
    ------
    InputError
        If the labels do not fit.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        labels: Tensor,
        *,
        layers: int = 1,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> None:
        self.threads = thread_count(threads)
        self._rows = sampled_rows(pattern, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern
        cluster = as_int64("labels", labels, self.pattern.shape[0])
        if len(cluster) and cluster.min() < 0:
            raise InputError(f"labels must not be negative, got {cluster.min()}")
        self._order = np.argsort(cluster, kind="stable")
        self._ends = np.cumsum(np.bincount(cluster))
        self._layers, self._edge_ids = layers, edge_ids

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self._ends)

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The subgraph of some clusters, int64 [clusters]; nothing is drawn."""
        listed = as_int64("seeds", seeds)
        wrong = listed[(listed < 0) | (listed >= self.clusters)]
        if len(wrong):
            raise InputError(f"seeds: cluster {wrong[0]} outside [0, {self.clusters})")
        begins = np.concatenate(([0], self._ends[:-1]))
        parts = [self._order[begins[c] : self._ends[c]] for c in listed]
        vertices = torch.from_numpy(np.concatenate([*parts, np.empty(0, np.int64)]))
        options = {"layers": self._layers, "threads": self.threads}
        return induced(self._rows, vertices, edge_ids=self._edge_ids, **options)


class SaintSampler:
    """Subgraphs of drawn vertices (Zeng et al., GraphSAINT, ICLR 2020).

    ``node`` draws ``size`` vertices in proportion to Σ_s A_st², A having rows of sum 1; ``edge``
    draws ``size`` times a vertex that has neighbours and one of these (in an undirected graph,
    edges in proportion to 1/d_u + 1/d_v); ``walk`` takes what ``size`` walks of ``length`` steps
    from uniform vertices meet. All with replacement; the subgraph has all edges between them.

    How often vertices and edges come is estimated from ``estimates`` subgraphs, as in the paper:
    `Hop.weights` are one over the chance of an edge given that its row is there (so sums over
    edges are unbiased), and `node_weights` say what a vertex counts in the loss.

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
    method : {"node", "edge", "walk"}
    size : int
    length : int
        Steps of a walk.
    layers : int
        So many hops, all of them the same square matrix.
    estimates : int
        0: no weights.
    seed : int
        Of the draws that estimate.
    edge_ids, vertex_ids, threads
        As in `NeighborSampler`.

    Attributes
    ----------
    node_weights : Tensor, float32 [n]
        ``(node_weights[nodes] * losses).sum()`` is the mean loss of all vertices, on average.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    draws_seeds = True  # so ranks that share a step must have draws of their own

    def __init__(
        self,
        pattern: Pattern | CSR,
        method: str,
        size: int,
        *,
        length: int = 2,
        layers: int = 1,
        estimates: int = 0,
        seed: int = 0,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        check_choice("method", method, METHODS)
        self.threads = thread_count(threads)
        self._method, self._size = method, check_integer("size", size, 1)
        self._length = check_integer("length", length, 0)
        self._layers, self._edge_ids = layers, edge_ids
        self._rows = sampled_rows(pattern, vertex_ids, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern
        self._start = vertices_in_proportion(self._masses(), vertex_ids)
        self._edge_weights: Tensor | None = None
        self.node_weights = torch.full((self.pattern.shape[0],), 1 / max(self.pattern.shape[0], 1))
        if check_integer("estimates", estimates, 0):
            self._estimate(estimates, seed)

    def sample(self, seeds: Tensor | None, draw: Draw) -> Sample:
        """A subgraph; all its nodes are seeds. The argument ``seeds`` is not looked at."""
        sample = self._subgraph(draw)
        if self._edge_weights is None and self._edge_ids:
            return sample
        hop = sample.hops[0]
        assert hop.edge_ids is not None
        weights = None if self._edge_weights is None else self._edge_weights[hop.edge_ids]
        hop = replace(hop, weights=weights, edge_ids=hop.edge_ids if self._edge_ids else None)
        return replace(sample, hops=[hop] * len(sample.hops))

    def _masses(self) -> Float64Array:
        """First vertices are drawn in proportion to these."""
        if self._method == "node":
            return column_sums(self.pattern, squares_of(self.pattern, None))
        if self._method == "edge":
            return (self.pattern.row_lengths > 0).double().numpy()
        return np.ones(self.pattern.shape[0])

    def _subgraph(self, draw: Draw) -> Sample:
        row, options = np.zeros(1, dtype=np.int64), (WEIGHTED, True, False, 1)
        _, first, *_ = self._start.hop(row, None, None, self._size, 0, draw_keys([draw]), *options)
        steps = {"node": 0, "edge": 1, "walk": self._length}[self._method]
        # Walks have a seed of their own: the first vertices are drawn by the same hashes.
        key = draw_keys([replace(draw, seed=draw.seed + 1)])
        met = self._rows.graph.walks(first.astype(np.int64, copy=False), steps, key, self.threads)
        none = torch.zeros(0, dtype=torch.int64)
        nodes, _ = relabel(none, torch.tensor([len(met)]), torch.from_numpy(met), threads=1)
        how = {"layers": self._layers, "threads": self.threads}
        return induced(self._rows, nodes, edge_ids=True, **how)

    def _estimate(self, count: int, seed: int) -> None:
        vertices, edges = self.pattern.shape[0], self.pattern.nnz
        of_vertex = torch.zeros(vertices, dtype=torch.int32)
        of_edge = torch.zeros(edges, dtype=torch.int32)
        for k in range(count):
            sample = self._subgraph(Draw(seed, _ESTIMATE, k))
            of_vertex[sample.nodes] += 1
            of_edge[sample.hops[0].edge_ids] += 1
        self.node_weights = count / (of_vertex.clamp(min=1).float() * max(vertices, 1))
        rows = of_vertex.repeat_interleave(self.pattern.row_lengths)
        self._edge_weights = rows.clamp(min=1) / of_edge.clamp(min=1)
