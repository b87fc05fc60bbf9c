# Attention has many operands.
# ruff: noqa: PLR0917
"""Attention as in GATv2: scores from all of both ends, a_h · LeakyReLU(x_i + y_j)."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels import attention_calls as calls
from spgnn.kernels import attention_reference as reference
from spgnn.kernels.attention import (
    AttentionDropout,
    AttentionState,
    _factors,
    check_dropout,
    check_numbers,
    dropout_words,
    merge_,
)
from spgnn.kernels.checks import check_dense, check_is
from spgnn.kernels.library import unit_stride
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, described


def attend_v2_(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    state: AttentionState | None = None,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> AttentionState:
    """Merge a block's nonzeros into running triples (m, n, O), which have no P and pi.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    x : Tensor [rows, heads * width], float32, float64 or bfloat16
    y : Tensor [cols, heads * width], dtype of x
        Also what is summed.
    a : Tensor [heads, width], dtype of sums
    state : AttentionState, optional
        Changed in place; without it a new one is made.
    slope : float
        Of LeakyReLU below 0.
    edge_features : Tensor [nnz, heads * width], dtype of x, optional
        Added to x_i + y_j.
    dropout : AttentionDropout, optional

    Returns
    -------
    AttentionState
        ``state`` if given.
    """
    shape = check_attention_v2(pattern, x, y, a, edge_features, dropout, slope)
    ending = calls.STORED if state is None else calls.MERGED
    if state is None:
        state = AttentionState.new(pattern.shape[0], y, shape.heads, False)
    if x.is_cuda:
        edges = None if edge_features is None else edge_features.to(a.dtype)
        numbers = reference.arguments(pattern, x.to(a.dtype), y.to(a.dtype), edges)
        scores = reference.scores_v2(numbers, a, slope)
        factors = _factors(pattern, dropout)(scores)
        made = AttentionState(*reference.triple(pattern, scores, y, factors))
        return made if ending == calls.STORED else merge_(state, None, made)
    run_forward_v2(
        pattern, x, y, a, slope, edge_features, dropout, shape, state.addresses, ending, 0, 0
    )
    return state


def run_forward_v2(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    slope: float,
    edge_features: Tensor | None,
    dropout: AttentionDropout | None,
    shape: calls.Shape,
    arrays: tuple[int, ...],
    *ending: int,
) -> None:
    """Call the CPU kernel; `ending` is how rows end, and the addresses of finished ones."""
    packed, described = shape.pack([y], [])
    x, a, edge_features = unit_stride(x), a.contiguous(), calls.dense(edge_features)
    calls.call(
        "attend",
        x.dtype,
        calls.block(pattern),
        shape.words,
        described,
        calls.own(x),
        (slope, a.data_ptr(), 0, calls.address(edge_features)),
        dropout_words(dropout, by_column=False),
        arrays,
        *ending,
        True,
        shape.threads(2 * pattern.nnz),
    )
    del packed


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients by the nonzeros of one block. Those in x and a add up over blocks.

    Parameters
    ----------
    pattern, x, y, a, slope, edge_features, dropout
        As for `attend_v2_`; the transpose ``pattern.T`` is used.
    G : Tensor [rows, heads * width], dtype of x
    lse, D : Tensor [rows, heads], dtype of sums
        Of whole rows: `finish` gives lse; D is ``head_products(G, out, heads)``.

    Returns
    -------
    dx : Tensor [rows, heads * width], dtype of x
    dy : Tensor [cols, heads * width], dtype of x
    da : Tensor [heads, width], dtype of sums
    dt : Tensor [nnz, heads * width], dtype of x, or None
        Where edge features are given.
    """
    shape = check_attention_v2(pattern, x, y, a, edge_features, dropout, slope)
    if x.is_cuda:
        factors = _factors(pattern, dropout)
        dx, dy, da, de = reference.attend_v2_backward(
            pattern, x, y, a, G, lse, D, slope, edge_features, factors
        )
        return dx, dy, da, None if edge_features is None else de
    x, y, G = unit_stride(x), unit_stride(y), unit_stride(G)
    a, lse, D = a.contiguous(), lse.contiguous(), D.contiguous()
    features = calls.dense(edge_features)
    dx, dy, da = new_rows(x.shape[0], x), new_rows(y.shape[0], y), torch.zeros_like(a)
    dt = None if features is None else torch.empty_like(features)
    scores = slope, a.data_ptr(), 0, calls.address(features)
    work = shape.threads(3 * pattern.nnz)
    packed, described = shape.pack([y], [])
    calls.call(
        "attend_backward",
        x.dtype,
        calls.block(pattern),
        shape.words,
        described,
        calls.own(x, G, lse, D),
        scores,
        dropout_words(dropout, by_column=False),
        (dx.data_ptr(), 0, da.data_ptr(), 0, calls.address(dt)),
        calls.ROWS_V2,
        work,
    )
    packed, described = shape.pack([x, G], [lse, D])
    order = None if features is None else pattern.order
    calls.call(
        "attend_backward",
        x.dtype,
        calls.block(pattern.T, order),
        shape.words,
        described,
        calls.own(y),
        scores,
        dropout_words(dropout, by_column=True),
        (dy.data_ptr(), 0, 0, 0, 0),
        calls.COLUMNS_V2,
        work,
    )
    del packed
    return dx, dy, da, dt


def check_attention_v2(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    edge_features: Tensor | None,
    dropout: AttentionDropout | None,
    slope: float,
) -> calls.Shape:
    """Refuse arguments that do not fit each other.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_is("pattern", pattern, Pattern)
    check_dense("y", y)
    check_is("a", a, Tensor)
    shape = calls.Shape(a.shape[0], a.shape[1]) if a.dim() == 2 else calls.Shape(1, 0)
    check_numbers("a", a, (shape.heads, shape.width), y)
    wanted = [("x", x, pattern.shape[0]), ("y", y, pattern.shape[1])]
    if edge_features is not None:
        wanted.append(("edge_features", edge_features, pattern.nnz))
    for name, array, length in wanted:
        check_dense(name, array)
        if array.shape != (length, a.numel()) or array.dtype != y.dtype:
            raise InputError(
                f"{name} must be {y.dtype} [{length}, {a.numel()}], got {described(array)}"
            )
    check_dropout(dropout, pattern, slope)
    return shape
