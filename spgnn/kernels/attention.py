# Attention has many operands, and O is the name of its sums in all of its literature.
# ruff: noqa: E741, PLR0917
"""Attention over the nonzeros of a pattern, scores, softmax and weighted sum in one pass.

Nothing of the size nnz × heads is kept. What a block's nonzeros give a row is a running triple,
and triples of blocks of one matrix can be merged, so blocks may come one after the other, or from
other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels import attention_calls as calls
from spgnn.kernels import attention_reference as reference
from spgnn.kernels.attention_calls import Shape
from spgnn.kernels.checks import check_dense, check_is
from spgnn.kernels.library import unit_stride
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, described
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

    def __post_init__(self) -> None:
        for name in ("row_ids", "col_ids"):
            check_is(name, getattr(self, name), Tensor)
            object.__setattr__(self, name, getattr(self, name).contiguous())


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

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where they begin."""
        for array in self.arrays:
            assert array is None or array.is_contiguous()
        return tuple(calls.address(array) for array in self.arrays)


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
    shape = check_attention(pattern, d, s, Z, edge_scores, dropout, slope)
    ending = calls.STORED if state is None else calls.MERGED
    if state is None:
        state = AttentionState.new(pattern.shape[0], Z, shape.heads, gradients)
    if d.is_cuda:
        factors = _factors(pattern, dropout)
        arrays = reference.attend(
            pattern, d, s, Z, slope, edge_scores, factors, state.P is not None
        )
        if ending == calls.STORED:
            return AttentionState(*arrays)
        return merge_(state, None, AttentionState(*arrays))
    run_forward(pattern, d, s, Z, slope, edge_scores, dropout, shape, state.addresses, ending, 0, 0)
    return state


def run_forward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    slope: float,
    edge_scores: Tensor | None,
    dropout: AttentionDropout | None,
    shape: Shape,
    arrays: tuple[int, ...],
    *ending: int,
) -> None:
    """Call the CPU kernel; `ending` is how rows end, and the addresses of finished ones."""
    packed, described = shape.pack([Z], [s])
    d, edge_scores = d.contiguous(), calls.dense(edge_scores)
    calls.call(
        "attend",
        Z.dtype,
        calls.block(pattern),
        shape.words,
        described,
        calls.own(None, None, d),
        (slope, 0, calls.address(edge_scores), 0),
        dropout_words(dropout, by_column=False),
        arrays,
        *ending,
        False,
        shape.threads(pattern.nnz),
    )
    del packed


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
    if state.m.is_cuda:
        reference.merge(state.arrays, rows, other.arrays)
        return state
    count, heads = other.m.shape
    width = other.O.shape[1] // max(1, heads)
    listed = None if rows is None else rows.contiguous()
    if count != state.m.shape[0] if listed is None else count != listed.shape[0]:
        raise InputError(f"{count} rows cannot be merged into {state.m.shape[0]} without a list")
    other = AttentionState(*(None if a is None else a.contiguous() for a in other.arrays))  # type: ignore[arg-type]
    calls.call(
        "attention_merge",
        state.m.dtype,
        state.addresses,
        (calls.address(listed), listed is not None and listed.dtype == torch.int64),
        other.addresses,
        count,
        heads,
        width,
        calls.threads(2 * other.O.numel()),
    )
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
    dtype = dtype or state.O.dtype
    if state.m.is_cuda:
        n = torch.where(state.n == 0, 1.0, state.n)
        out = (reference.by_heads(state.O, n.shape[1]) / n[:, :, None]).view(state.O.shape)
        return out.to(dtype), state.m + state.n.log()
    out, lse = torch.empty_like(state.O, dtype=dtype), torch.empty_like(state.m)
    rows, heads = lse.shape
    calls.call(
        "attention_finish",
        dtype,
        state.addresses,
        out.data_ptr(),
        lse.data_ptr(),
        rows,
        heads,
        out.shape[1] // max(1, heads),
        calls.threads(out.numel()),
    )
    return out, lse


