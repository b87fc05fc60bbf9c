"""A sparse matrix whose blocks come in turn: sums, reductions and attention over it.

Of an operand, a panel of columns is in memory: all of them, or as many as fit. The blocks stream by
once for each panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.addons.outofcore.attention_panel import (
    AttentionPanel,
    PanelLoops,
    PanelRows,
    panel_bytes,
)
from spgnn.addons.outofcore.blocks import Blocks
from spgnn.addons.outofcore.edges import EdgeByEdge, RowsOf
from spgnn.addons.outofcore.tables import Table, memory_rows
from spgnn.attention import EdgeDropout
from spgnn.graph import AttentionScores
from spgnn.kernels import AttentionDropout, add_to_extremes_, extreme_
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

NewTable = Callable[..., Table]  # (bounds, width, extra=0): where operands lie
ChunkStream = Iterator[tuple[int, Tensor]]  # the number of each chunk, and its rows
_FEW_COLUMNS = 32


class Heads(NamedTuple):
    """Attention heads of a layer."""

    number: int
    channels: int  # columns of each head's messages
    joint: bool = False  # whether a destination's score has all channels (GATv2), not one number

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def score_width(self) -> int:
        """Columns of one head's destination scores."""
        return self.channels if self.joint else 1

    @property
    def score_columns(self) -> int:
        """Columns of all heads' destination scores."""
        return self.number * self.score_width

    def packed(self, panel: int, itemsize: int) -> int:
        """Bytes of a source in a panel of so many columns, as kernels take it."""
        dtype = torch.float64 if itemsize > 4 else torch.float32
        return panel_bytes(panel // self.channels, self.channels, dtype, joint=self.joint)


NO_HEADS = Heads(0, 0)


class Request(NamedTuple):
    """The aggregation that a layer asks for, of some rows."""

    operand: Tensor  # [rows, f], what is reduced
    first: bool = False  # whether the layer's weight is in them already
    reduce: str = "sum"
    scores: AttentionScores | None = None  # with attention
    dropped: EdgeDropout | None = None  # with attention, in training
    rows_of: RowsOf | None = None  # of a layer that looks at edges one by one: all of it
    width: int = 0  # columns of its result

    @property
    def linear(self) -> bool:
        """True if backward does without the operand, as of a sum."""
        return self.reduce == "sum" and self.rows_of is None

    @property
    def whole(self) -> int:
        """Pieces of a row that panels do not cut: heads, or all of it; 0: any columns."""
        return self.heads.number if self.rows_of is None else 1

    @property
    def heads(self) -> Heads:
        """Heads of attention; there are none without."""
        if self.scores is None:
            return NO_HEADS
        number, channels = self.scores.vector.shape
        return Heads(number, channels, self.scores.joint)

    @property
    def without_rows(self) -> Request:
        """The same, whatever the rows are."""
        scores = self.scores
        if scores is not None:
            none = scores.destinations[:0].detach()
            scores = replace(scores, destinations=none, vector=scores.vector.detach())
        return self._replace(operand=self.operand[:0].detach(), scores=scores)


class ScoreTables(NamedTuple):
    """Attention's scores of the rows of a matrix, and where their gradients go."""

    destinations: Table  # [m, heads · score columns]
    ids: Tensor | None = None  # original ids of the columns, where weights are dropped
    gradients: Table | None = None
    vector_gradient: Tensor | None = None  # [heads, channels], which is added to


@dataclass(frozen=True, eq=False)
class ChunkMatrix:
    """B + diag(loops) on this rank: rows [m] of own and received columns [k + received]."""

    blocks: Blocks
    bounds: tuple[int, ...]  # chunks of the rows that the rank owns, n
    loops: Tensor | None = None  # what is added on the diagonal
    targets: Tensor | None = None  # own row that each row is, rising; None: all own rows
    thinned: bool = False  # blocks make all own rows, and only `targets` are wanted
    sources: Tensor | None = None  # own row that each column is, rising; None: all
    transposed: Blocks | None = None  # own rows of Bᵀ; None: B is symmetric
    to_others: Blocks | None = None  # the other rows of B's transpose, if there are any
    halo: DistMatrix | None = None  # picks the rows of other ranks; None on one rank
    ids: Tensor | None = None  # original ids of the columns, where layers look at edges

    @property
    def halo_rows(self) -> int:
        """Rows of others that products need."""
        return 0 if self.halo is None else self.halo.rows

    @cached_property
    def row_bounds(self) -> tuple[int, ...]:
        """Chunks of the rows that are made."""
        return _cut(self.targets, self.bounds)

    @cached_property
    def column_bounds(self) -> tuple[int, ...]:
        """Chunks of the own rows that are columns."""
        return _cut(self.sources, self.bounds)

    @property
    def adjoint_blocks(self) -> list[Blocks]:
        """Blocks that the adjoint reads."""
        every = (self.blocks,) if self.transposed is None else (self.transposed, self.to_others)
        return [blocks for blocks in every if blocks is not None]

    def chosen(self, chunk: int) -> Tensor | None:
        """Rows of a chunk that the product makes, counted from its first row; ``None``: all."""
        if self.targets is None:
            return None
        low, high = self.row_bounds[chunk : chunk + 2]
        return self.targets[low:high] - self.bounds[chunk]

    def keep_wanted(self, chunk: int, Z: Tensor) -> Tensor:
        """The rows of a block that are made."""
        chosen = self.chosen(chunk) if self.thinned else None
        return Z if chosen is None else Z[chosen]

    def spread(self, chunk: int, Z: Tensor) -> Tensor:
        """Rows that are made as rows of a block, which has zeros in the others."""
        chosen = self.chosen(chunk) if self.thinned else None
        if chosen is None:
            return Z
        begin, end = self.blocks.bounds[chunk : chunk + 2]
        return Z.new_zeros(end - begin, Z.shape[1]).index_copy_(0, chosen, Z)

    def products(
        self, H: Table, request: Request | None = None, scores: ScoreTables | None = None
    ) -> ChunkStream:
        """Rows of an aggregation of H [k, f], by chunks; without a request B + diag(loops) times H.

        Collective; each is valid until the next one.
        """
        answers = self._answers(request, scores)

        def of(first: int, last: int) -> ChunkStream:
            for chunk, Z in answers.products(H, first, last):
                yield chunk, self.keep_wanted(chunk, Z)

        return _by_panels(of, self.row_bounds, H)

    def panel_products(self, H: Table, first: int, last: int) -> ChunkStream:
        """Columns [first, last) of B + diag(loops) times H, with the rows of all blocks."""
        return _Sums(self).products(H, first, last)

    def adjoints(
        self,
        G: Table,
        new: NewTable,
        request: Request | None = None,
        operand: Table | None = None,
        scores: ScoreTables | None = None,
    ) -> ChunkStream:
        """The gradient of an operand by that of its aggregation, G [m, f]. Collective."""
        answers = self._answers(request, scores)
        if not isinstance(answers, _Sums):
            assert operand is not None
            of = partial(answers.adjoints, operand, G)
            yield from _by_panels(of, self.column_bounds, operand)
            return
        full, whole = G, self
        if self.thinned:
            full = new(self.bounds, G.width, self.halo_rows)
            whole = replace(self, targets=None, thinned=False)
        try:
            for chunk in range(G.chunks if self.thinned else 0):
                full.write_some(chunk, self.chosen(chunk), G.read(chunk))
            of = partial(_Sums(whole).adjoints, full, full)
            yield from _by_panels(of, whole.column_bounds, full)
        finally:
            if self.thinned:
                full.release()

    def _answers(
        self, request: Request | None, scores: ScoreTables | None
    ) -> _Sums | _Reductions | _Attention | EdgeByEdge:
        if request is None or request.linear:
            return _Sums(self)
        if request.rows_of is not None:
            return EdgeByEdge(self, request.rows_of)
        if scores is None:
            return _Reductions(self, request.reduce)
        return _Attention(self, request, scores)

    @cached_property
    def diagonal(self) -> Tensor | None:
        """Column of each row's own vertex, int64 [m]; ``None`` if it has the row's number."""
        if self.thinned or self.targets is None or self.sources is None:
            return None if self.thinned else self.targets
        return torch.searchsorted(self.sources, self.targets)

    def extended(self, H: Table, first: int, last: int) -> Tensor:
        """Columns of own rows of H, and of received ones below. Collective."""
        X = H.panel(first, last, self.halo_rows)
        if self.halo is not None:
            X[H.rows :] = self.halo.forward(X[: H.rows].contiguous())
        return X

    def returned(self, dX: Tensor) -> ChunkStream:
        """Gradients of own columns; those of others go to their owners. Collective."""
        own = dX[: self.column_bounds[-1]]
        if self.halo is not None:
            own += self.halo.adjoint(dX[len(own) :])
        for chunk, (begin, end) in enumerate(pairwise(self.column_bounds)):
            yield chunk, own[begin:end].clone()  # a view of the last chunk would keep them all

    def received_ids(self, ids: Tensor | int) -> Tensor | None:
        """Original ids of the rows of other ranks, int64; ``None`` on one rank. Collective."""
        if self.halo is None:
            return None
        if isinstance(ids, int):
            ids = torch.arange(ids, ids + self.bounds[-1])
        # Rows of two numbers that float64 holds exactly.
        halves = torch.stack((ids >> 32, ids & 0xFFFFFFFF), 1).double()
        high, low = self.halo.forward(halves).long().unbind(1)
        return (high << 32) + low


def _pieces(X: Tensor) -> Sequence[Tensor]:
    """Some columns at a time: what torch makes of a reduction takes several times its operand."""
    pieces: Sequence[Tensor] = X.split(_FEW_COLUMNS, 1)
    return pieces


def _times(block: CSR, X: Tensor) -> Tensor:
    """A block times what is computed with; its values are float32 as they are kept."""
    return kernels.spmm(block.to(X.dtype), X)


def _cut(rows: Tensor | None, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Bounds of the chunks among some own rows in rising order; ``None``: among all own rows."""
    if rows is None:
        return bounds
    return tuple(torch.searchsorted(rows, torch.tensor(bounds)).tolist())


def _by_panels(
    of: Callable[[int, int], ChunkStream], bounds: tuple[int, ...], operand: Table
) -> ChunkStream:
    """All columns of a product's rows, as wide as its operand, from ``of(first, last)``."""
    if len(operand.panels) == 1:
        yield from of(0, operand.width)
        return
    together = operand.like(bounds)
    try:
        for first, last in operand.panels:
            for chunk, Z in of(first, last):
                together.write_panel(chunk, first, Z)
        for chunk in range(together.chunks):
            yield chunk, together.read(chunk)
    finally:
        together.release()


class _Sums:
    """B + diag(loops) times an operand, and its transpose."""

    def __init__(self, matrix: ChunkMatrix) -> None:
        self._matrix = matrix

    def products(self, H: Table, first: int, last: int) -> ChunkStream:
        """Columns [first, last) of the rows of all blocks. Collective."""
        matrix = self._matrix
        X = matrix.extended(H, first, last)
        for chunk, block in matrix.blocks.stream():
            Z = _times(block, X)
            if matrix.loops is not None:
                begin, end = matrix.blocks.bounds[chunk : chunk + 2]
                own = X[begin:end] if matrix.diagonal is None else X[matrix.diagonal[begin:end]]
                Z = Z.addcmul_(own, matrix.loops[begin:end, None].to(Z.dtype))
            yield chunk, Z

    def adjoints(self, H: Table, G: Table, first: int, last: int) -> ChunkStream:
        """The same of the transpose, times G. Collective."""
        matrix = self._matrix
        if matrix.transposed is None:
            yield from self.products(G, first, last)
            return
        X = G.panel(first, last)
        returned = self._returned(X)
        for chunk, block in matrix.transposed.stream():
            begin, end = matrix.column_bounds[chunk : chunk + 2]
            dH = _times(block, X)
            if returned is not None:
                dH += returned[begin:end]
            if matrix.loops is not None:
                low, high = matrix.row_bounds[chunk : chunk + 2]
                own = X[low:high] * matrix.loops[low:high, None].to(dH.dtype)
                if matrix.diagonal is None:
                    dH.add_(own)
                else:
                    dH.index_add_(0, matrix.diagonal[low:high] - begin, own)
            yield chunk, dH

    def _returned(self, X: Tensor) -> Tensor | None:
        """Products for own rows that other ranks compute in the adjoint. Collective."""
        matrix = self._matrix
        if matrix.halo is None:
            return None
        sent = X.new_zeros(matrix.halo_rows, X.shape[1])
        if matrix.to_others is not None:
            for number, block in matrix.to_others.stream():
                begin, end = matrix.to_others.bounds[number : number + 2]
                sent[begin:end] = _times(block, X)
        return matrix.halo.adjoint(sent)


class _Reductions:
    """A reduction of each row's neighbours, whose values do not count; 0 without any."""

    def __init__(self, matrix: ChunkMatrix, reduction: str) -> None:
        self._matrix, self._reduction = matrix, reduction
        self._chooses = reduction in ("max", "min")

    def products(self, H: Table, first: int, last: int) -> ChunkStream:
        """Columns [first, last) of the rows of all blocks. Collective."""
        X = self._matrix.extended(H, first, last)
        for chunk, block in self._matrix.blocks.stream():
            A, pieces = CSR(block.pattern), [X] if self._chooses else _pieces(X)
            yield chunk, torch.cat([kernels.spmm(A, x, reduce=self._reduction) for x in pieces], 1)

    def adjoints(self, H: Table, G: Table, first: int, last: int) -> ChunkStream:
        """The gradient of H. Collective."""
        matrix = self._matrix
        X = matrix.extended(H, first, last)
        dX = memory_rows(X.shape[0], X.shape[1], X.dtype).zero_()
        for chunk, block in matrix.blocks.stream():
            here = matrix.spread(chunk, G.read_panel(chunk, first, last))
            if self._chooses:  # of equal neighbours, the first gets it
                arg = extreme_(block.pattern, X, largest=self._reduction == "max")[1]
                add_to_extremes_(dX, here, arg)
                continue
            for x, dx, dz in zip(_pieces(X), _pieces(dX), _pieces(here), strict=True):
                with torch.enable_grad():
                    operand = x.detach().requires_grad_()
                    z = kernels.spmm(CSR(block.pattern), operand, reduce=self._reduction)
                dx.add_(torch.autograd.grad(z, operand, dz)[0])
        yield from matrix.returned(dX)


class _Attention:
    """Attention over a matrix whose rows come chunk after chunk; its values do not count."""

    def __init__(self, matrix: ChunkMatrix, request: Request, scores: ScoreTables) -> None:
        assert request.scores is not None
        self._matrix, self._heads, self._tables = matrix, request.heads, scores
        self._vector, self._slope = request.scores.vector.detach(), request.scores.slope
        self._joint, self._dropped = request.scores.joint, request.dropped
        self._ids = scores.ids if request.dropped is not None else None

    def products(self, Z: Table, first: int, last: int) -> ChunkStream:
        """Weighted sums of each row's neighbours, of all blocks. Collective."""
        sources, ids = self._sources(Z, first, last), self._ids_of(first, last)
        for chunk, block in self._matrix.blocks.stream():
            rows = self._rows_of(block.pattern, chunk, ids, (first, last))
            yield chunk, sources.attend(rows)

    def adjoints(self, Z: Table, G: Table, first: int, last: int) -> ChunkStream:
        """The gradient of Z; those of destinations and vector are written. Collective."""
        matrix, channels, tables = self._matrix, self._heads.channels, self._tables
        assert tables.gradients is not None
        assert tables.vector_gradient is not None
        sources, ids = self._sources(Z, first, last), self._ids_of(first, last)
        rows, stride = sources.packed.shape
        sums = memory_rows(rows, stride, torch.uint8).zero_()
        of_heads = tables.vector_gradient[first // channels : last // channels]
        for chunk, block in matrix.blocks.stream():
            own = self._rows_of(block.pattern, chunk, ids, (first, last))
            here = matrix.spread(chunk, G.read_panel(chunk, first, last)).contiguous()
            gradient, of_vector = sources.scatter(own, here, sums)
            of_heads += of_vector
            gradient = matrix.keep_wanted(chunk, gradient)
            tables.gradients.write_panel(chunk, self._score_columns(first, last)[0], gradient)
        ranges = self._source_ranges(Z)
        if not self._joint:
            for low, high in ranges:
                of_heads += sources.vector_gradient(sums, low, high)
        back = self._sent_back(sources, sums, ranges, Z.rows)
        for chunk, (low, high) in enumerate(pairwise(matrix.column_bounds)):
            dZ = sources.returned(sums, low, high)
            yield chunk, dZ if back is None else dZ.add_(back[low:high])

    def _sources(self, Z: Table, first: int, last: int) -> AttentionPanel:
        """Columns of all source rows, packed. Collective."""
        matrix, channels = self._matrix, self._heads.channels
        a = self._vector[first // channels : last // channels].contiguous()
        stride = panel_bytes(a.shape[0], channels, a.dtype, joint=self._joint)
        packed = memory_rows(Z.rows + matrix.halo_rows, stride, torch.uint8)
        sources = AttentionPanel(packed, a, self._slope, self._joint)
        if matrix.halo is None:
            for chunk in range(Z.chunks):
                sources.put(Z.bounds[chunk], Z.read_panel(chunk, first, last))
            return sources
        X = matrix.extended(Z, first, last)
        for low, high in self._source_ranges(Z):
            sources.put(low, X[low:high])
        del X
        Z.forget_panel()
        return sources

    def _sent_back(
        self, sources: AttentionPanel, sums: Tensor, ranges: list[tuple[int, int]], own: int
    ) -> Tensor | None:
        """Gradients of own rows that other ranks computed. Collective."""
        halo = self._matrix.halo
        if halo is None:
            return None
        others = sources.a.new_empty(halo.rows, sources.a.numel())
        for low, high in ranges:
            if low >= own:
                others[low - own : high - own] = sources.returned(sums, low, high)
        return halo.adjoint(others)

    def _source_ranges(self, Z: Table) -> list[tuple[int, int]]:
        """All source rows, as many at a time as a chunk has."""
        last, step = Z.rows + self._matrix.halo_rows, max(*Z.lengths, 1)
        received = ((low, min(low + step, last)) for low in range(Z.rows, last, step))
        return [*pairwise(Z.bounds), *received]

    def _rows_of(
        self, pattern: Pattern, chunk: int, ids: Tensor | None, columns: tuple[int, int]
    ) -> PanelRows:
        """A chunk's rows, with those nonzeros on the diagonal that are added."""
        matrix, loops, dropout = self._matrix, None, None
        begin, end = matrix.blocks.bounds[chunk : chunk + 2]
        own = matrix.diagonal
        diagonal = torch.arange(begin, end) if own is None else own[begin:end]
        if matrix.loops is not None:
            loops = PanelLoops(matrix.loops[begin:end] > 0, diagonal)
        if ids is not None and self._ids is not None and self._dropped is not None:
            # The kernel takes a signed key.
            key, p = (self._dropped.key + 2**63) % 2**64 - 2**63, self._dropped.p
            dropout = AttentionDropout(key, p, self._ids[diagonal], ids)
        scores = self._tables.destinations.read_panel(chunk, *self._score_columns(*columns))
        return PanelRows(pattern, matrix.spread(chunk, scores).contiguous(), loops, dropout)

    def _ids_of(self, first: int, last: int) -> Tensor | None:
        """Ids of sources, so that dropout of some heads is that of these among all of them."""
        heads, here = self._heads.number, (last - first) // self._heads.channels
        if self._ids is None or here == heads:
            return self._ids
        # Element (id · heads + head) is (id' · here + head − first head).
        return self._ids * (heads // here) + first // (last - first)

    def _score_columns(self, first: int, last: int) -> tuple[int, int]:
        """Columns of destination scores for columns of a panel."""
        channels, width = self._heads.channels, self._heads.score_width
        return first // channels * width, last // channels * width
