"""Attention over the nonzeros of a pattern, scores, softmax and weighted sum in one pass.

Nothing of the size nnz × heads is kept. What a block's nonzeros give a row is a running triple,
and triples of blocks of one matrix can be merged, so blocks may come one after the other, or from
other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.kernels import attention_reference as reference
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE


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


@dataclass(eq=False)
class AttentionState:
    """What nonzeros seen so far give each row: a softmax that is not finished.

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
    arguments = reference.arguments(pattern, d, s, edge_scores)
    scores = torch.nn.functional.leaky_relu(arguments, slope)
    with_P = gradients if state is None else state.P is not None
    made = _triple(pattern, scores, Z, dropout)
    if with_P:
        positive = scores.masked_fill(arguments <= 0, -torch.inf)
        m, n, O = made.m, made.n, made.O
        rows, cols = reference.ends(pattern)
        powers = torch.exp(positive - m[rows])
        made.pi = torch.zeros_like(n).index_add(0, rows, powers)
        factors = _factors(pattern, dropout, scores)
        weights = powers if factors is None else powers * factors
        z = Z[cols].to(scores.dtype).unflatten(1, (scores.shape[1], -1))
        made.P = torch.zeros_like(O).index_add(0, rows, (weights[:, :, None] * z).flatten(1))
    if state is None:
        return made
    return merge_(state, None, made)


def merge_(state: AttentionState, rows: Tensor | None, other: AttentionState) -> AttentionState:
    """Merge other triples into listed rows of a state, in place.

    Parameters
    ----------
    state : AttentionState of n rows
        If it has P and pi, and ``other`` has none, they are left as they are but rescaled: then
        they speak of the state's own nonzeros.
    rows : Tensor, int32 or int64 [k], optional
        Where each row of ``other`` belongs, no row twice; without it all rows in their order.
    other : AttentionState of k rows

    Returns
    -------
    AttentionState
        ``state``
    """
    places = slice(None) if rows is None else rows.long()
    m = torch.maximum(state.m[places], other.m)
    finite = torch.where(m == -torch.inf, 0.0, m)
    mine, its = torch.exp(state.m[places] - finite), torch.exp(other.m - finite)
    heads = m.shape[1]

    def scaled(array: Tensor, factor: Tensor) -> Tensor:
        return (array.unflatten(1, (factor.shape[1], -1)) * factor[:, :, None]).view(array.shape)

    state.m[places] = m
    state.n[places] = state.n[places] * mine + other.n * its
    state.O[places] = scaled(state.O[places], mine) + scaled(other.O, its)
    if state.P is not None and state.pi is not None:
        state.P[places] = scaled(state.P[places], mine)
        state.pi[places] = state.pi[places] * mine
        if other.P is not None and other.pi is not None:
            state.P[places] += scaled(other.P, its)
            state.pi[places] += other.pi * its
    assert heads == state.m.shape[1]
    return state


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
    n = torch.where(state.n == 0, 1.0, state.n)
    out = (state.O.unflatten(1, (n.shape[1], -1)) / n[:, :, None]).view(state.O.shape)
    return out.to(dtype or out.dtype), state.m + state.n.log()


def head_products(G: Tensor, X: Tensor, heads: int) -> Tensor:
    """<G[i, h], X[i, h]> for every row and head: [rows, heads], dtype of sums.

    Parameters
    ----------
    G, X : Tensor [rows, heads * width]
    """
    wide = SUM_DTYPE[G.dtype]
    return (G.to(wide) * X.to(wide)).unflatten(1, (heads, -1)).sum(-1)


def row_gradient(
    state: AttentionState, G: Tensor, lse: Tensor, D: Tensor, slope: float = 0.2
) -> Tensor:
    """Gradient in d by the nonzeros that a state has seen, which may be a block's alone.

    Gradients of states that make up a row add up to that of the row. In exact terms, with the
    state's sums rescaled by exp(m − lse):
    ``slope · (<G, O> − D n) + (1 − slope) · (<G, P> − D pi)``.

    Parameters
    ----------
    state : AttentionState with P and pi
    G : Tensor [rows, heads * width]
        Gradient in the weighted sums.
    lse, D : Tensor [rows, heads], dtype of sums
        Of whole rows: `finish` gives lse; D is ``head_products(G, out, heads)``.

    Returns
    -------
    Tensor [rows, heads], dtype of sums
    """
    assert state.P is not None
    assert state.pi is not None
    heads = lse.shape[1]
    scale = torch.where(state.n == 0, 0.0, torch.exp(state.m - lse))
    below = head_products(G, state.O, heads) - D * state.n
    above = head_products(G, state.P, heads) - D * state.pi
    return scale * (slope * below + (1 - slope) * above)


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
    rows, cols = reference.ends(pattern)
    heads = d.shape[1]
    arguments = reference.arguments(pattern, d, s, edge_scores)
    scores = torch.nn.functional.leaky_relu(arguments, slope)
    weights = torch.exp(scores - lse[rows])
    factors = _factors(pattern, dropout, scores)
    g = G[rows].to(d.dtype).unflatten(1, (heads, -1))
    z = Z[cols].to(d.dtype).view(g.shape)
    products = (g * z).sum(-1)
    dropped = weights if factors is None else weights * factors
    products = products if factors is None else products * factors
    de = (
        weights
        * (products - D[rows])
        * torch.ones_like(arguments).masked_fill_(arguments <= 0, slope)
    )
    dZ = d.new_zeros(Z.shape).index_add_(0, cols, (dropped[:, :, None] * g).flatten(1))
    ds = torch.zeros_like(s).index_add_(0, cols, de)
    return dZ.to(Z.dtype), ds, None if edge_scores is None else de


def _factors(pattern: Pattern, dropout: AttentionDropout | None, scores: Tensor) -> Tensor | None:
    if dropout is None or not dropout.p:
        return None
    ids = dropout.row_ids, dropout.col_ids
    kept = reference.kept(pattern, *ids, scores.shape[1], dropout.key, dropout.p)
    return kept.to(scores.dtype) / (1.0 - dropout.p)


def _triple(
    pattern: Pattern, scores: Tensor, Z: Tensor, dropout: AttentionDropout | None
) -> AttentionState:
    return AttentionState(*reference.triple(pattern, scores, Z, _factors(pattern, dropout, scores)))
