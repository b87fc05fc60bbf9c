"""The largest or smallest of neighbours, of which a panel of columns at a time is in memory.

    forward   z_i = max of h_j over the neighbours j of i
    adjoint   dH_j = Σ g_i, of the rows i whose z_i is h_j; of equal neighbours, the first one's

Backward needs no transpose: the rows of the matrix come once more, find the neighbours that were
largest among the same columns of the operand, and add to the same columns of its gradient, both of
which are in memory. Rows of others are added where they were received, and sent back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor

from spgnn.kernels.extremes import add_to_extremes_, extreme_
from spgnn.parts.matrix import NewTable, PartMatrix, by_panels
from spgnn.parts.table import Table, memory_rows


def extreme_products(
    matrix: PartMatrix, H: Table, panel: int, new: NewTable, *, largest: bool
) -> Iterator[tuple[int, Tensor]]:
    """The largest of each row's neighbours, part after part. Collective.

    Parameters
    ----------
    matrix : PartMatrix
        Its values do not count, and it may have no loops beside it.
    H : Table [k, f]
    panel, new
        As of ``matrix.products``.
    largest : bool
        Or the smallest.

    Yields
    ------
    part : int
    Z : Tensor [rows of the part, f]
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
    """The gradient of the operand, part after part. Collective.

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
            # Whoever keeps the last part must not keep them all.
            yield part, own[begin:end].clone()

    return by_panels(of, matrix.column_bounds, H, panel, new)
