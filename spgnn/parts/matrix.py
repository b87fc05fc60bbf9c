"""A sparse matrix whose blocks come in turn, times a table of which a panel at a time is in memory.

Whole columns of the operand are in memory, as many as fit, so any row of the matrix finds what it
needs without looking anything up on a disk: the matrix is read once for each panel, everything else
once, and all in long stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.parts.blocks import Blocks
from spgnn.parts.table import Table, panels_of
from spgnn.spmm import DistMatrix

# Makes a table for what a product of several panels makes: (bounds, width, dtype).
NewTable = Callable[[tuple[int, ...], int, torch.dtype], Table]


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
    """B + diag(loops) on this rank: rows [m] of own and received columns [n + received].

    Attributes
    ----------
    blocks : Blocks [m, n + received]
    loops : Tensor float32 [m], optional
        What is added on the diagonal.
    targets : Tensor int64 [m], optional
        Own row that each row is, rising; ``None`` if all own rows are made, m = n.
    bounds : tuple of int [K + 1]
        Parts of the columns that the rank owns.
    transposed : Blocks [n, m], optional
        Own rows of B's transpose, by parts. ``None`` if B is symmetric, with those of other ranks.
    to_others : Blocks [received, m], optional
        The other rows of B's transpose, if there are any.
    received : Received, optional
        ``None`` on one rank.
    """

    blocks: Blocks
    loops: Tensor | None
    targets: Tensor | None
    bounds: tuple[int, ...]
    transposed: Blocks | None
    to_others: Blocks | None
    received: Received | None

    @property
    def halo_rows(self) -> int:
        """Rows of others that products need."""
        return 0 if self.received is None else self.received.rows

    def products(self, H: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        """The rows of ``(B + diag(loops)) H``, part after part. Collective.

        Parameters
        ----------
        H : Table [n, f]
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
            return self.panel_products(H, first, last)

        return _by_panels(of, self.blocks.bounds, H, panel, new)

    def panel_products(self, H: Table, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The same of columns [first, last) of H, all of them in memory at once. Collective."""
        X = self._extended(H, first, last)
        for part, block in self.blocks.stream():
            yield part, self._with_loops(kernels.spmm(block, X), X, part)

    def adjoints(self, G: Table, panel: int, new: NewTable) -> Iterator[tuple[int, Tensor]]:
        """The rows of ``(B + diag(loops))ᵀ G``, part after part; G has [m, f]. Collective."""
        if self.transposed is None:
            return self.products(G, panel, new)

        def of(first: int, last: int) -> Iterator[tuple[int, Tensor]]:
            assert self.transposed is not None
            X = G.panel(first, last)
            returned = self._returned(X)
            for part, block in self.transposed.stream():
                begin, end = self.bounds[part : part + 2]
                dH = kernels.spmm(block, X)
                if returned is not None:
                    dH += returned[begin:end]
                yield part, self._with_adjoint_loops(dH, X, begin, end)

        return _by_panels(of, self.bounds, G, panel, new)

    def _returned(self, X: Tensor) -> Tensor | None:
        """What the rows of other ranks make of own columns. Collective."""
        if self.received is None:
            return None
        made = X.new_zeros(self.received.rows, X.shape[1])
        if self.to_others is not None:
            for number, block in self.to_others.stream():
                begin, end = self.to_others.bounds[number : number + 2]
                made[begin:end] = kernels.spmm(block, X)
        return self.received.halo.adjoint(made)

    def _extended(self, H: Table, first: int, last: int) -> Tensor:
        """Columns of own rows of H, and of received ones below."""
        X = H.panel(first, last, self.halo_rows)
        if self.received is not None:
            X[H.rows :] = self.received.halo.forward(X[: H.rows].contiguous())
        return X

    def _with_loops(self, Z: Tensor, X: Tensor, part: int) -> Tensor:
        if self.loops is None:
            return Z
        begin, end = self.blocks.bounds[part : part + 2]
        own = X[begin:end] if self.targets is None else X[self.targets[begin:end]]
        return Z.addcmul_(own, self.loops[begin:end, None].to(Z.dtype))

    def _with_adjoint_loops(self, dH: Tensor, X: Tensor, begin: int, end: int) -> Tensor:
        """Add what the diagonal makes of own rows [begin, end)."""
        if self.loops is None:
            return dH
        if self.targets is None:
            return dH.addcmul_(X[begin:end], self.loops[begin:end, None].to(dH.dtype))
        low, high = torch.searchsorted(self.targets, torch.tensor([begin, end])).tolist()
        chosen = self.targets[low:high] - begin
        return dH.index_add_(0, chosen, X[low:high] * self.loops[low:high, None].to(dH.dtype))


def _by_panels(
    of: Callable[[int, int], Iterator[tuple[int, Tensor]]],
    bounds: tuple[int, ...],
    operand: Table,
    panel: int,
    new: NewTable,
) -> Iterator[tuple[int, Tensor]]:
    """All columns of a product's rows, part after part."""
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
