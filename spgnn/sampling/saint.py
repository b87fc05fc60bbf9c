"""GraphSAINT: subgraphs of drawn vertices, with what makes their losses and sums unbiased."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import check_choice, check_integer
from spgnn.pattern import Pattern
from spgnn.sampling.arguments import Int64Array, draw_keys, thread_count
from spgnn.sampling.induced import induced_sample
from spgnn.sampling.layerwise import column_sums, squares_of
from spgnn.sampling.rows import sampled_rows, vertices_in_proportion
from spgnn.sampling.sample import Draw, Sample
from spgnn.sparse import CSR

METHODS = ("node", "edge", "walk")
_ESTIMATE = 2**63  # epochs of draws that only estimate


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
        If an argument is none of these.
    """

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
        sample = self._subgraph(self._vertices(draw))
        if self._edge_weights is None and self._edge_ids:
            return sample
        hop = sample.hops[0]
        assert hop.edge_ids is not None
        weights = None if self._edge_weights is None else self._edge_weights[hop.edge_ids]
        hop = replace(hop, weights=weights, edge_ids=hop.edge_ids if self._edge_ids else None)
        return replace(sample, hops=[hop] * len(sample.hops))

    def _masses(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """What first vertices are drawn in proportion to."""
        if self._method == "node":
            return column_sums(self.pattern, squares_of(self.pattern, None))
        if self._method == "edge":
            return (self.pattern.row_lengths > 0).double().numpy()
        return np.ones(self.pattern.shape[0])

    def _vertices(self, draw: Draw) -> Tensor:
        """Drawn vertices, each once, in the order drawn."""
        first = self._first(draw)
        steps = {"node": 0, "edge": 1, "walk": self._length}[self._method]
        # Walks have epochs of their own: the first vertices are drawn by the same hashes.
        key = draw_keys([replace(draw, seed=draw.seed + 1)])
        met = self._rows.graph.walks(first, steps, key, self.threads)
        nodes, _ = _native.relabel(np.empty(0, np.int64), met, 1)
        return torch.from_numpy(nodes)

    def _first(self, draw: Draw) -> Int64Array:
        nothing = np.zeros(1, dtype=np.int64)
        weighted = 1  # as in hop.hpp
        _, columns, *_ = self._start.hop(
            nothing, None, None, self._size, 0, draw_keys([draw]), weighted, True, False, 1
        )
        return columns.astype(np.int64, copy=False)

    def _subgraph(self, vertices: Tensor) -> Sample:
        return induced_sample(
            self._rows, vertices, layers=self._layers, edge_ids=True, threads=self.threads
        )

    def _estimate(self, count: int, seed: int) -> None:
        vertices, edges = self.pattern.shape[0], self.pattern.nnz
        of_vertex = torch.zeros(vertices, dtype=torch.int32)
        of_edge = torch.zeros(edges, dtype=torch.int32)
        for k in range(count):
            sample = self._subgraph(self._vertices(Draw(seed, _ESTIMATE, k)))
            of_vertex[sample.nodes] += 1
            of_edge[sample.hops[0].edge_ids] += 1
        self.node_weights = count / (of_vertex.clamp(min=1).float() * max(vertices, 1))
        rows = of_vertex.repeat_interleave(self.pattern.row_lengths)
        self._edge_weights = rows.clamp(min=1) / of_edge.clamp(min=1)
