"""The largest (or smallest) of listed rows of X, column by column: aggregation by max and min."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array, check_block, check_out
from spgnn.kernels.library import Operator, define, kernels_for, with_batch
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.spmm import other_side
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR

_COLUMNS = (torch.int32, torch.int64)
PICK = 8  # of edge_sum and edge_products: the numbers whose arg names the nonzero
_BLOCK = "Tensor? indptr, Tensor? indices, Tensor? t_indptr, Tensor? t_indices, Tensor? order"


def extreme_(
    pattern: Pattern,
    X: Tensor,
    state: tuple[Tensor, Tensor] | None = None,
    *,
    largest: bool = True,
    first_column: int = 0,
) -> tuple[Tensor, Tensor]:
    """Largest or smallest element of each column among the rows of X that a row of A lists."""
    # Of equal ones the first's stays, also of blocks before this one (`state`, changed in place).
    check_block(pattern, X)
    begun = state is not None
    if state is None:
        state = _empty(pattern.indptr, X, X.shape[0])
    else:
        check_out("state", state[0], pattern.shape[0], X)
        check_array("the state's columns", state[1], state[0].shape, X, *_COLUMNS)
        if not state[1].is_contiguous():
            raise InputError("the state's columns must be contiguous")
    if state[0].numel():
        block = pattern.indptr, pattern.indices, X
        kernels_for(X).extreme(*block, largest, begun, first_column, *state)
    return state


def add_to_extremes_(dX: Tensor, G: Tensor, arg: Tensor) -> None:
    """``dX[arg[i, c], c] += G[i, c]`` in the order of i, where `arg` is not negative; in place."""
    fits = dX.is_contiguous() and dX.shape[1:] == G.shape[1:] and arg.shape == G.shape
    if not fits or dX.dtype != G.dtype or arg.dtype not in _COLUMNS or dX.is_cuda:
        raise InputError(
            f"dX must be {G.dtype} [cols, {G.shape[1]}] without gaps on a CPU, columns int32 or "
            f"int64 {list(G.shape)}; got {described(dX)} and {described(arg)}"
        )
    if G.numel():
        kernels_for(G).extreme_adjoint(G, arg, dX)


def extreme(A: CSR, X: Tensor, largest: bool) -> Tensor:
    """The product of `spmm` with reduction "max" or "min"."""
    if A.values is not None or A.row_scale is not None or A.col_scale is not None:
        raise InputError('reduce="max" and "min" take a matrix without values and scalings')
    rows = X.flatten(1)
    out: Tensor = _extreme(A.indptr, A.indices, *side_of(A.pattern, rows), rows, largest)[0]
    return out.unflatten(1, X.shape[1:]) if X.dim() == 3 else out


def adds_in_order(G: Tensor) -> bool:
    """True where gradients are added row by row, as on CPUs."""
    return not G.is_cuda


def side_of(pattern: Pattern, X: Tensor) -> tuple[Tensor | None, ...]:
    """The parts of the transpose that the gradient in X needs: indptr, indices, order."""
    return (None,) * 3 if adds_in_order(X) else other_side(pattern, X, ordered=True)


def _compute(*arguments: Any) -> tuple[Tensor, Tensor]:
    indptr, indices, t_indptr, _, _, X, largest = arguments
    out, arg = _new(*arguments)
    if out.numel():
        first_column = 0 if t_indptr is None else -1  # with a transpose, arg names nonzeros
        kernels_for(X).extreme(indptr, indices, X, largest, False, first_column, out, arg)
    return out, arg


def _new(*arguments: Any) -> tuple[Tensor, Tensor]:
    indptr, indices, t_indptr, _, _, X, _ = arguments
    return _empty(indptr, X, X.shape[0] if t_indptr is None else indices.shape[0])


def _empty(indptr: Tensor, X: Tensor, numbers: int) -> tuple[Tensor, Tensor]:
    out = X.new_empty((indptr.shape[0] - 1, X.shape[1]))
    return out, torch.empty_like(out, dtype=index_dtype(numbers))


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    *block, X, _ = inputs
    ctx.save_for_backward(output[1], *(block if block[2] is not None else (None,) * 5))
    ctx.length = X.shape[0]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, G: Tensor, of_arg: None) -> tuple[Tensor | None, ...]:
    return *[None] * 5, put_back(G, *ctx.saved_tensors, ctx.length), None


def _rows(arg: Tensor, indices: Tensor | None) -> Tensor:
    if indices is None or not indices.shape[0]:
        return arg.contiguous()
    columns = indices.index_select(0, arg.clamp_min(0).flatten()).view(arg.shape)
    return columns.masked_fill_(arg < 0, -1)


def _picked(M: Tensor, arg: Tensor, indptr: Any, indices: Tensor | None, *others: Any) -> Tensor:
    """``M[row, c]`` of the row that ``arg[i, c]`` names, 0 where it names none."""
    if not M.shape[0]:
        return M.new_zeros(arg.shape)
    rows = _rows(arg, indices)
    return torch.where(rows < 0, 0.0, M.gather(0, rows.clamp_min(0).long())).to(M.dtype)


def _adjoint(G: Tensor, arg: Tensor, *others: Any) -> Tensor:
    """The adjoint; on CPUs in the order of i, each sum rounded to the dtype."""
    indptr, indices, t_indptr, t_indices, order, length = others
    dM, kernels = new_rows(length, G), kernels_for(G)
    if adds_in_order(G):
        kernels.extreme_adjoint(G, _rows(arg, indices), dM.zero_())
    elif indices is None:
        kernels.edge_products(indptr, arg, G, None, arg, PICK, dM)
    else:
        kernels.edge_sum(t_indptr, t_indices, order, G, None, arg, PICK, dM)
    return dM


def _save_pick(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:7])
    ctx.length = inputs[0].shape[0]


def _pick_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    return put_back(G, *ctx.saved_tensors, ctx.length), *[None] * 6


def _batched(
    operator: Operator, info: Any, in_dims: Any, M: Tensor, arg: Tensor, *others: Any
) -> tuple[Tensor, int]:
    """Batches are more columns."""
    operator.refuse_batches_but(in_dims, 0, 1)
    M, arg = (with_batch(t, dim, info, -1) for t, dim in zip((M, arg), in_dims, strict=False))
    shape = M.shape[1:]
    return operator(M.flatten(1), arg.flatten(1), *others).unflatten(1, shape), len(shape)


_extreme = define(
    f"extreme({_BLOCK}, Tensor X, bool largest) -> (Tensor, Tensor)", new=_new, compute=_compute
)
torch.library.register_autograd(_extreme, _backward, setup_context=_save)
# Of rows of M that `arg` names: by their numbers, or as the columns of nonzeros of a block.
pick = Operator(
    f"pick_extremes(Tensor M, Tensor arg, {_BLOCK}) -> Tensor",
    new=lambda M, arg, *others: M.new_empty(arg.shape),
    compute=_picked,
    save=_save_pick,
    backward=_pick_backward,
    batched=_batched,
)
put_back: Operator = Operator(
    f"extreme_adjoint(Tensor G, Tensor arg, {_BLOCK}, SymInt length) -> Tensor",
    new=lambda G, arg, *others: new_rows(others[-1], G),
    compute=_adjoint,
    save=_save_pick,
    backward=lambda ctx, dM: (pick(dM, *ctx.saved_tensors), *[None] * 7),
    batched=_batched,
)
