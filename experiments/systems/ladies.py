"""Layers of drawn vertices: LADIES (Zou et al. 2019) and FastGCN (Chen, Ma & Xiao 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.addons.batches import (
    Draw,
    GraphSampler,
    Needs,
    NeighborSampler,
    RankGraph,
    column_sums,
    draw_vertices,
    hop_counts,
    offsets_of,
    parts_of_sums,
    squares_of,
    sums_of_parts,
    vertices_in_proportion,
)
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern
from spgnn.sparse import CSR


class LadiesSampler(GraphSampler):
    """LADIES: vertices in proportion to what they mean to the targets (Zou et al., NeurIPS 2019).

    A hop draws ``num_nodes`` of the targets' neighbours without replacement, vertex t in proportion
    to Σ_s A_st² over the targets s, and takes all edges between these and the targets. For many
    batches these are the rows of one product of sparse matrices (Tripathy, Yelick & Buluç, MLSys
    2024): `sample_many`. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern, edge_ids, vertex_ids, threads
        As in `NeighborSampler`; the pattern is square.
    num_nodes : sequence of int
        How many vertices, the seeds' hop first; −1: all neighbours.
    values : Tensor, floating [nnz], optional
        Absolute values of A; one over the row's length if not given. Entries of 0 are no edges.
    first_hop : int
        Number of the first hop, for callers that take hops one by one.
    """

    needs: ClassVar[Needs] = "whole rows"

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_nodes: Sequence[int],
        *,
        values: Tensor | None = None,
        first_hop: int = 0,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_nodes, self._first_hop = hop_counts("num_nodes", num_nodes), first_hop
        self._squares = squares_of(pattern, values)
        super().__init__(
            pattern,
            edge_ids=edge_ids,
            vertex_ids=vertex_ids,
            weights=None if values is None else self._squares,
            threads=threads,
        )
        self._check_square()

    @classmethod
    def of_matrix(
        cls, A: Pattern | CSR, values: Tensor | None, counts: Sequence[int], **options: Any
    ) -> Any:
        """Vertices in proportion to the squares of values, whatever their signs."""
        return cls(A, counts, values=None if values is None else values.abs(), **options)

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._squares, self._edge_ids, self.threads
        return self._graph.ladies(seeds, self.num_nodes, draws, self._first_hop, *options)


class FastGCNHops:
    """The share of a rank's own rows in a hop of FastGCN. Collective.

    Vertices are drawn in proportion to Σ_s A_st² over all rows s. Ranks add up their parts of
    that, which are whole numbers, so the sums are those of one process bit for bit, and so are the
    vertices that each rank draws for any batch. An owner of a target then sends the entries that
    lead to them, and no others. Each rank keeps some 40 bytes for every vertex of the graph.
    """

    def __init__(self, counts: Sequence[int], ranks: RankGraph) -> None:
        block, boundary, comm, n = ranks.block, ranks.boundary, ranks.comm, ranks.layout.rows
        self._columns, self._values = boundary.columns, block.values
        ids = ranks.around.ids
        self._whole = NeighborSampler(
            boundary.compact(block), [-1] * len(counts), edge_ids=True, vertex_ids=ids
        )
        self._counts = [int(count) for count in counts]
        values = None if block.values is None else block.values.float().abs()
        squares = squares_of(block, values)
        largest = torch.tensor([squares.max(initial=0)], dtype=torch.float64)
        comm.all_reduce(largest, "max").wait()
        most, entries = float(largest), comm.agree(block.nnz, "sum")
        parts = parts_of_sums(block.indices.numpy(), squares, n, most, entries)
        total = torch.from_numpy(parts).view(-1)
        comm.all_reduce(total, "sum").wait()
        masses = sums_of_parts(total.view(parts.shape).numpy(), most, entries)
        everyone = ids.new_empty(n)
        sizes = np.diff(ranks.layout.offsets).tolist()
        comm.all_gather(ids[: boundary.own].contiguous(), everyone, sizes)
        self._vertices = vertices_in_proportion(masses, everyone)

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        indptr, columns, numbers, _ = self._whole.sample_hop(targets, hop, draw)
        assert numbers is not None
        if not len(columns):
            return indptr, columns, numbers, torch.zeros(0)
        numbers_drawn, factors = draw_vertices(self._vertices, self._counts[hop], hop, draw)
        drawn, order = torch.from_numpy(numbers_drawn).sort()
        vertices = self._columns[columns.long()]
        place = torch.searchsorted(drawn, vertices).clamp_(max=max(len(drawn) - 1, 0))
        taken = torch.zeros_like(vertices, dtype=torch.bool)
        if len(drawn):
            taken = drawn[place] == vertices
        if self._values is not None:  # what has no weight is no entry
            taken &= self._values[numbers] != 0
        before = offsets_of(taken)
        return before[indptr], columns[taken], numbers[taken], factors[order[place[taken]]]


class FastGCNSampler(LadiesSampler):
    """FastGCN: vertices of the whole graph, whoever the targets are (Chen, Ma & Xiao, ICLR 2018).

    A hop draws ``num_nodes`` of all vertices (−1: all) without replacement, vertex t in proportion
    to Σ_s A_st² over all rows s, and takes all edges between these and the targets; some targets
    may get none. `Hop.weights` make sums unbiased. Parameters are those of `LadiesSampler`.
    """

    needs: ClassVar[Needs] = "graph"
    on_ranks = FastGCNHops

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_nodes: Sequence[int],
        *,
        vertex_ids: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pattern, num_nodes, vertex_ids=vertex_ids, **options)
        self._vertices = vertices_in_proportion(
            column_sums(self.pattern, self._squares), vertex_ids
        )

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._vertices, self._edge_ids, self.threads
        return self._graph.fastgcn(seeds, self.num_nodes, draws, self._first_hop, *options)
