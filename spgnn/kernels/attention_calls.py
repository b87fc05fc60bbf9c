# Attention has many operands, and O is the name of its sums in all of its literature.
# ruff: noqa: E741
"""Attention by the C++ kernels, and how these are called: rows packed, arrays as addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.attention_rules import AttentionDropout, Rules
from spgnn.kernels.attention_state import Target
from spgnn.kernels.library import address, dense, native, threads, unit_stride
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
EDGE_WORK = 8  # multiplications that a nonzero costs beside those of its features
NO_DROPOUT = (0, 0, False, 0, 0, 1.0)
COLUMNS, COLUMNS_V2, ROWS_V2 = range(3)  # Side of attention_backward_kernel.hpp


def call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    """The C++ function of that name for a dtype."""
    getattr(native, f"{name}_{NAMES[dtype]}")(*arguments)


@dataclass(frozen=True)
class Shape:
    """Heads, and the columns of each."""

    heads: int
    width: int

    @property
    def padded(self) -> int:
        """Heads as they are packed: a power of two, or a multiple of 16."""
        if self.heads > 16:
            return -(-self.heads // 16) * 16
        return int(1 << max(0, self.heads - 1).bit_length())

    @property
    def words(self) -> tuple[int, int, int]:
        """For C++."""
        return self.heads, self.padded, self.width

    def threads(self, edges: int) -> int:
        """For so many nonzeros."""
        return threads(edges * self.padded * (self.width + EDGE_WORK))

    def pack(
        self, matrices: Sequence[Tensor], numbers: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[int, int]]:
        """Rows as the other side gathers them: the memory, and what C++ is told of it."""
        rows, dtype = matrices[0].shape[0], matrices[0].dtype
        stride = self.stride(dtype, len(matrices), len(numbers))
        packed = new_rows(rows, torch.empty(0, stride, dtype=torch.uint8))
        return packed, self.pack_into(packed, matrices, numbers)

    @property
    def columns(self) -> int:
        """Of a packed matrix, filled up."""
        return -(-self.padded * self.width // 16) * 16

    def stride(self, dtype: torch.dtype, matrices: int, numbers: int) -> int:
        """Bytes of a packed row of so many matrices and arrays of numbers."""
        used = matrices * self.columns * dtype.itemsize
        used += numbers * self.padded * SUM_DTYPE[dtype].itemsize
        return -(-used // 64) * 64

    def pack_into(
        self, packed: Tensor, matrices: Sequence[Tensor], numbers: Sequence[Tensor]
    ) -> tuple[int, int]:
        """The same into memory that is there, uint8 [rows, stride]."""
        (rows, stride), dtype = packed.shape, matrices[0].dtype
        matrices = [unit_stride(matrix) for matrix in matrices]
        numbers = [array.contiguous() for array in numbers]
        second = (address(matrices[1]), matrices[1].stride(0)) if len(matrices) > 1 else (0, 0)
        arrays = [array.data_ptr() for array in numbers] + [0] * (3 - len(numbers))
        described = packed.data_ptr(), stride
        first = matrices[0].data_ptr(), matrices[0].stride(0)
        work = threads(rows * self.heads * self.width)
        call(
            "attention_pack",
            dtype,
            self.words,
            rows,
            *first,
            *second,
            tuple(arrays),
            described,
            work,
        )
        return described


def block(pattern: Pattern, order: Tensor | None = None) -> tuple[Any, ...]:
    """A pattern for C++."""
    indices = pattern.indices.data_ptr(), pattern.indices.dtype == torch.int64
    listed = address(order), order is not None and order.dtype == torch.int64
    return pattern.indptr.data_ptr(), pattern.shape[0], indices, listed


def own(
    first: Tensor | None, second: Tensor | None = None, *numbers: Tensor
) -> tuple[int, int, int, int, int, int]:
    """Rows of this side for C++: unit column stride, numbers contiguous."""
    words = []
    for matrix in (first, second):
        words += [0, 0] if matrix is None else [matrix.data_ptr(), matrix.stride(0)]
    arrays = [array.data_ptr() for array in numbers] + [0] * (2 - len(numbers))
    return (*words, *arrays)  # type: ignore[return-value]


def dropout_words(dropout: AttentionDropout | None, by_column: bool) -> tuple[Any, ...]:
    """A rule of dropout for C++; its rows are destinations, or `by_column` sources."""
    if dropout is None:
        return NO_DROPOUT
    ids = dropout.row_ids.data_ptr(), dropout.col_ids.data_ptr()
    rule = native.mix64(dropout.key % 2**64), round(dropout.p * 2**32), 1.0 / (1.0 - dropout.p)
    return (*(reversed(ids) if by_column else ids), by_column, *rule)


def addresses(arrays: Sequence[Tensor | None]) -> tuple[int, ...]:
    """Where arrays without gaps begin."""
    for array in arrays:
        assert array is None or array.is_contiguous()
    return tuple(address(array) for array in arrays)


def attend(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says."""
    shape = Shape(d.shape[1], Z.shape[1] // d.shape[1])
    packed, described = shape.pack([Z], [s])
    d, edges = d.contiguous(), dense(rules.edges)
    call(
        "attend",
        Z.dtype,
        block(pattern),
        shape.words,
        described,
        own(None, None, d),
        (rules.slope, 0, address(edges), 0),
        dropout_words(rules.drops, by_column=False),
        addresses(target.arrays),
        target.ending,
        *addresses((target.out, target.lse)),
        False,
        shape.threads(pattern.nnz),
    )
    del packed


def attend_v2(
    pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules, target: Target
) -> None:
    """The same with GATv2's scores."""
    shape = Shape(*a.shape)
    packed, described = shape.pack([y], [])
    x, a, edges = unit_stride(x), a.contiguous(), dense(rules.edges)
    call(
        "attend",
        x.dtype,
        block(pattern),
        shape.words,
        described,
        own(x),
        (rules.slope, a.data_ptr(), 0, address(edges)),
        dropout_words(rules.drops, by_column=False),
        addresses(target.arrays),
        target.ending,
        *addresses((target.out, target.lse)),
        True,
        shape.threads(2 * pattern.nnz),
    )
    del packed


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
    shape = Shape(d.shape[1], Z.shape[1] // d.shape[1])
    dZ, ds = new_rows(Z.shape[0], Z), torch.empty_like(s, memory_format=torch.contiguous_format)
    order = None if rules.edges is None else pattern.order
    edges = dense(rules.edges)
    dt = None if edges is None else torch.empty_like(edges)
    packed, described = shape.pack([G], [d, lse, D])
    Z, s = unit_stride(Z), s.contiguous()
    call(
        "attend_backward",
        Z.dtype,
        block(pattern.T, order),
        shape.words,
        described,
        own(Z, None, s),
        (rules.slope, 0, address(edges), 0),
        dropout_words(rules.drops, by_column=True),
        (dZ.data_ptr(), ds.data_ptr(), 0, address(dt), 0),
        COLUMNS,
        shape.threads(2 * pattern.nnz),
    )
    del packed
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
    shape = Shape(*a.shape)
    x, y, G = unit_stride(x), unit_stride(y), unit_stride(G)
    a, lse, D = a.contiguous(), lse.contiguous(), D.contiguous()
    features = dense(rules.edges)
    dx, dy, da = new_rows(x.shape[0], x), new_rows(y.shape[0], y), torch.zeros_like(a)
    dt = None if features is None else torch.empty_like(features)
    scores = rules.slope, a.data_ptr(), 0, address(features)
    work = shape.threads(3 * pattern.nnz)
    packed, described = shape.pack([y], [])
    call(
        "attend_backward",
        x.dtype,
        block(pattern),
        shape.words,
        described,
        own(x, G, lse, D),
        scores,
        dropout_words(rules.drops, by_column=False),
        (dx.data_ptr(), 0, da.data_ptr(), 0, address(dt)),
        ROWS_V2,
        work,
    )
    packed, described = shape.pack([x, G], [lse, D])
    order = None if features is None else pattern.order
    call(
        "attend_backward",
        x.dtype,
        block(pattern.T, order),
        shape.words,
        described,
        own(y),
        scores,
        dropout_words(rules.drops, by_column=True),
        (dy.data_ptr(), 0, 0, 0, 0),
        COLUMNS_V2,
        work,
    )
    del packed
    return dx, dy, da, dt


def merge(
    into: Sequence[Tensor | None], rows: Tensor | None, other: Sequence[Tensor | None]
) -> None:
    """Merge triples (m, n, O, P or None, pi or None) into listed rows of others, in place."""
    m, _, O, *_ = other
    assert m is not None
    assert O is not None
    count, heads = m.shape
    rows, other = dense(rows), [dense(array) for array in other]
    call(
        "attention_merge",
        m.dtype,
        addresses(into),
        (address(rows), rows is not None and rows.dtype == torch.int64),
        addresses(other),
        count,
        heads,
        O.shape[1] // max(1, heads),
        threads(2 * O.numel()),
    )


def finish(arrays: Sequence[Tensor | None], out: Tensor, lse: Tensor) -> None:
    """O / n and m + log n of triples (m, n, O, …)."""
    rows, heads = lse.shape
    call(
        "attention_finish",
        out.dtype,
        addresses(arrays),
        out.data_ptr(),
        lse.data_ptr(),
        rows,
        heads,
        out.shape[1] // max(1, heads),
        threads(out.numel()),
    )


def head_products(G: Tensor, X: Tensor, products: Tensor) -> None:
    """<G[i, h], X[i, h]> for every row and head."""
    G, X = unit_stride(G), unit_stride(X)
    rows, heads = products.shape
    call(
        "head_products",
        G.dtype,
        G.data_ptr(),
        G.stride(0),
        X.data_ptr(),
        X.stride(0),
        X.dtype == products.dtype,
        products.data_ptr(),
        rows,
        heads,
        G.shape[1] // max(1, heads),
        threads(G.numel()),
    )
