"""GraphSAINT's subgraphs of drawn vertices, edges and walks, normalised (Zeng et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import (
    Draw,
    Float64Array,
    GraphSampler,
    Sample,
    column_sums,
    distinct,
    draw_keys,
    draw_vertices,
    squares_of,
    vertices_in_proportion,
)
from spgnn.errors import check_choice, check_integer
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

METHODS = ("node", "edge", "walk")
_ESTIMATE = 2**63  # epochs of draws that only estimate


class SaintSampler(GraphSampler):
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
    node_weights : Tensor float32 [n]
        ``(node_weights[nodes] * losses).sum()`` is the mean loss of all vertices, on average.
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
        check_integer("estimates", estimates, 0)
        super().__init__(pattern, edge_ids=edge_ids, vertex_ids=vertex_ids, threads=threads)
        self._check_square()
        self._size = check_integer("size", size, 1)
        self._steps = {"node": 0, "edge": 1, "walk": check_integer("length", length, 0)}[method]
        self._layers = check_integer("layers", layers, 1)
        vertices, edges = self.pattern.shape[0], self.pattern.nnz
        masses: Float64Array = np.ones(vertices)  # first vertices are drawn in proportion to these
        if method == "node":
            masses = column_sums(self.pattern, squares_of(self.pattern, None))
        elif method == "edge":
            masses = (self.pattern.row_lengths > 0).double().numpy()
        self._start = vertices_in_proportion(masses, vertex_ids)
        self._edge_weights: Tensor | None = None
        self.node_weights = torch.full((vertices,), 1 / max(vertices, 1))
        if not estimates:
            return
        of_vertex = torch.zeros(vertices, dtype=torch.int32)
        of_edge = torch.zeros(edges, dtype=torch.int32)
        for k in range(estimates):
            sample = self._subgraph(Draw(seed, _ESTIMATE, k))
            of_vertex[sample.nodes] += 1
            of_edge[sample.hops[0].edge_ids] += 1
        self.node_weights = estimates / (of_vertex.clamp(min=1).float() * max(vertices, 1))
        rows = of_vertex.repeat_interleave(self.pattern.row_lengths)
        self._edge_weights = rows.clamp(min=1) / of_edge.clamp(min=1)

    def sample(self, seeds: Tensor | None, draw: Draw) -> Sample:
        """A subgraph; all its nodes are seeds. The argument ``seeds`` is not looked at."""
        sample = self._subgraph(draw)
        hop = sample.hops[0]
        assert hop.edge_ids is not None
        weights = None if self._edge_weights is None else self._edge_weights[hop.edge_ids]
        hop = replace(hop, weights=weights, edge_ids=hop.edge_ids if self._edge_ids else None)
        return replace(sample, hops=[hop] * self._layers)

    def _subgraph(self, draw: Draw) -> Sample:
        first, _ = draw_vertices(self._start, self._size, 0, draw, replace=True)
        # Walks have a seed of their own: the first vertices are drawn by the same hashes.
        key = draw_keys([replace(draw, seed=draw.seed + 1)])
        met = self._graph.walks(first, self._steps, key, self.threads)
        nodes, _ = distinct(torch.from_numpy(met))
        return self._induced(nodes, layers=1, edge_ids=True)
