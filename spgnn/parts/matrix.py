"""A sparse matrix whose blocks come in turn, times a table of which a panel at a time is in memory.

Whole columns of the operand are in memory, as many as fit, so any row of the matrix finds what it
needs without looking anything up on a disk: the matrix is read once for each panel, everything else
once, and all in long stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.parts.blocks import Blocks
from spgnn.parts.table import Table, panels_of
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


class NewTable(Protocol):
    """Makes a table for what is multiplied or made on the way."""

    def __call__(
        self, bounds: tuple[int, ...], width: int, dtype: torch.dtype, extra: int = 0
    ) -> Table:
        """Of rows in parts, with room for `extra` rows below."""


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
        Parts of the rows that the rank owns, n.
    loops : Tensor float32 [rows of the blocks], optional
        What is added on the diagonal.
    targets : Tensor int64 [m], optional
        Own row that each row is, rising; ``None`` if all own rows are made, m = n.
    thinned : bool
        Whether the blocks make all own rows, of which `targets` are kept.
    sources : Tensor int64 [k], optional
        Own row that each column is, rising; ``None`` if all own rows are columns, k = n.
    transposed : Blocks [k, m], optional
        Own rows of B's transpose, by parts. ``None`` if B is symmetric, with those of other ranks.
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
        """Parts of the rows that are made."""
        return cut(self.targets, self.bounds)

    @cached_property
    def column_bounds(self) -> tuple[int, ...]:
        """Parts of the own rows that are columns."""
        return cut(self.sources, self.bounds)

    def chosen(self, part: int) -> Tensor | None:
        """Which rows of a part are made, numbers in the part, rising; ``None``: all."""
        if self.targets is None:
            return None
        low, high = self.row_bounds[part : part + 2]
        return self.targets[low:high] - self.bounds[part]

    def products(self, H: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        """The rows of ``(B + diag(loops)) H``, part after part. Collective.

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
        Z : Tensor [rows of the part, f]
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
        """The rows of ``(B + diag(loops))ᵀ G``, part after part; G has [m, f]. Collective."""
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
        """What the rows of other ranks make of own columns. Collective."""
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
        """Add what the diagonal makes of a part's columns."""
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
    """Where parts begin among some own rows, which rise; ``None``: among all of them."""
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
    """All columns of a product's rows, part after part.

    Parameters
    ----------
    of : callable
        Columns [first, last) of them, part after part.
    bounds : tuple of int [K + 1]
        Parts of the rows.
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
