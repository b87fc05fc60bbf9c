# Functions without a line here are C++.
# ruff: noqa: F401
"""The operations on CPUs: the C++ functions, and what they are handed in Python.

Attention gathers *packed* rows: what the other side's nonzeros read of a row lies together, heads
side by side, in rows that begin at cache lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn import _native
from spgnn._native import (
    attention_finish,
    cross_entropy,
    cross_entropy_gradient,
    dequantise_rows,
    dropout_rows,
    edge_softmax,
    extreme,
    extreme_adjoint,
    gather_rows,
    gemm_gradient,
    gemm_product,
    head_products,
    quantise_rows,
    row_sums,
    scatter_add_rows,
    sddmm,
    spmm,
    update_rows,
    update_rows_backward,
)
from spgnn.kernels.attention import AttentionDropout, Rules, Target
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

COLUMNS, COLUMNS_V2, ROWS_V2 = range(3)  # Side of attention_table.cpp


class PackedShape(NamedTuple):
    """Heads, and the columns of each, of packed rows."""

    heads: int
    width: int

    @property
    def padded(self) -> int:
        """Heads as they are packed: a power of two, or a multiple of 16."""
        if self.heads > 16:
            return -(-self.heads // 16) * 16
        return int(1 << max(0, self.heads - 1).bit_length())

    @property
    def columns(self) -> int:
        """Of a packed matrix, filled up."""
        return -(-self.padded * self.width // 16) * 16

    def row_bytes(self, dtype: torch.dtype, matrices: int, numbers: int) -> int:
        """Bytes of a packed row of so many matrices and numbers of heads."""
        used = matrices * self.columns * dtype.itemsize
        used += numbers * self.padded * SUM_DTYPE[dtype].itemsize
        return -(-used // 64) * 64

    def pack(self, matrices: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
        """Rows as the other side gathers them, uint8 [rows, bytes]."""
        stride = self.row_bytes(matrices[0].dtype, len(matrices), len(numbers))
        packed = new_rows(matrices[0].shape[0], torch.empty(0, stride, dtype=torch.uint8))
        _native.attention_pack(self.heads, list(matrices), list(numbers), packed)
        return packed


def side(
    pattern: Pattern,
    shape: PackedShape,
    packed: Tensor,
    slope: float,
    dropout: AttentionDropout | None,
    *,
    by_column: bool = False,
    **others: Any,
) -> _native.AttentionSide:
    """One side of an attention: rows, and packed rows of the other side that they gather.

    Rows are destinations, or `by_column` sources; for the others see ``_native.AttentionSide``.
    """
    if dropout is not None:
        ids = dropout.row_ids, dropout.col_ids
        others["own_ids"], others["other_ids"] = reversed(ids) if by_column else ids
        others |= {"key": dropout.signed_key, "p": dropout.p}
    return _native.AttentionSide(
        pattern.indptr, pattern.indices, packed, *shape, slope, by_column=by_column, **others
    )


def attend(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says."""
    shape = PackedShape(d.shape[1], Z.shape[1] // d.shape[1])
    here = side(
        pattern,
        shape,
        shape.pack([Z], [s]),
        rules.slope,
        rules.drops,
        first_numbers=d,
        edge_scores=rules.edges,
    )
    _native.attend(here, Z, target.arrays, target.ending, target.out, target.lse, False)


def attend_v2(
    pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules, target: Target
) -> None:
    """The same with GATv2's scores."""
    shape = PackedShape(*a.shape)
    here = side(
        pattern,
        shape,
        shape.pack([y], []),
        rules.slope,
        rules.drops,
        first=x,
        vector=a,
        edge_features=rules.edges,
    )
    _native.attend(here, y, target.arrays, target.ending, target.out, target.lse, True)


def attend_backward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in Z, s and the scores of edges."""
    shape = PackedShape(d.shape[1], Z.shape[1] // d.shape[1])
    dZ, ds = new_rows(Z.shape[0], Z), torch.empty_like(s, memory_format=torch.contiguous_format)
    edges = None if rules.edges is None else rules.edges.contiguous()
    dt = None if edges is None else torch.empty_like(edges)
    here = side(
        pattern.T,
        shape,
        shape.pack([G], [d, lse, D]),
        rules.slope,
        rules.drops,
        by_column=True,
        order=None if edges is None else pattern.order,
        first=Z,
        first_numbers=s,
        edge_scores=edges,
    )
    _native.attend_backward(here, COLUMNS, dZ, ds, None, dt, None)
    return dZ, ds, dt


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients in x, y, a and the features of edges."""
    shape = PackedShape(*a.shape)
    features = None if rules.edges is None else rules.edges.contiguous()
    dx, dy, da = new_rows(x.shape[0], x), new_rows(y.shape[0], y), torch.zeros_like(a.contiguous())
    dt = None if features is None else torch.empty_like(features)
    rows = side(
        pattern,
        shape,
        shape.pack([y], []),
        rules.slope,
        rules.drops,
        first=x,
        second=G,
        first_numbers=lse,
        second_numbers=D,
        vector=a,
        edge_features=features,
    )
    _native.attend_backward(rows, ROWS_V2, dx, None, da, None, dt)
    del rows  # its packed rows make room for those of the other side
    columns = side(
        pattern.T,
        shape,
        shape.pack([x, G], [lse, D]),
        rules.slope,
        rules.drops,
        by_column=True,
        order=None if features is None else pattern.order,
        first=y,
        vector=a,
        edge_features=features,
    )
    _native.attend_backward(columns, COLUMNS_V2, dy, None, None, None, None)
    return dx, dy, da, dt
