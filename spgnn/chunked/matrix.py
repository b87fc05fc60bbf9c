"""A sparse matrix whose blocks come in turn: sums, largest neighbours and attention over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.chunked.blocks import Blocks
from spgnn.chunked.sizes import Heads
from spgnn.chunked.table import Table, memory_rows, panels_of
from spgnn.graph.protocol import AttentionScores, DroppedEdges
from spgnn.kernels.attention import AttentionDropout
from spgnn.kernels.attention_panel import AttentionPanel, Loops, Rows, packed_bytes
from spgnn.kernels.extremes import add_to_extremes_, extreme_
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


class NewTable(Protocol):
    """Makes a table for what is multiplied or made on the way."""

    def __call__(
        self, bounds: tuple[int, ...], width: int, dtype: torch.dtype, extra: int = 0
    ) -> Table:
        """Create a table of rows in chunks, with `extra` rows below."""


@dataclass(frozen=True, eq=False)
class Received:
    """The rows of other ranks that a rank's rows of the matrix need.

    Attributes
    ----------
    halo : DistMatrix [received rows, own rows]
        One nonzero a row: the row that is received.
    rows : int
    """

    halo: DistMatrix
    rows: int


@dataclass(frozen=True, eq=False)
class PartMatrix:
    """B + diag(loops) on this rank: rows [m] of own and received columns [k + received].

    Attributes
    ----------
    blocks : Blocks [m, k + received]; or [n, n + received] if rows are thinned out
    bounds : tuple of int [K + 1]
        Chunks of the rows that the rank owns, n.
    loops : Tensor float32 [rows of the blocks], optional
        What is added on the diagonal.
    targets : Tensor int64 [m], optional
        Own row that each row is, rising; ``None`` if all own rows are made, m = n.
    thinned : bool
        Whether the blocks make all own rows, and only `targets` among them are kept.
    sources : Tensor int64 [k], optional
        Own row that each column is, rising; ``None`` if all own rows are columns, k = n.
    transposed : Blocks [k, m], optional
        Own rows of B's transpose, by chunks. ``None`` if B is symmetric, with those of other ranks.
    to_others : Blocks [received, m], optional
        The other rows of B's transpose, if there are any.
    received : Received, optional
        ``None`` on one rank.
    """

    blocks: Blocks
    bounds: tuple[int, ...]
    loops: Tensor | None = None
    targets: Tensor | None = None
    thinned: bool = False
    sources: Tensor | None = None
    transposed: Blocks | None = None
    to_others: Blocks | None = None
    received: Received | None = None

    @property
    def halo_rows(self) -> int:
        """Rows of others that products need."""
        return 0 if self.received is None else self.received.rows

    @cached_property
    def row_bounds(self) -> tuple[int, ...]:
        """Chunks of the rows that are made."""
        return cut(self.targets, self.bounds)

    @cached_property
    def column_bounds(self) -> tuple[int, ...]:
        """Chunks of the own rows that are columns."""
        return cut(self.sources, self.bounds)

    def chosen(self, part: int) -> Tensor | None:
        """Rows of a chunk that the product makes, counted from its first row; ``None``: all."""
        if self.targets is None:
            return None
        low, high = self.row_bounds[part : part + 2]
        return self.targets[low:high] - self.bounds[part]

    def products(self, H: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        """The rows of ``(B + diag(loops)) H``, chunk after chunk. Collective.

        Parameters
        ----------
        H : Table [k, f]
        panel : int
            So many columns of H are in memory at a time.
        new : callable
            Makes a table for what several panels make.

        Yields
        ------
        part : int
        Z : Tensor [rows of the chunk, f]
            Valid until the next one is asked for.
        """

        def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
            for part, Z in self.panel_products(H, first, last):
                chosen = self.chosen(part) if self.thinned else None
                yield part, Z if chosen is None else Z[chosen]

        return by_panels(of, self.row_bounds, H, panel, new)

    def panel_products(self, H: Table, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The same of columns [first, last) of H, with the rows of all blocks. Collective."""
        X = self.extended(H, first, last)
        for part, block in self.blocks.stream():
            yield part, self._with_loops(_times(block, X), X, part)

    def adjoints(self, G: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        """The rows of ``(B + diag(loops))ᵀ G``, chunk after chunk; G has [m, f]. Collective."""
        if not self.thinned:
            return self._adjoints(G, panel, new)
        full = new(self.bounds, G.width, G.dtype, self.halo_rows)
        for part in range(G.parts):
            full.write_some(part, self.chosen(part), G.read(part))
        return _releasing(
            replace(self, targets=None, thinned=False)._adjoints(full, panel, new), full
        )

    def _adjoints(self, G: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        if self.transposed is None:
            return self.products(G, panel, new)

        def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
            assert self.transposed is not None
            X = G.panel(first, last)
            returned = self._returned(X)
            for part, block in self.transposed.stream():
                begin, end = self.column_bounds[part : part + 2]
                dH = _times(block, X)
                if returned is not None:
                    dH += returned[begin:end]
                yield part, self._with_adjoint_loops(dH, X, part)

        return by_panels(of, self.column_bounds, G, panel, new)

    def _returned(self, X: Tensor) -> Tensor | None:
        """Products for own rows that other ranks compute in the adjoint. Collective."""
        if self.received is None:
            return None
        made = X.new_zeros(self.received.rows, X.shape[1])
        if self.to_others is not None:
            for number, block in self.to_others.stream():
                begin, end = self.to_others.bounds[number : number + 2]
                made[begin:end] = _times(block, X)
        return self.received.halo.adjoint(made)

    @cached_property
    def _diagonal(self) -> Tensor | None:
        """Column of each row's own vertex, int64 [m]; ``None`` if it has the row's number."""
        if self.thinned or self.targets is None:
            return None
        return (
            self.targets if self.sources is None else torch.searchsorted(self.sources, self.targets)
        )

    def extended(self, H: Table, first: int, last: int) -> Tensor:
        """Columns of own rows of H, and of received ones below."""
        X = H.panel(first, last, self.halo_rows)
        if self.received is not None:
            X[H.rows :] = self.received.halo.forward(X[: H.rows].contiguous())
        return X

    def diagonal(self, part: int) -> Tensor:
        """Column of each own vertex whose row is in a block, int64 [rows of the block]."""
        begin, end = self.blocks.bounds[part : part + 2]
        return torch.arange(begin, end) if self._diagonal is None else self._diagonal[begin:end]

    def _with_loops(self, Z: Tensor, X: Tensor, part: int) -> Tensor:
        if self.loops is None:
            return Z
        begin, end = self.blocks.bounds[part : part + 2]
        own = X[begin:end] if self._diagonal is None else X[self._diagonal[begin:end]]
        return Z.addcmul_(own, self.loops[begin:end, None].to(Z.dtype))

    def _with_adjoint_loops(self, dH: Tensor, X: Tensor, part: int) -> Tensor:
        """Add what the diagonal makes of a chunk's columns."""
        if self.loops is None:
            return dH
        low, high = self.row_bounds[part : part + 2]
        own = X[low:high] * self.loops[low:high, None].to(dH.dtype)
        if self._diagonal is None:
            return dH.add_(own)
        return dH.index_add_(0, self._diagonal[low:high] - self.column_bounds[part], own)


def _times(block: CSR, X: Tensor) -> Tensor:
    """A block times what is computed with; its values are float32 as they are kept."""
    return kernels.spmm(block.to(X.dtype), X)


def cut(rows: Tensor | None, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Bounds of the chunks among some own rows in rising order; ``None``: among all own rows."""
    if rows is None:
        return bounds
    return tuple(torch.searchsorted(rows, torch.tensor(bounds)).tolist())


def _releasing(found: Iterator[tuple[int, Tensor]], table: Table) -> Iterator[tuple[int, Tensor]]:
    """Give a table up at the end."""
    try:
        yield from found
    finally:
        table.release()


def by_panels(
    of: Callable[[int, int], Iterator[tuple[int, Tensor]]],
    bounds: tuple[int, ...],
    operand: Table,
    panel: int,
    new: NewTable,
) -> Iterator[tuple[int, Tensor]]:
    """All columns of a product's rows, chunk after chunk.

    Parameters
    ----------
    of : callable
        Columns [first, last) of them, chunk after chunk.
    bounds : tuple of int [K + 1]
        Chunks of the rows.
    operand : Table
        As wide as the product.
    panel : int
        Columns of the operand that are in memory at a time.
    new : callable
        Makes a table for what several panels make.
    """
    panels = panels_of(operand.width, panel)
    if len(panels) == 1:
        yield from of(0, operand.width)
        return
    made = new(bounds, operand.width, operand.dtype)
    try:
        for first, last in panels:
            for part, Z in of(first, last):
                made.write_panel(part, first, Z)
        for part in range(made.parts):
            yield part, made.read(part)
    finally:
        made.release()


def extreme_products(
    matrix: PartMatrix, H: Table, panel: int, new: NewTable, *, largest: bool
) -> Iterator[tuple[int, Tensor]]:
    """The largest of each row's neighbours, chunk after chunk. Collective.

    Parameters
    ----------
    matrix : PartMatrix
        Its values are ignored, and it must have no separate loops.
    H : Table [k, f]
    panel, new
        As of ``matrix.products``.
    largest : bool
        Or the smallest.

    Yields
    ------
    part : int
    Z : Tensor [rows of the chunk, f]
        0 in rows without neighbours.
    """

    def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        X = matrix.extended(H, first, last)
        for part, block in matrix.blocks.stream():
            Z, _ = extreme_(block.pattern, X, largest=largest)
            chosen = matrix.chosen(part) if matrix.thinned else None
            yield part, Z if chosen is None else Z[chosen]

    return by_panels(of, matrix.row_bounds, H, panel, new)


def extreme_adjoints(
    matrix: PartMatrix, H: Table, G: Table, panel: int, new: NewTable, *, largest: bool
) -> Iterator[tuple[int, Tensor]]:
    """The gradient of the operand, chunk after chunk. Collective.

    Parameters
    ----------
    matrix : PartMatrix
    H : Table [k, f]
        The operand.
    G : Table [m, f]
        The gradient of what `extreme_products` made of it.
    panel, new, largest
    """

    def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        X = matrix.extended(H, first, last)
        dX = memory_rows(X.shape[0], X.shape[1], X.dtype).zero_()
        for part, block in matrix.blocks.stream():
            here, chosen = G.read_panel(part, first, last), None
            if matrix.thinned:
                chosen = matrix.chosen(part)
            if chosen is not None:
                here = here.new_zeros(block.shape[0], here.shape[1]).index_copy_(0, chosen, here)
            # Of equal neighbours, the first gets it.
            _, found = extreme_(block.pattern, X, largest=largest)
            add_to_extremes_(dX, here, found)
        own = dX[: H.rows]
        if matrix.received is not None:
            own += matrix.received.halo.adjoint(dX[H.rows :])
        for part, (begin, end) in enumerate(pairwise(matrix.column_bounds)):
            # Whoever keeps the last chunk must not keep them all.
            yield part, own[begin:end].clone()

    return by_panels(of, matrix.column_bounds, H, panel, new)


class Attending:
    """One layer's attention over a matrix whose rows come chunk after chunk.

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
        """Weighed sums of each row's neighbours, chunk after chunk. Collective.

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
        O : Tensor [rows of the chunk, heads · channels]
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
        """The gradient of the attention operand, chunk after chunk. Collective.

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
        """Columns of all source rows, packed. Collective."""
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
        """Gradients of own rows that other ranks computed. Collective."""
        matrix = self._matrix
        if matrix.received is None:
            return None
        others = sources.a.new_empty(matrix.halo_rows, sources.a.numel())
        for low, high in pieces:
            if low >= own:
                others[low - own : high - own] = sources.returned(sums, low, high)
        return matrix.received.halo.adjoint(others)

    def _pieces(self, Z: Table) -> list[tuple[int, int]]:
        """All source rows, as many at a time as a chunk has."""
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
        """A chunk's rows, with those nonzeros on the diagonal that are added."""
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
        """Rows of a block that are wanted; ``None``: all."""
        return self._matrix.chosen(part) if self._matrix.thinned else None

    def _spread(self, table: Table, part: int, columns: tuple[int, int]) -> Tensor:
        """Some columns of a chunk's rows, zero where a block has rows that are not wanted."""
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
