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
    dequantise_rows,
    dropout_rows,
    edge_extremes,
    edge_products,
    edge_softmax,
    edge_sum,
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
from spgnn.kernels.attention import AttentionDropout, Gat, GatV2, Rules, Target
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

COLUMNS, COLUMNS_V2, ROWS_V2 = range(3)  # Side of attention_kernel.cpp


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
        """Columns of a packed matrix, filled up."""
        return -(-self.padded * self.width // 16) * 16

    def row_bytes(self, dtype: torch.dtype, matrices: int, numbers: int) -> int:
        """Bytes of a packed row of so many matrices and numbers of heads."""
        used = matrices * self.columns * dtype.itemsize
        used += numbers * self.padded * SUM_DTYPE[dtype].itemsize
        return -(-used // 64) * 64

    def pack(self, matrices: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
        """Rows as the other side gathers them, uint8 [rows, bytes]."""
        stride = self.row_bytes(matrices[0].dtype, len(matrices), len(numbers))
        packed = new_rows(
            matrices[0].shape[0], torch.empty(0, stride, dtype=torch.uint8, device="cpu")
        )
        _native.attention_pack(self.heads, list(matrices), list(numbers), packed)
        return packed


def side(
    pattern: Pattern,
    shape: PackedShape,
    packed: Tensor,
    rules: Rules,
    *,
    by_column: bool = False,
    **others: Any,
) -> _native.AttentionSide:
    """One side of an attention: rows, and packed rows of the other side that they gather."""
    if rules.drops is not None:
        ids = rules.drops.row_ids, rules.drops.col_ids
        others["own_ids"], others["other_ids"] = reversed(ids) if by_column else ids
        others |= {"key": rules.drops.signed_key, "p": rules.drops.p}
    return _native.AttentionSide(
        pattern.indptr, pattern.indices, packed, *shape, rules.slope, by_column=by_column, **others
    )


def attend(pattern: Pattern, operands: Gat | GatV2, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says."""
    heads, Z = operands.heads, operands.features
    shape, own = PackedShape(heads, Z.shape[1] // heads), operands[0]
    others: dict[str, Any]
    if operands.joint:
        others = {"first": own, "vector": operands[2], "edge_features": rules.edges}
        here = side(pattern, shape, shape.pack([Z], []), rules, **others)
    else:
        others = {"first_numbers": own, "edge_scores": rules.edges}
        here = side(pattern, shape, shape.pack([Z], [operands[1]]), rules, **others)
    _native.attend(here, Z, target.arrays, target.ending, target.out, target.lse, operands.joint)


def attend_backward(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules, G: Tensor, lse: Tensor, D: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients in Z, s and the scores of edges; or in x, y, a and the features of edges."""
    heads, Z = operands.heads, operands.features
    shape = PackedShape(heads, Z.shape[1] // heads)
    edges = None if rules.edges is None else rules.edges.contiguous()
    order = None if edges is None else pattern.order
    dZ, dt = new_rows(Z.shape[0], Z), None if edges is None else torch.empty_like(edges)
    if isinstance(operands, Gat):
        d, s, _ = operands
        ds = torch.empty_like(s, memory_format=torch.contiguous_format)
        packed = shape.pack([G], [d, lse, D])
        own: dict[str, Any] = {"first": Z, "first_numbers": s, "edge_scores": edges, "order": order}
        here = side(pattern.T, shape, packed, rules, by_column=True, **own)
        _native.attend_backward(here, COLUMNS, dZ, ds, None, dt, None)
        return dZ, ds, dt
    x, y, a = operands
    dx, da = new_rows(x.shape[0], x), torch.zeros_like(a.contiguous())
    both: dict[str, Any] = {"vector": a, "edge_features": edges}
    own = {"first": x, "second": G, "first_numbers": lse, "second_numbers": D}
    rows = side(pattern, shape, shape.pack([y], []), rules, **own, **both)
    _native.attend_backward(rows, ROWS_V2, dx, None, da, None, dt)
    del rows  # its packed rows make room for those of the other side
    packed = shape.pack([x, G], [lse, D])
    columns = side(pattern.T, shape, packed, rules, by_column=True, order=order, first=y, **both)
    _native.attend_backward(columns, COLUMNS_V2, dZ, None, None, None, None)
    return dx, dZ, da, dt
