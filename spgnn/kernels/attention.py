# O is the name of attention's sums in all of its literature.
# ruff: noqa: E741
"""Attention over the nonzeros of a block, scores, softmax and weighted sum in one pass.

Nothing of the size nnz × heads is kept. The nonzeros of a block give each row a running triple, and
triples of blocks of one matrix can be merged, so blocks may come one after the other, or from other
ranks. Scores are those of GAT, LeakyReLU(d_i + s_j), or of GATv2, a · LeakyReLU(x_i + y_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_dense, check_is
from spgnn.kernels.library import kernels_for
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, described
from spgnn.sparse import SUM_DTYPE

STORED, MERGED, FINISHED = range(3)  # Ending of types.hpp and attention.cuh


@dataclass(frozen=True, eq=False)
class AttentionDropout:
    """Dropout of attention weights, a function of the edge's original ends.

    The weight of head h on edge i ← j is kept where dropout keeps element
    (``row_ids[i]``, ``col_ids[j] · heads + h``) of a matrix; see docs/kernels.md.

    Parameters
    ----------
    key : int
        64 bits made from seed, epoch and layer.
    p : float
        Probability of being dropped, in [0, 1).
    row_ids, col_ids : Tensor, int64 [rows] and [cols]
        Global numbers of the destinations and of the sources.
    """

    key: int
    p: float
    row_ids: Tensor
    col_ids: Tensor

    def __post_init__(self) -> None:
        for name in ("row_ids", "col_ids"):
            check_is(name, getattr(self, name), Tensor)
            object.__setattr__(self, name, getattr(self, name).contiguous())

    @property
    def signed_key(self) -> int:
        """The key as operators and kernels take it."""
        return (int(self.key) + 2**63) % 2**64 - 2**63


class Rules(NamedTuple):
    """Rules by which scores and weights are computed."""

    slope: float  # of LeakyReLU below 0
    edges: Tensor | None = None  # scores of nonzeros, or their features in GATv2
    dropout: AttentionDropout | None = None  # of weights, after the softmax

    @property
    def drops(self) -> AttentionDropout | None:
        """The dropout, if it drops anything."""
        return self.dropout if self.dropout is not None and self.dropout.p else None

    def check(self, pattern: Pattern) -> None:
        """Refuse a rule of dropout that does not fit, and a slope that is not monotone."""
        if not self.slope >= 0:
            raise InputError(f"slope must be at least 0, got {self.slope}")
        if self.dropout is None:
            return
        if not 0.0 <= self.dropout.p < 1.0:
            raise InputError(f"p must be in [0, 1), got {self.dropout.p}")
        ids = self.dropout.row_ids, self.dropout.col_ids
        for name, array, length in zip(("row_ids", "col_ids"), ids, pattern.shape, strict=True):
            if array.shape != (length,) or array.dtype != torch.int64:
                raise InputError(f"{name} must be int64 [{length}], got {described(array)}")
            if array.device != pattern.device:
                raise InputError(f"the pattern is on {pattern.device}, {name} on {array.device}")


@dataclass(eq=False)
class AttentionState:
    """Partial softmax of each row: what the nonzeros seen so far give it.

    In the dtype of sums. Of rows without nonzeros, m is −∞ and the others are 0.

    Parameters
    ----------
    m : Tensor [rows, heads]
        Largest score.
    n : Tensor [rows, heads]
        Sum of exp(score − m).
    O : Tensor [rows, heads * width]
        Sum of exp(score − m) · z, dropout applied.
    P, pi : Tensor [rows, heads * width] and [rows, heads], optional
        O and n over those nonzeros alone on which LeakyReLU's argument is positive: all that the
        gradient in d needs. GATv2 has none.
    """

    m: Tensor
    n: Tensor
    O: Tensor
    P: Tensor | None = None
    pi: Tensor | None = None

    @classmethod
    def new(cls, rows: int, Z: Tensor, heads: int, gradients: bool) -> AttentionState:
        """Uninitialised rows for features like those of Z."""
        wide = Z.new_empty((0, Z.shape[1]), dtype=SUM_DTYPE[Z.dtype])
        m, n, O = wide.new_empty(rows, heads), wide.new_empty(rows, heads), new_rows(rows, wide)
        if not gradients:
            return cls(m, n, O)
        return cls(m, n, O, new_rows(rows, wide), torch.empty_like(n))

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """m, n, O, P, pi."""
        return self.m, self.n, self.O, self.P, self.pi


class Target(NamedTuple):
    """Destination of the rows' softmaxes.

    `STORED` or `MERGED` into ``arrays`` (as `AttentionState.arrays`); or `FINISHED`: divided by n,
    to ``out`` and ``lse``, and to P and pi of the arrays.
    """

    ending: int
    arrays: tuple[Tensor | None, ...]
    out: Tensor | None = None
    lse: Tensor | None = None


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
    state, target = _target(state, pattern.shape[0], Z, heads, gradients)
    kernels_for(Z).attend(pattern, d, s, Z, rules, target)
    return state


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
    """The same with GATv2's scores; its states have no P and pi.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    x : Tensor [rows, heads * width], float32, float64 or bfloat16
    y : Tensor [cols, heads * width], dtype of x
        Also what is summed.
    a : Tensor [heads, width], dtype of sums
    edge_features : Tensor [nnz, heads * width], dtype of x, optional
        Added to x_i + y_j.
    state, slope, dropout
        As of `attend_`.

    Returns
    -------
    AttentionState
        ``state`` if given.
    """
    rules = Rules(slope, edge_features, dropout)
    check_attention_v2(pattern, x, y, a, rules)
    state, target = _target(state, pattern.shape[0], y, a.shape[0], gradients=False)
    kernels_for(y).attend_v2(pattern, x, y, a, rules, target)
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
    """Gradients in what a block's columns hold.

    Blocks of one matrix are independent here, each with its own columns. The gradient in d is, in
    exact terms and with a state's P and pi rescaled by exp(m − lse),
    ``(1 − slope) · (<G, P> − D pi)``, summed over the states that make up a row.

    Parameters
    ----------
    pattern, d, s, Z, slope, edge_scores, dropout
        As for `attend_`; the transpose ``pattern.T`` is used.
    G : Tensor [rows, heads * width], dtype of Z
        Gradient in the weighted sums.
    lse, D : Tensor [rows, heads], dtype of sums
        Of whole rows: `finish` gives lse; D is ``head_products(G, out, heads)``.

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
    gradients = kernels_for(Z).attend_backward(pattern, d, s, Z, G, lse, D, rules)
    return gradients


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
    G, lse, D
        As for `attend_backward`.

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
    gradients = kernels_for(y).attend_v2_backward(pattern, x, y, a, G, lse, D, rules)
    return gradients


