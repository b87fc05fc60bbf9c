"""Attention as a function of a distributed matrix, and the operators that autograd sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from spgnn.attention.engine import Attention
from spgnn.attention.passes import Inputs, nothing
from spgnn.attention.scores import EdgeBlock, Scores
from spgnn.attention.turned import TurnedAttention
from spgnn.autograd import Linear, Operands, in_own_dtype
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Step
from spgnn.kernels.attention import AttentionDropout, gradients_again
from spgnn.kernels.library import define
from spgnn.kernels.torch_kernels import attended
from spgnn.sparse import SUM_DTYPE
from spgnn.torch_internals import traced, with_name

# Instead of a product's number: it is exact; and nobody has compared the operands yet.
NO_CODEC, COMPILED = -1, -2


class AttendedMatrix(Linear, Protocol):
    """All that attention needs to know of a distributed matrix."""

    operands: Operands

    @property
    def attention(self) -> Attention: ...


@dataclass(frozen=True, eq=False)
class EdgeDropout:
    """Dropout of attention weights that depends on the edge alone, at any number of ranks."""

    p: float  # probability of being dropped, in [0, 1)
    key: int  # 64 bits made from seed, epoch and layer
    # int64 [columns]: original ids of the vertices of the matrix's columns. Those of received ones
    # are fetched once, for a tensor that is the same object in every step.
    vertex_ids: Tensor
    # int64 [rows]: which column each row is; ``None``: row i is column i
    row_columns: Tensor | None = None


def attend(
    A: AttendedMatrix,
    Z_local: Tensor,
    a: Tensor,
    dst: Tensor,
    *,
    joint: bool = False,
    slope: float = 0.2,
    edges: Tensor | None = None,
    dropout: EdgeDropout | None = None,
) -> Tensor:
    """Rows of Z weighed over the nonzeros of A; differentiable at every order. Collective.

    ``out_i = Σ_j α_ij z_j`` with ``α_i = softmax_j(score_ij)`` for every head, whose scores are
    those of GAT, ``LeakyReLU(d_i + <a, z_j> [+ t_ij])``, or of GATv2 if `joint`,
    ``<a, LeakyReLU(x_i + z_j [+ t_ij])>``. Values and scalings of A play no part, and a row without
    nonzeros is zero.

    Parameters
    ----------
    Z_local : Tensor [columns, heads * channels]
    a : Tensor [heads, channels]
        The same on all ranks. Its gradient on each rank is a share: they add up.
    dst : Tensor [rows, heads], or [rows, heads * channels] if joint
        What destinations contribute to the scores, d or X.
    slope : float
        Of LeakyReLU below 0.
    edges : Tensor [local nonzeros, heads], or [local nonzeros, heads * channels] if joint, optional
        t_ij, in the order of ``A.local_pattern``.

    Returns
    -------
    Tensor [rows, heads * channels]

    Raises
    ------
    InputError
        If operands do not fit, or A is distributed in a way that adds up what is not weighed yet.
    """
    wide = SUM_DTYPE.get(Z_local.dtype, Z_local.dtype)
    narrow = Z_local.dtype if joint else wide  # of scores, which are whole rows if joint
    Z, a, dst = Z_local, a.to(wide), dst.to(narrow)
    edges = None if edges is None else edges.to(narrow)
    vertex_ids, row_columns, p, key = None, None, 0.0, 0
    if dropout is not None and dropout.p:
        vertex_ids, row_columns, p = dropout.vertex_ids, dropout.row_columns, float(dropout.p)
        key = (dropout.key + 2**63) % 2**64 - 2**63
    gradients = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad for array in (Z, dst, a, edges)
    )
    rules, epoch, number = (joint, slope, p, key, gradients), 0, COMPILED
    if not torch.compiler.is_compiling():
        _check(A, Z, dst, a, edges, dropout, joint=joint)
        step = _next_step(A, Z, a, edges, (vertex_ids, row_columns), *rules)
        epoch, number = step.epoch, NO_CODEC if step.exact else step.product
        if Z.is_meta:
            matrix: Any = A  # without data: it takes notes
            matrix.note(Z.shape[1], Z.dtype, step, len(a), joint)
    # Rows are handed over as they lie: kernels and exchanges want them without gaps.
    operands = Z.contiguous(), dst.contiguous(), a, edges, vertex_ids, row_columns
    results: list[Tensor] = torch.ops.spgnn.attend(*operands, A.handle, *rules, epoch, number)
    return results[0]


def _check(
    A: AttendedMatrix,
    Z: Tensor,
    dst: Tensor,
    a: Tensor,
    edges: Tensor | None,
    dropout: EdgeDropout | None,
    *,
    joint: bool,
) -> None:
    if Z.dtype not in SUM_DTYPE:
        raise InputError(f"attention takes float32, float64 or bfloat16, got {Z.dtype}")
    if a.dim() != 2 or Z.dim() != 2 or a.numel() != Z.shape[1]:
        raise InputError(
            "attention needs rows [n, heads · channels] and a vector [heads, channels], got "
            f"{list(Z.shape)} and {list(a.shape)}"
        )
    width = Z.shape[1] if joint else len(a)
    if dst.shape != (A.rows, width):
        raise InputError(f"destinations must be {[A.rows, width]}, got {list(dst.shape)}")
    if edges is not None and (edges.dim() != 2 or edges.shape[1] != width):
        raise InputError(f"edge scores must be [edges, {width}], got {list(edges.shape)}")
    A.attention.check_edges(edges)
    if dropout is None:
        return
    vertex_ids, row_columns = dropout.vertex_ids, dropout.row_columns
    if not 0 <= dropout.p < 1:
        raise InputError(f"dropout of attention must be in [0, 1), got {dropout.p}")
    if vertex_ids.shape != (A.columns,):
        raise InputError(f"original ids must be [{A.columns}], got {list(vertex_ids.shape)}")
    if len(vertex_ids if row_columns is None else row_columns) < A.rows:
        raise InputError(f"{A.rows} rows need as many original ids or row_columns")


def _next_step(
    A: AttendedMatrix, Z: Tensor, a: Tensor, edges: Tensor | None, ids: tuple[Any, Any], *rules: Any
) -> Step:
    """The step of what is about to begin, on which all ranks agree. Collective."""
    joint, slope, p, key, gradients = rules
    return A.operands.next(
        Z.detach(),
        A.columns,
        heads=len(a),
        joint=joint,
        slope=slope,
        dropout=(p, key),
        new_ids=ids[0] is not None and not A.attention.knows(*ids),
        edges=edges is not None,
        gradients=gradients,
    )


def step_of(epoch: int, number: int) -> Step:
    """The step of attention by the numbers with which operators are called."""
    return EXACT if number < 0 else Step(epoch, number)


_OPERANDS = "Tensor Z, Tensor dst, Tensor a, Tensor? edges, Tensor? vertex_ids, Tensor? row_columns"
_RULES = "int handle, bool joint, float slope, float p, int key"


def _attend(
    Z: Tensor, dst: Tensor, a: Tensor, edges: Any, vertex_ids: Any, row_columns: Any, *rules: Any
) -> list[Tensor]:
    """Entry point of autograd and compiled graphs: the result, and tensors for its gradient."""
    handle, joint, slope, p, key, gradients, epoch, number = rules
    A: AttendedMatrix = with_name(handle)
    if number == COMPILED:
        ids = vertex_ids, row_columns
        _next_step(A, Z, a, edges, ids, joint, slope, p, key, gradients)
    drops = None if vertex_ids is None else (key, p, vertex_ids, row_columns)
    inputs = Inputs(Z, dst, Scores(a, slope, joint), edges, drops)
    with in_own_dtype(Z.device.type):
        return list(A.attention.forward(inputs, step_of(epoch, number), gradients=gradients))


def _new(Z: Tensor, dst: Tensor, a: Tensor, *others: Any) -> list[Tensor]:
    *_, handle, joint, _, _, _, gradients, _, _ = others
    A: AttendedMatrix = with_name(handle)
    if isinstance(A.attention, TurnedAttention):
        return A.attention.new(Z, dst, a, joint=joint, gradients=gradients)
    return list(nothing(A.attention.pieces, A.rows, Z, dst, a, joint, gradients))


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *operands, ctx.handle, ctx.joint, ctx.slope, ctx.p, ctx.key, _, ctx.epoch, ctx.number = inputs
    ctx.A = with_name(ctx.handle)  # which has to live as long as its gradient may be asked for
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*operands, *output)


def _gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    everything = ctx.saved_tensors  # once: a recomputed tensor is unpacked a single time
    operands, saved = everything[:6], list(everything[6:])
    nothing = (None,) * 10
    G, (Z, _, a, edges, *_) = grads[0], operands
    if G is None:
        return None, None, None, None, *nothing
    if G.is_meta:
        step = replace(step_of(0, ctx.number), adjoint=True)
        ctx.A.note(Z.shape[1], Z.dtype, step, len(a), ctx.joint)
    elif torch.is_grad_enabled() and not traced():  # to be differentiated itself
        return *_again(ctx, G, operands), *nothing
    rules = ctx.handle, ctx.joint, ctx.slope, ctx.p, ctx.key, ctx.epoch, ctx.number
    dZ, d_dst, da, d_edges = torch.ops.spgnn.attend_backward(
        G.contiguous(), *operands, saved, *rules
    )
    return dZ, d_dst, da, None if edges is None else d_edges, *nothing


def _again(ctx: Any, G: Tensor, operands: Sequence[Any]) -> list[Any]:
    """The gradients, differentiable at every order: of edges one by one. Collective."""
    *operands, vertex_ids, row_columns = operands
    if ctx.number >= 0:
        raise InputError("second derivatives of attention need rows without a codec")
    build, dropout = getattr(ctx.A, "whole_rows", None), None
    A = ctx.A if build is None else build()
    A.attention.check_edges(None, needed=True)
    A.operands.check(G, A.rows, heads=len(operands[2]), joint=ctx.joint, again=True)
    if vertex_ids is not None:
        rows, *columns, _ = A.attention.ids(vertex_ids, row_columns)
        dropout = AttentionDropout(ctx.key, ctx.p, rows, torch.cat(columns))

    def weighed(Z: Tensor, dst: Tensor, a: Tensor, edges: Tensor | None) -> Tensor:
        block = EdgeBlock(A.local_pattern, dst, A.halo(Z, exact=True), edges, dropout)
        return attended(block.pattern, *Scores(a, ctx.slope, ctx.joint).of(block))

    with in_own_dtype(G.device.type):
        return gradients_again(weighed, operands, G)


def _attend_backward(G: Tensor, *operands: Any) -> list[Tensor]:
    """Gradients in rows, destinations, a and edge scores (empty where there are none)."""
    Z, dst, a, edges, vertex_ids, row_columns, saved, handle, *rules, epoch, number = operands
    joint, slope, p, key = rules
    A: AttendedMatrix = with_name(handle)
    A.operands.check(G, A.rows, heads=len(a), joint=joint, gradients=True)
    drops = None if vertex_ids is None else (key, p, vertex_ids, row_columns)
    inputs = Inputs(Z, dst, Scores(a, slope, joint), edges, drops)
    with in_own_dtype(Z.device.type):
        gradients = A.attention.backward(G, inputs, saved, step_of(epoch, number))
    assert gradients.dst is not None
    of_edges = a.new_empty(0) if gradients.edges is None else gradients.edges
    return [gradients.Z, gradients.dst, gradients.a, of_edges]


def _new_gradients(
    G: Tensor, Z: Tensor, dst: Tensor, a: Tensor, edges: Tensor | None, *_: Any
) -> list[Tensor]:
    of_edges = a.new_empty(0) if edges is None else torch.empty_like(edges)
    return [torch.empty_like(Z), torch.empty_like(dst), torch.empty_like(a), of_edges]


_forward = define(
    f"attend({_OPERANDS}, {_RULES}, bool gradients, int epoch, int number) -> Tensor[]",
    new=_new,
    compute=_attend,
)
_adjoint = define(
    f"attend_backward(Tensor G, {_OPERANDS}, Tensor[] saved, {_RULES}, int epoch, int number) "
    "-> Tensor[]",
    new=_new_gradients,
    compute=_attend_backward,
)
torch.library.register_autograd(_forward, _gradient, setup_context=_save)
