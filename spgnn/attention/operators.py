"""Attention as a function of a distributed matrix, and the operators that autograd sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spgnn.attention.engine import Attention
from spgnn.attention.scores import Added, Forward, Joint, Kept, Rate, Scores
from spgnn.autograd import Operands, in_own_dtype, with_name
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Step
from spgnn.sparse import SUM_DTYPE

# Instead of a product's number: it is exact; and nobody has compared the operands yet.
NO_CODEC, COMPILED = -1, -2


class Weighed(NamedTuple):
    """A record of one attention on the meta device, as products leave one.

    Attributes
    ----------
    width : int
        Columns of the rows that travel: heads × channels.
    dtype : torch.dtype
    adjoint : bool
    heads : int
    whole_rows : bool
        True if scores need the destination's whole row.
    product : int
        Its number in the epoch; below zero if it is exact.
    """

    width: int
    dtype: torch.dtype
    adjoint: bool
    heads: int
    whole_rows: bool
    product: int


class Matrix(Protocol):
    """All that attention needs to know of a distributed matrix.

    Attributes
    ----------
    handle : int
    operands : Operands
    """

    handle: int
    operands: Operands

    @property
    def rows(self) -> int:
        """Rows this rank makes."""

    @property
    def columns(self) -> int:
        """Rows of the operand that this rank holds."""

    @property
    def attention(self) -> Attention:
        """The attention over its nonzeros."""


def _scores(a: Tensor, slope: float, joint: bool) -> Scores:
    return Joint(a, slope) if joint else Added(a, slope)


def _flat(made: Forward) -> list[Tensor]:
    return [*made[:2], *made.kept, made.ends, made.fetched, made.asked, *made.asked_kept]


def _structured(made: list[Tensor]) -> Forward:
    out, lse, base, P, pi, ends, fetched, asked, *asked_kept = made
    return Forward(out, lse, Kept(base, P, pi), ends, fetched, asked, Kept(*asked_kept))


def _rate(
    A: Matrix, sources: Tensor | None, targets: Tensor | None, p: float, key: int
) -> Rate | None:
    return None if sources is None else Rate(p, key, A.attention.ids(sources, targets))


def agreed(
    A: Matrix,
    Z: Tensor,
    a: Tensor,
    edges: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
    joint: bool,
    slope: float,
    p: float,
    key: int,
    gradients: bool,
) -> Step:
    """The step of what is about to begin, which is the same on all ranks. Collective."""
    return A.operands.next(
        Z.detach(),
        A.columns,
        heads=len(a),
        joint=joint,
        slope=slope,
        dropout=(p, key),
        new_ids=sources is not None and not A.attention.knows(sources, targets),
        edges=edges is not None,
        gradients=gradients,
    )


def step_of(epoch: int, number: int) -> Step:
    """The step of attention by the numbers with which operators are called."""
    return EXACT if number < 0 else Step(epoch, number)


@torch.library.custom_op("spgnn::attend", mutates_args=())
def _attend(
    Z: Tensor,
    ends: Tensor,
    a: Tensor,
    edges: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
    handle: int,
    joint: bool,
    slope: float,
    p: float,
    key: int,
    gradients: bool,
    epoch: int,
    number: int,
) -> list[Tensor]:
    """Entry point of autograd and compiled graphs: the result, and tensors for its gradient."""
    A: Matrix = with_name(handle)
    if number == COMPILED:
        agreed(A, Z, a, edges, sources, targets, joint, slope, p, key, gradients)
    with in_own_dtype(Z.device.type):
        made = A.attention.forward(
            Z,
            ends,
            _scores(a, slope, joint),
            step_of(epoch, number),
            edges=edges,
            rate=_rate(A, sources, targets, p, key),
            gradients=gradients,
        )
    return _flat(made)


@_attend.register_fake
def _(Z: Tensor, ends: Tensor, a: Tensor, *others: Any) -> list[Tensor]:
    *_, handle, joint, _, _, _, gradients, _, _ = others
    A: Matrix = with_name(handle)
    parts, width, heads = A.attention.pieces, Z.shape[1], len(a)

    def kept(rows: int) -> Kept:
        some = rows if gradients and not joint else 0
        return Kept(a.new_empty(some, heads), a.new_empty(some, width), a.new_empty(some, heads))

    fetched, asked = (parts.fetched, parts.asked) if gradients else (0, 0)
    gathered = parts.partial_rows if gradients and parts.fold is not None else 0
    return _flat(
        Forward(
            Z.new_empty(A.rows, width),
            a.new_empty(A.rows, heads),
            kept(parts.partial_rows),
            ends.new_empty(gathered, ends.shape[1]),
            Z.new_empty(fetched, width),
            ends.new_empty(asked, ends.shape[1]),
            kept(parts.asked),
        )
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *operands, ctx.handle, ctx.joint, ctx.slope, ctx.p, ctx.key, _, ctx.epoch, ctx.number = inputs
    ctx.A = with_name(ctx.handle)  # which has to live as long as its gradient may be asked for
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*operands, *output)


def _gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    Z, ends, a, edges, sources, targets, *made = ctx.saved_tensors
    nothing = (None,) * 10
    G = grads[0]
    if G is None:
        return None, None, None, None, *nothing
    if G.is_meta:
        ctx.A.record.append(Weighed(Z.shape[1], Z.dtype, True, len(a), ctx.joint, ctx.number))
    of_Z, of_ends, of_a, of_edges = torch.ops.spgnn.attend_backward(
        G.contiguous(),
        Z,
        ends,
        a,
        edges,
        sources,
        targets,
        made,
        ctx.handle,
        ctx.joint,
        ctx.slope,
        ctx.p,
        ctx.key,
        ctx.epoch,
        ctx.number,
    )
    return of_Z, of_ends, of_a, None if edges is None else of_edges, *nothing


_attend.register_autograd(_gradient, setup_context=_save)


@torch.library.custom_op("spgnn::attend_backward", mutates_args=())
def _attend_backward(
    G: Tensor,
    Z: Tensor,
    ends: Tensor,
    a: Tensor,
    edges: Tensor | None,
    sources: Tensor | None,
    targets: Tensor | None,
    made: list[Tensor],
    handle: int,
    joint: bool,
    slope: float,
    p: float,
    key: int,
    epoch: int,
    number: int,
) -> list[Tensor]:
    """Gradients in rows, ends, a and edge scores (empty where there are none)."""
    A: Matrix = with_name(handle)
    A.operands.check(G, A.rows, heads=len(a), joint=joint, gradients=True)
    with in_own_dtype(Z.device.type):
        found = A.attention.backward(
            G,
            Z,
            ends,
            _scores(a, slope, joint),
            _structured(made),
            step=step_of(epoch, number),
            edges=edges,
            rate=_rate(A, sources, targets, p, key),
        )
    return [found.Z, found.ends, found.a, a.new_empty(0) if found.edges is None else found.edges]


@_attend_backward.register_fake
def _(G: Tensor, Z: Tensor, ends: Tensor, a: Tensor, edges: Tensor | None, *_: Any) -> list[Tensor]:
    nothing = a.new_empty(0)
    return [
        torch.empty_like(Z),
        torch.empty_like(ends),
        torch.empty_like(a),
        nothing if edges is None else torch.empty_like(edges),
    ]


@dataclass(frozen=True, eq=False)
class EdgeDropout:
    """Dropout of attention weights that depends on the edge alone, at any number of ranks.

    Attributes
    ----------
    p : float
        Probability of being dropped, in [0, 1).
    key : int
        64 bits made from seed, epoch and layer.
    sources : Tensor int64 [columns]
        Original ids of the vertices of the matrix's columns. Those of received ones are fetched
        once, for a tensor that is the same object in every step.
    targets : Tensor int64 [rows], optional
        Which column each row is; without it, row i is column i.
    """

    p: float
    key: int
    sources: Tensor
    targets: Tensor | None = None


def attend(
    A: Matrix,
    Z_local: Tensor,
    a: Tensor,
    d: Tensor,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: EdgeDropout | None = None,
) -> Tensor:
    """Rows of Z weighed over the nonzeros of A as in GAT; differentiable once. Collective.

    ``out_i = Σ_j α_ij z_j`` with ``α_i = softmax_j LeakyReLU(d_i + <a, z_j> [+ t_ij])`` for every
    head. Values and scalings of A play no part, and a row without nonzeros is zero.

    Parameters
    ----------
    A : DistMatrix
    Z_local : Tensor [columns, heads * channels]
    a : Tensor [heads, channels]
        The same on all ranks. Its gradient on each rank is a share: they add up.
    d : Tensor [rows, heads]
        What destinations add to the scores.
    slope : float
        Of LeakyReLU below 0.
    edge_scores : Tensor [local nonzeros, heads], optional
        t_ij, in the order of ``A.local_pattern``.
    dropout : EdgeDropout, optional

    Returns
    -------
    Tensor [rows, heads * channels]

    Raises
    ------
    InputError
        If operands do not fit, or A is distributed in a way that adds up what is not weighed yet.
    """
    wide = SUM_DTYPE.get(Z_local.dtype, Z_local.dtype)
    edges = None if edge_scores is None else edge_scores.to(wide)
    operands = _Operands(Z_local, d.to(wide), a.to(wide), edges)
    return _called(A, operands, dropout, slope, joint=False)


def attend_v2(
    A: Matrix,
    Y_local: Tensor,
    a: Tensor,
    X: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: EdgeDropout | None = None,
) -> Tensor:
    """The same with the scores of GATv2, ``<a, LeakyReLU(x_i + y_j [+ t_ij])>``. Collective.

    Parameters
    ----------
    A : DistMatrix
    Y_local : Tensor [columns, heads * channels]
        Of sources; also what is weighed.
    a : Tensor [heads, channels]
        As in :func:`attend`.
    X : Tensor [rows, heads * channels], dtype of Y
        Of destinations.
    slope : float
    edge_features : Tensor [local nonzeros, heads * channels], optional
        t_ij, in the order of ``A.local_pattern``.
    dropout : EdgeDropout, optional

    Returns
    -------
    Tensor [rows, heads * channels]

    Raises
    ------
    InputError
        As :func:`attend`.
    """
    wide = SUM_DTYPE.get(Y_local.dtype, Y_local.dtype)
    edges = None if edge_features is None else edge_features.to(Y_local.dtype)
    operands = _Operands(Y_local, X.to(Y_local.dtype), a.to(wide), edges)
    return _called(A, operands, dropout, slope, joint=True)


class _Operands(NamedTuple):
    """Of both kinds of attention."""

    Z: Tensor
    ends: Tensor
    a: Tensor
    edges: Tensor | None


def _called(
    A: Matrix, operands: _Operands, dropout: EdgeDropout | None, slope: float, *, joint: bool
) -> Tensor:
    Z, ends, a, edges = operands
    sources, targets, p, key = None, None, 0.0, 0
    if dropout is not None and dropout.p:
        sources, targets, p = dropout.sources, dropout.targets, float(dropout.p)
        key = (dropout.key + 2**63) % 2**64 - 2**63
    gradients = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad for array in operands
    )
    epoch, number = 0, COMPILED
    if not torch.compiler.is_compiling():
        _check(A, operands, joint=joint)
        _check_dropout(A, dropout)
        step = agreed(A, Z, a, edges, sources, targets, joint, slope, p, key, gradients)
        epoch, number = step.epoch, NO_CODEC if step.exact else step.product
    # Rows are handed over as they lie: kernels and exchanges want them without gaps.
    Z, ends = Z.contiguous(), ends.contiguous()
    made = torch.ops.spgnn.attend(
        Z,
        ends,
        a,
        edges,
        sources,
        targets,
        A.handle,
        joint,
        slope,
        p,
        key,
        gradients,
        epoch,
        number,
    )
    out: Tensor = made[0]
    return out


def _check(A: Matrix, operands: _Operands, *, joint: bool) -> None:
    Z, ends, a, edges = operands
    attention = A.attention
    if Z.dtype not in SUM_DTYPE:
        raise InputError(f"attention takes float32, float64 or bfloat16, got {Z.dtype}")
    if a.dim() != 2 or Z.dim() != 2 or a.numel() != Z.shape[1]:
        raise InputError(
            "attention needs rows [n, heads · channels] and a vector [heads, channels], got "
            f"{list(Z.shape)} and {list(a.shape)}"
        )
    wanted = (A.rows, Z.shape[1] if joint else len(a))
    if ends.shape != wanted:
        raise InputError(f"destinations must be {list(wanted)}, got {list(ends.shape)}")
    if edges is not None and (edges.dim() != 2 or edges.shape[1] != wanted[1]):
        raise InputError(f"edge scores must be [edges, {wanted[1]}], got {list(edges.shape)}")
    attention.check_edges(edges)


def _check_dropout(A: Matrix, dropout: EdgeDropout | None) -> None:
    if dropout is None:
        return
    sources, targets = dropout.sources, dropout.targets
    if not 0 <= dropout.p < 1:
        raise InputError(f"dropout of attention must be in [0, 1), got {dropout.p}")
    if sources.shape != (A.columns,):
        raise InputError(f"original ids must be [{A.columns}], got {list(sources.shape)}")
    if len(sources if targets is None else targets) < A.rows:
        raise InputError(f"{A.rows} rows need as many original ids or targets")
