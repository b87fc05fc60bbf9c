"""Attention of which a panel of heads at a time is in memory.

    forward   o_i = Σ_j α_ij z_j,  α_i = softmax of the scores of row i's neighbours
    adjoint   dz_j = Σ_i α_ij g_i + what its scores give it;  and the gradient of each row's end

A head needs all of its columns for its scores, so a panel has whole heads. Backward needs no
transpose, and of forward nothing but the operand: the rows of the matrix come once more, with all
scores of a row at hand, so its weights are made again as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from spgnn.graph.protocol import AttentionScores, DroppedEdges
from spgnn.kernels.attention import AttentionDropout
from spgnn.kernels.attention_panel import AttentionPanel, Loops, Rows, packed_bytes
from spgnn.parts.heads import Heads
from spgnn.parts.matrix import NewTable, PartMatrix, by_panels
from spgnn.parts.table import Table, memory_rows
from spgnn.pattern import Pattern


class Attending:
    """One layer's attention over a matrix whose rows come part after part.

    Parameters
    ----------
    matrix : PartMatrix
        Its values do not count.
    heads : Heads
    scores : AttentionScores
        Of them the vector, slope and kind; destinations come with the rows.
    dropped : DroppedEdges, optional
    ids : Tensor int64 [k + received], optional
        Original ids of the columns, where weights are dropped.

    Attributes
    ----------
    of_vector : Tensor [heads, channels] or None
        Gradient of the vector, once `adjoints` has yielded something.
    """

    def __init__(
        self,
        matrix: PartMatrix,
        heads: Heads,
        scores: AttentionScores,
        dropped: DroppedEdges | None,
        ids: Tensor | None,
    ) -> None:
        self._matrix, self._heads, self._ids = matrix, heads, ids
        self._vector, self._slope, self._joint = scores.vector.detach(), scores.slope, scores.joint
        self._dropped = dropped
        self.of_vector: Tensor | None = None

    def products(
        self, Z: Table, ends: Table, panel: int, new: NewTable
    ) -> Iterator[tuple[int, Tensor]]:
        """Weighed sums of each row's neighbours, part after part. Collective.

        Parameters
        ----------
        Z : Table [k, heads · channels]
        ends : Table [m, heads · end]
            What rows say of their own scores.
        panel, new
            As of ``matrix.products``; a panel has whole heads, a divisor of them all.

        Yields
        ------
        part : int
        O : Tensor [rows of the part, heads · channels]
        """
        matrix = self._matrix

        def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
            sources, ids = self._sources(Z, first, last), self._ids_of(first, last)
            for part, block in matrix.blocks.stream():
                rows = self._rows_of(block.pattern, part, ends, ids, (first, last))
                O, chosen = sources.attend(rows), self._chosen(part)  # noqa: E741
                yield part, O if chosen is None else O[chosen]

        return by_panels(of, matrix.row_bounds, Z, panel, new)

    def adjoints(
        self, Z: Table, ends: Table, G: Table, of_ends: Table, panel: int, new: NewTable
    ) -> Iterator[tuple[int, Tensor]]:
        """The gradient of what is weighed, part after part. Collective.

        Parameters
        ----------
        Z, ends, panel, new
            As of `products`.
        G : Table [m, heads · channels]
            The gradient of what that made.
        of_ends : Table [m, heads · end]
            Gets that of the rows' ends.

        Yields
        ------
        part : int
        dZ : Tensor [own rows that are columns, heads · channels]
        """
        matrix, channels = self._matrix, self._heads.channels
        of_vector = self.of_vector = torch.zeros_like(self._vector)

        def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
            sources, ids = self._sources(Z, first, last), self._ids_of(first, last)
            rows, stride = sources.packed.shape
            sums = memory_rows(rows, stride, torch.uint8).zero_()
            of_heads = of_vector[first // channels : last // channels]
            for part, block in matrix.blocks.stream():
                own = self._rows_of(block.pattern, part, ends, ids, (first, last))
                here, chosen = self._spread(G, part, (first, last)), self._chosen(part)
                found, da = sources.scatter(own, here, sums)
                of_heads += da
                found = found if chosen is None else found[chosen]
                of_ends.write_panel(part, self._ends_of(first, last)[0], found)
            pieces = self._pieces(Z)
            if not self._joint:
                for low, high in pieces:
                    of_heads += sources.vector_gradient(sums, low, high)
            back = self._sent_back(sources, sums, pieces, Z.rows)
            for part, (low, high) in enumerate(pairwise(matrix.column_bounds)):
                dZ = sources.returned(sums, low, high)
                yield part, dZ if back is None else dZ.add_(back[low:high])

        return by_panels(of, matrix.column_bounds, Z, panel, new)

    def _sources(self, Z: Table, first: int, last: int) -> AttentionPanel:
        """Columns of all rows that others are made of, packed. Collective."""
        matrix, channels = self._matrix, self._heads.channels
        a = self._vector[first // channels : last // channels].contiguous()
        stride = packed_bytes(a.shape[0], channels, a.dtype, joint=self._joint)
        packed = memory_rows(Z.rows + matrix.halo_rows, stride, torch.uint8)
        found = AttentionPanel(packed, a, self._slope, self._joint)
        if matrix.received is None:
            for part in range(Z.parts):
                found.put(Z.bounds[part], Z.read_panel(part, first, last))
            return found
        X = matrix.extended(Z, first, last)
        for low, high in self._pieces(Z):
            found.put(low, X[low:high])
        del X
        Z.forget_panel()
        return found

    def _sent_back(
        self, sources: AttentionPanel, sums: Tensor, pieces: list[tuple[int, int]], own: int
    ) -> Tensor | None:
        """What own rows get from those of other ranks. Collective."""
        matrix = self._matrix
        if matrix.received is None:
            return None
        others = sources.a.new_empty(matrix.halo_rows, sources.a.numel())
        for low, high in pieces:
            if low >= own:
                others[low - own : high - own] = sources.returned(sums, low, high)
        return matrix.received.halo.adjoint(others)

    def _pieces(self, Z: Table) -> list[tuple[int, int]]:
        """All rows that others are made of, as many at a time as parts have."""
        received, step = self._matrix.halo_rows, max(*Z.lengths, 1)
        starts = range(Z.rows, Z.rows + received, step)
        return [
            *pairwise(Z.bounds),
            *((low, min(low + step, Z.rows + received)) for low in starts),
        ]

    def _rows_of(
        self,
        pattern: Pattern,
        part: int,
        ends: Table,
        ids: Tensor | None,
        columns: tuple[int, int],
    ) -> Rows:
        """A part's rows, with those nonzeros on the diagonal that are added."""
        matrix, loops, dropout = self._matrix, None, None
        diagonal = matrix.diagonal(part)
        if matrix.loops is not None:
            begin, end = matrix.blocks.bounds[part : part + 2]
            loops = Loops(matrix.loops[begin:end] > 0, diagonal)
        if ids is not None and self._ids is not None and self._dropped is not None:
            # The kernel takes a signed key.
            key, p = (self._dropped.key + 2**63) % 2**64 - 2**63, self._dropped.p
            dropout = AttentionDropout(key, p, self._ids[diagonal], ids)
        return Rows(pattern, self._spread(ends, part, self._ends_of(*columns)), loops, dropout)

    def _ids_of(self, first: int, last: int) -> Tensor | None:
        """Of sources, so that dropout of some heads is that of these among all of them."""
        heads, here = self._heads.number, (last - first) // self._heads.channels
        if self._ids is None or here == heads:
            return self._ids
        # Element (id · heads + head) is (id' · here + head − first head).
        return self._ids * (heads // here) + first // (last - first)

    def _ends_of(self, first: int, last: int) -> tuple[int, int]:
        """Columns of rows' ends for columns of a panel."""
        channels, end = self._heads.channels, self._heads.end
        return first // channels * end, last // channels * end

    def _chosen(self, part: int) -> Tensor | None:
        """Which rows of a block are wanted; ``None``: all."""
        return self._matrix.chosen(part) if self._matrix.thinned else None

    def _spread(self, table: Table, part: int, columns: tuple[int, int]) -> Tensor:
        """Some columns of a part's rows, zero where a block has rows that are not wanted."""
        found, chosen = table.read_panel(part, *columns), self._chosen(part)
        if chosen is None:
            return found.contiguous()
        begin, end = self._matrix.blocks.bounds[part : part + 2]
        return found.new_zeros(end - begin, found.shape[1]).index_copy_(0, chosen, found)


def received_ids(matrix: PartMatrix, ids: Tensor | int) -> Tensor | None:
    """Original ids of the rows of other ranks, int64; ``None`` on one rank. Collective."""
    if matrix.received is None:
        return None
    if isinstance(ids, int):
        ids = torch.arange(ids, ids + matrix.bounds[-1])
    # Rows of two numbers that float64 holds exactly.
    halves = torch.stack((ids >> 32, ids & 0xFFFFFFFF), 1).double()
    high, low = matrix.received.halo.forward(halves).long().unbind(1)
    return (high << 32) + low
