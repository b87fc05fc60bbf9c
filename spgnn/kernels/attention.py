# Attention has many operands.
"""Attention over the nonzeros of a pattern, scores, softmax and weighted sum in one pass.

Nothing of the size nnz × heads is kept. What a block's nonzeros give a row is a running triple,
and triples of blocks of one matrix can be merged, so blocks may come one after the other, or from
other ranks.
"""

from __future__ import annotations

from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.attention_rules import AttentionDropout, Rules
from spgnn.kernels.attention_state import (
    AttentionState,
    Target,
    finish,
    head_products,
    merge_,
    row_gradient,
)
from spgnn.kernels.attention_ways import way
from spgnn.kernels.checks import check_dense, check_is
from spgnn.pattern import Pattern, described
from spgnn.sparse import SUM_DTYPE

__all__ = [
    "AttentionDropout",
    "AttentionState",
    "attend_",
    "attend_backward",
    "finish",
    "head_products",
    "merge_",
    "row_gradient",
]


def attend_(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    state: AttentionState | None = None,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: AttentionDropout | None = None,
    gradients: bool = True,
) -> AttentionState:
    """Merge a block's nonzeros into running triples: scores LeakyReLU(d_i + s_j [+ t_ij]).

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    d : Tensor [rows, heads], dtype of sums
    s : Tensor [cols, heads], dtype of sums
    Z : Tensor [cols, heads * width], float32, float64 or bfloat16
    state : AttentionState, optional
        Changed in place. Without it a new one is made, which costs less than merging into an
        empty one.
    slope : float
        Of LeakyReLU below 0.
    edge_scores : Tensor [nnz, heads], dtype of sums, optional
        t_ij, in the order of the pattern's nonzeros.
    dropout : AttentionDropout, optional
        Of weights, after the softmax.
    gradients : bool
        Whether a new state has P and pi; one that is given decides for itself.

    Returns
    -------
    AttentionState
        ``state`` if given.
    """
    rules = Rules(slope, edge_scores, dropout)
    heads = check_attention(pattern, d, s, Z, rules)
    state, target = Target.of(state, pattern.shape[0], Z, heads, gradients)
    way(Z).attend(pattern, d, s, Z, rules, target)
    return state


def attend_backward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in what a block's columns hold. That in d is `row_gradient`.

    Blocks of one matrix are independent here, each with its own columns.

    Parameters
    ----------
    pattern, d, s, Z, slope, edge_scores, dropout
        As for `attend_`; the transpose ``pattern.T`` is used.
    G : Tensor [rows, heads * width], dtype of Z
    lse, D : Tensor [rows, heads], dtype of sums
        As for `row_gradient`.

    Returns
    -------
    dZ : Tensor [cols, heads * width], dtype of Z
    ds : Tensor [cols, heads], dtype of sums
    dt : Tensor [nnz, heads], dtype of sums, or None
        Where edge scores are given.
    """
    rules = Rules(slope, edge_scores, dropout)
    check_attention(pattern, d, s, Z, rules)
    gradients: tuple[Tensor, Tensor, Tensor | None]
    gradients = way(Z).attend_backward(pattern, d, s, Z, G, lse, D, rules)
    return gradients


def check_attention(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules) -> int:
    """Refuse arguments that do not fit each other; the number of heads.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_is("pattern", pattern, Pattern)
    check_dense("Z", Z)
    check_is("d", d, Tensor)
    heads = d.shape[1] if d.dim() == 2 else 0
    rows, cols = pattern.shape
    wanted = [("d", d, rows), ("s", s, cols)]
    if rules.edges is not None:
        wanted.append(("edge_scores", rules.edges, pattern.nnz))
    for name, array, length in wanted:
        check_numbers(name, array, (length, heads), Z)
    if heads < 1 or Z.shape[0] != cols or Z.shape[1] % heads:
        raise InputError(f"Z must be [{cols}, {heads} · width], got {list(Z.shape)}")
    rules.check(pattern)
    return int(heads)


def check_numbers(name: str, array: Tensor, shape: tuple[int, ...], Z: Tensor) -> None:
    """Refuse an array that is not of that shape and of Z's dtype of sums."""
    check_is(name, array, Tensor)
    wide = SUM_DTYPE[Z.dtype]
    if array.shape != shape or array.dtype != wide or array.device != Z.device:
        raise InputError(
            f"{name} must be {wide} {list(shape)} on {Z.device}, "
            f"got {described(array)} on {array.device}"
        )