def head_products(G: Tensor, X: Tensor, heads: int) -> Tensor:
    """<G[i, h], X[i, h]> for every row and head: [rows, heads], dtype of sums.

    Parameters
    ----------
    G : Tensor [rows, heads * width]
    X : Tensor [rows, heads * width], dtype of G or of its sums
    """
    wide = SUM_DTYPE[G.dtype]
    if G.is_cuda:
        return reference.by_heads(G.to(wide) * X.to(wide), heads).sum(-1)
    G, X = unit_stride(G), unit_stride(X)
    products = G.new_empty((G.shape[0], heads), dtype=wide)
    calls.call(
        "head_products",
        G.dtype,
        G.data_ptr(),
        G.stride(0),
        X.data_ptr(),
        X.stride(0),
        X.dtype == wide,
        products.data_ptr(),
        G.shape[0],
        heads,
        G.shape[1] // max(1, heads),
        calls.threads(G.numel()),
    )
    return products


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
    shape = check_attention(pattern, d, s, Z, edge_scores, dropout, slope)
    if d.is_cuda:
        factors = _factors(pattern, dropout)
        dZ, ds, de = reference.attend_backward(
            pattern, d, s, Z, G, lse, D, slope, edge_scores, factors
        )
        return dZ, ds, None if edge_scores is None else de
    dZ, ds = new_rows(Z.shape[0], Z), torch.empty_like(s, memory_format=torch.contiguous_format)
    order = None if edge_scores is None else pattern.order
    edge_scores = calls.dense(edge_scores)
    dt = None if edge_scores is None else torch.empty_like(edge_scores)
    packed, described = shape.pack([G], [d, lse, D])
    Z, s = unit_stride(Z), s.contiguous()
    calls.call(
        "attend_backward",
        Z.dtype,
        calls.block(pattern.T, order),
        shape.words,
        described,
        calls.own(Z, None, s),
        (slope, 0, calls.address(edge_scores), 0),
        dropout_words(dropout, by_column=True),
        (dZ.data_ptr(), ds.data_ptr(), 0, calls.address(dt), 0),
        calls.COLUMNS,
        shape.threads(2 * pattern.nnz),
    )
    del packed
    return dZ, ds, dt


def check_attention(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    edge_scores: Tensor | None,
    dropout: AttentionDropout | None,
    slope: float,
) -> Shape:
    """Refuse arguments that do not fit each other.

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
    if edge_scores is not None:
        wanted.append(("edge_scores", edge_scores, pattern.nnz))
    for name, array, length in wanted:
        check_numbers(name, array, (length, heads), Z)
    if heads < 1 or Z.shape[0] != cols or Z.shape[1] % heads:
        raise InputError(f"Z must be [{cols}, {heads} · width], got {list(Z.shape)}")
    check_dropout(dropout, pattern, slope)
    return Shape(heads, Z.shape[1] // heads)


def check_numbers(name: str, array: Tensor, shape: tuple[int, ...], Z: Tensor) -> None:
    """Refuse an array that is not of that shape and of Z's dtype of sums."""
    check_is(name, array, Tensor)
    wide = SUM_DTYPE[Z.dtype]
    if array.shape != shape or array.dtype != wide or array.device != Z.device:
        raise InputError(
            f"{name} must be {wide} {list(shape)} on {Z.device}, "
            f"got {described(array)} on {array.device}"
        )


def check_dropout(dropout: AttentionDropout | None, pattern: Pattern, slope: float) -> None:
    """Refuse a rule of dropout that does not fit, and a slope that is not monotone."""
    if not slope >= 0:
        raise InputError(f"slope must be at least 0, got {slope}")
    if dropout is None:
        return
    if not 0.0 <= dropout.p < 1.0:
        raise InputError(f"p must be in [0, 1), got {dropout.p}")
    ids = dropout.row_ids, dropout.col_ids
    for name, array, length in zip(("row_ids", "col_ids"), ids, pattern.shape, strict=True):
        check_is(name, array, Tensor)
        if array.shape != (length,) or array.dtype != torch.int64:
            raise InputError(f"{name} must be int64 [{length}], got {described(array)}")
        if array.device != pattern.device:
            raise InputError(f"the pattern is on {pattern.device}, {name} on {array.device}")


def dropout_words(dropout: AttentionDropout | None, by_column: bool) -> tuple[Any, ...]:
    """The rule for C++; rows are destinations, or `by_column` sources."""
    if dropout is None:
        return calls.NO_DROPOUT
    ids = dropout.row_ids, dropout.col_ids
    own, others = reversed(ids) if by_column else ids
    return calls.dropout_words(dropout.key, dropout.p, own, others, by_column)


def _factors(pattern: Pattern, dropout: AttentionDropout | None) -> reference.Factors:
    if dropout is None or not dropout.p:
        return lambda scores: None
    rule = dropout.row_ids, dropout.col_ids, dropout.key, dropout.p
    return lambda scores: reference.dropout_factors(pattern, *rule, scores)
