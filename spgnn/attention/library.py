"""The operators of attention, as autograd and compiled graphs see them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spgnn.attention.engine import Attention
from spgnn.attention.records import Forward, Rate
from spgnn.attention.scores import Added, Joint, Kept, Scores
from spgnn.autograd import Operands, in_own_dtype, with_name
from spgnn.exchange import EXACT, Step

# In place of a product's number: it is exact; and nobody has compared the operands yet.
NO_CODEC, COMPILED = -1, -2


class Weighed(NamedTuple):
    """What was noted of attention on the meta device, as products are.

    Attributes
    ----------
    width : int
        Columns of the rows that travel: heads × channels.
    dtype : torch.dtype
    adjoint : bool
    heads : int
    whole_rows : bool
        Whether scores need the destination's whole row.
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
        """What runs it."""


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
    """What autograd and compiled graphs call: the result, and what its gradient needs."""
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