def finish(state: AttentionState, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Weighted sums and normalisers of rows that have seen all of their nonzeros.

    Parameters
    ----------
    state : AttentionState
        Not changed.
    dtype : optional
        Of the sums; that of the state without it.

    Returns
    -------
    out : Tensor [rows, heads * width]
        O / n; zeros for rows without nonzeros.
    lse : Tensor [rows, heads], dtype of the state
        m + log n, −∞ for rows without nonzeros.
    """
    out, lse = torch.empty_like(state.O, dtype=dtype), torch.empty_like(state.m)
    kernels_for(out).attention_finish(state.m, state.n, state.O, out, lse)
    return out, lse


def head_products(G: Tensor, X: Tensor, heads: int) -> Tensor:
    """<G[i, h], X[i, h]> for every row and head: [rows, heads], dtype of sums.

    Parameters
    ----------
    G : Tensor [rows, heads * width]
    X : Tensor [rows, heads * width], dtype of G or of its sums
    """
    products = G.new_empty((G.shape[0], heads), dtype=SUM_DTYPE[G.dtype])
    kernels_for(G).head_products(G, X, products)
    return products


def _target(
    state: AttentionState | None, rows: int, Z: Tensor, heads: int, gradients: bool
) -> tuple[AttentionState, Target]:
    """A state to be merged into, or a new one, and the target that it makes."""
    if state is not None:
        return state, Target(MERGED, state.arrays)
    state = AttentionState.new(rows, Z, heads, gradients)
    return state, Target(STORED, state.arrays)


def check_attention(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules) -> int:
    """Refuse arguments that do not fit each other; the number of heads."""
    check_is("pattern", pattern, Pattern)
    check_dense("Z", Z)
    check_is("d", d, Tensor)
    heads = d.shape[1] if d.dim() == 2 else 0
    rows, cols = pattern.shape
    wanted = [("d", d, rows), ("s", s, cols)]
    if rules.edges is not None:
        wanted.append(("edge_scores", rules.edges, pattern.nnz))
    for name, array, length in wanted:
        _check_numbers(name, array, (length, heads), Z)
    if heads < 1 or Z.shape[0] != cols or Z.shape[1] % heads:
        raise InputError(f"Z must be [{cols}, {heads} · width], got {list(Z.shape)}")
    rules.check(pattern)
    return int(heads)


def check_attention_v2(pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules) -> None:
    """Refuse arguments that do not fit each other."""
    check_is("pattern", pattern, Pattern)
    check_dense("y", y)
    check_is("a", a, Tensor)
    _check_numbers("a", a, tuple(a.shape) if a.dim() == 2 else (1, 0), y)
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


def _check_numbers(name: str, array: Tensor, shape: tuple[int, ...], Z: Tensor) -> None:
    """Refuse an array that is not of that shape and of Z's dtype of sums."""
    check_is(name, array, Tensor)
    wide = SUM_DTYPE[Z.dtype]
    if array.shape != shape or array.dtype != wide or array.device != Z.device:
        raise InputError(
            f"{name} must be {wide} {list(shape)} on {Z.device}, "
            f"got {described(array)} on {array.device}"
        )
