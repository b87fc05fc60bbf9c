# Attention has many operands.
"""Attention as in GATv2: scores from all of both ends, a_h · LeakyReLU(x_i + y_j)."""

from __future__ import annotations

from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.attention import check_numbers
from spgnn.kernels.attention_rules import AttentionDropout, Rules
from spgnn.kernels.attention_state import AttentionState, Target
from spgnn.kernels.attention_ways import way
from spgnn.kernels.checks import check_dense, check_is
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
    rules = Rules(slope, edge_features, dropout)
    check_attention_v2(pattern, x, y, a, rules)
    state, target = Target.of(state, pattern.shape[0], y, a.shape[0], gradients=False)
    way(y).attend_v2(pattern, x, y, a, rules, target)
    return state


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
    rules = Rules(slope, edge_features, dropout)
    check_attention_v2(pattern, x, y, a, rules)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor | None]
    gradients = way(y).attend_v2_backward(pattern, x, y, a, G, lse, D, rules)
    return gradients


def check_attention_v2(pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules) -> None:
    """Refuse arguments that do not fit each other.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_is("pattern", pattern, Pattern)
    check_dense("y", y)
    check_is("a", a, Tensor)
    check_numbers("a", a, tuple(a.shape) if a.dim() == 2 else (1, 0), y)
    wanted = [("x", x, pattern.shape[0]), ("y", y, pattern.shape[1])]
    if rules.edges is not None:
        wanted.append(("edge_features", rules.edges, pattern.nnz))
    for name, array, length in wanted:
        check_dense(name, array)
        if array.shape != (length, a.numel()) or array.dtype != y.dtype:
            raise InputError(
                f"{name} must be {y.dtype} [{length}, {a.numel()}], got {described(array)}"
            )
    rules.check(pattern)
