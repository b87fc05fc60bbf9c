"""The operators as torch knows them: schemas, kernels per device, fakes, gradients.

A CSR block travels as its arrays. Where its transpose is needed, by the operation or by its
gradient, the arrays of ``A.T`` travel along; the scalings only change places. `order` is None, or
says which row each stored row is (see `spgnn.kernels.reorder`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spgnn.kernels import native
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

_BLOCK = (
    "Tensor indptr, Tensor indices, Tensor? values, Tensor? order, "
    "Tensor? t_indptr, Tensor? t_indices, Tensor? t_values, Tensor? t_order, "
    "Tensor? row_scale, Tensor? col_scale, Tensor X"
)
GATHERED = 2**20  # nonzeros whose rows are gathered at a time, where there is no kernel
SUM_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}
_library: Any = torch.library.Library("spgnn", "DEF")
for _schema in (
    f"spmm({_BLOCK}) -> Tensor",
    f"spmm.out({_BLOCK}, Tensor(a!) out, bool accumulate) -> ()",
    f"spmm_transposed({_BLOCK}) -> Tensor",
    f"spmm_transposed.out({_BLOCK}, Tensor(a!) out, bool accumulate) -> ()",
    "sddmm(Tensor indptr, Tensor indices, Tensor? row_scale, Tensor? col_scale, "
    "Tensor G, Tensor X) -> Tensor",
    "gather_rows(Tensor X, Tensor rows, Tensor? scale) -> Tensor",
    "gather_rows.out(Tensor X, Tensor rows, Tensor? scale, Tensor(a!) out) -> ()",
    "scatter_add_rows(Tensor(a!) Y, Tensor rows, Tensor X, Tensor? scale) -> ()",
    "dropout_rows(Tensor X, Tensor vertex_ids, int key, float p) -> Tensor",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

spmm = torch.ops.spgnn.spmm.default
spmm_out = torch.ops.spgnn.spmm.out
spmm_transposed = torch.ops.spgnn.spmm_transposed.default
spmm_transposed_out = torch.ops.spgnn.spmm_transposed.out
sddmm = torch.ops.spgnn.sddmm.default
gather_rows = torch.ops.spgnn.gather_rows.default
gather_rows_out = torch.ops.spgnn.gather_rows.out
scatter_add_rows = torch.ops.spgnn.scatter_add_rows.default
dropout_rows = torch.ops.spgnn.dropout_rows.default


def _new(rows: int, X: Tensor) -> Tensor:
    return X.new_empty((rows, X.shape[1]))


# --- CPU -----------------------------------------------------------------------------------------


def _spmm_cpu(*block: Any) -> Tensor:
    out = new_rows(block[0].shape[0] - 1, block[-1])
    _spmm_out_cpu(*block, out, False)
    return out


def _spmm_out_cpu(*operands: Any) -> None:
    *block, X, out, accumulate = operands
    native.spmm(block[:4], block[8:], X, out, accumulate)


def _spmm_transposed_cpu(*block: Any) -> Tensor:
    return _spmm_cpu(*_transposed(*block))


def _spmm_transposed_out_cpu(*operands: Any) -> None:
    *block, out, accumulate = operands
    _spmm_out_cpu(*_transposed(*block), out, accumulate)


def _transposed(*block: Any) -> tuple[Any, ...]:
    """The same operands with A and its transpose changing places."""
    stored, transpose, (row_scale, col_scale, X) = block[:4], block[4:8], block[8:]
    return (*transpose, *stored, col_scale, row_scale, X)


def _new_values(indices: Tensor, X: Tensor) -> Tensor:
    return X.new_empty(indices.shape, dtype=SUM_DTYPE[X.dtype])


def _sddmm_cpu(indptr: Tensor, indices: Tensor, *operands: Any) -> Tensor:
    row_scale, col_scale, G, X = operands
    out = _new_values(indices, X)
    native.sddmm((indptr, indices), (row_scale, col_scale), G, X, out)
    return out


def _gather_rows_cpu(X: Tensor, rows: Tensor, scale: Tensor | None) -> Tensor:
    out = new_rows(rows.shape[0], X)
    native.gather_rows(X, rows, scale, out)
    return out


# --- CUDA ----------------------------------------------------------------------------------------


def _block(*arrays: Any) -> CSR:
    """A CSR block from arrays that were checked when the block they come from was built."""
    indptr, indices, values, _, t_indptr, t_indices, t_values, _, row_scale, col_scale = arrays
    rows = indptr.shape[0] - 1
    cols = 0 if t_indptr is None else t_indptr.shape[0] - 1
    A, T = object.__new__(CSR), object.__new__(CSR)
    here = Pattern.trusted(indptr, indices, (rows, cols))
    A.__dict__.update(pattern=here, values=values, row_scale=row_scale, col_scale=col_scale)
    if t_indptr is not None:
        there = Pattern.trusted(t_indptr, t_indices, (cols, rows))
        T.__dict__.update(pattern=there, values=t_values, row_scale=col_scale, col_scale=row_scale)
        A.__dict__["T"] = T
    return A


def _cuda(name: str) -> Callable[..., Any]:
    # Imported on first use: CuPy is an optional dependency.
    cuda = importlib.import_module("spgnn.kernels.cuda")
    function: Callable[..., Any] = getattr(cuda, name)
    return function


def _spmm_cuda(*block: Any) -> Any:
    return _cuda("spmm")(_block(*block[:-1]), block[-1])


def _spmm_out_cuda(*operands: Any) -> None:
    *block, X, out, accumulate = operands
    _cuda("spmm")(_block(*block), X, out, accumulate)


def _spmm_transposed_cuda(*block: Any) -> Any:
    return _cuda("spmm_transposed")(_block(*block[:-1]), block[-1])


def _spmm_transposed_out_cuda(*operands: Any) -> None:
    *block, X, out, accumulate = operands
    _cuda("spmm_transposed")(_block(*block), X, out, accumulate)


def _sddmm_by_gathering(indptr: Tensor, indices: Tensor, *operands: Any) -> Tensor:
    """In torch's own operations, some nonzeros at a time so that gathered rows stay few."""
    row_scale, col_scale, G, X = operands
    out = _new_values(indices, X)
    rows = torch.repeat_interleave(
        torch.arange(G.shape[0], device=X.device), indptr.diff(), output_size=indices.shape[0]
    )
    for i, j, products in zip(
        rows.split(GATHERED), indices.split(GATHERED), out.split(GATHERED), strict=True
    ):
        torch.sum(G[i].to(out.dtype) * X[j].to(out.dtype), 1, out=products)
        if row_scale is not None:
            products.mul_(row_scale[i])
        if col_scale is not None:
            products.mul_(col_scale[j])
    return out


def _gather_rows_cuda(X: Tensor, rows: Tensor, scale: Tensor | None) -> Any:
    return _cuda("gather_rows")(X, rows, scale)


def _gather_rows_out_cuda(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    _cuda("gather_rows")(X, rows, scale, out)


def _scatter_add_rows_cuda(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    _cuda("scatter_add_rows")(Y, rows, X, scale)


def _dropout_rows_cuda(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Any:
    return _cuda("dropout_rows")(X, vertex_ids, key, p)


for _name, _cpu, _gpu in (
    ("spmm", _spmm_cpu, _spmm_cuda),
    ("spmm.out", _spmm_out_cpu, _spmm_out_cuda),
    ("spmm_transposed", _spmm_transposed_cpu, _spmm_transposed_cuda),
    ("spmm_transposed.out", _spmm_transposed_out_cpu, _spmm_transposed_out_cuda),
    ("sddmm", _sddmm_cpu, _sddmm_by_gathering),
    ("gather_rows", _gather_rows_cpu, _gather_rows_cuda),
    ("gather_rows.out", native.gather_rows, _gather_rows_out_cuda),
    ("scatter_add_rows", native.scatter_add_rows, _scatter_add_rows_cuda),
    ("dropout_rows", native.dropout_rows, _dropout_rows_cuda),
):
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _gpu, "CUDA")


# --- Fakes: shapes without data ------------------------------------------------------------------


def _nothing(*operands: Any) -> None:
    return None


def _spmm_fake(*block: Any) -> Tensor:
    return _new(block[0].shape[0] - 1, block[-1])


def _spmm_transposed_fake(*block: Any) -> Tensor:
    return _new(block[4].shape[0] - 1, block[-1])


def _sddmm_fake(indptr: Tensor, indices: Tensor, *operands: Any) -> Tensor:
    return _new_values(indices, operands[-1])


def _gather_rows_fake(X: Tensor, rows: Tensor, scale: Tensor | None) -> Tensor:
    return _new(rows.shape[0], X)


def _dropout_rows_fake(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    return _new(X.shape[0], X)


for _name, _fake in (
    ("spmm", _spmm_fake),
    ("spmm.out", _nothing),
    ("spmm_transposed", _spmm_transposed_fake),
    ("spmm_transposed.out", _nothing),
    ("sddmm", _sddmm_fake),
    ("gather_rows", _gather_rows_fake),
    ("gather_rows.out", _nothing),
    ("scatter_add_rows", _nothing),
    ("dropout_rows", _dropout_rows_fake),
):
    torch.library.register_fake(f"spgnn::{_name}", _fake)


# --- Gradients in X and in values ----------------------------------------------------------------


def _unit_stride(G: Tensor) -> Tensor:
    return G if G.stride(1) == 1 else G.contiguous()


def _save_block(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *block, X = inputs
    ctx.learns_values = block[2] is not None and block[2].requires_grad
    ctx.save_for_backward(*block, X if ctx.learns_values else None)


def _spmm_backward(ctx: Any, G: Tensor) -> tuple[Any, ...]:
    *block, X = ctx.saved_tensors
    G = _unit_stride(G)
    dX = spmm_transposed(*block, G) if ctx.needs_input_grad[-1] else None
    dvalues = sddmm(*block[:2], *block[8:], G, X) if ctx.learns_values else None
    return None, None, dvalues, *[None] * 7, dX


def _spmm_transposed_backward(ctx: Any, G: Tensor) -> tuple[Any, ...]:
    *block, X = ctx.saved_tensors
    G = _unit_stride(G)
    dX = spmm(*block, G) if ctx.needs_input_grad[-1] else None
    dvalues = sddmm(*block[:2], *block[8:], X, G) if ctx.learns_values else None
    return None, None, dvalues, *[None] * 7, dX


def _save_list(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    X, rows, scale = inputs
    ctx.save_for_backward(rows, scale)
    ctx.length = X.shape[0]


def _gather_rows_backward(ctx: Any, G: Tensor) -> tuple[Any, ...]:
    rows, scale = ctx.saved_tensors
    dX = G.new_zeros((ctx.length, G.shape[1]))
    scatter_add_rows(dX, rows, _unit_stride(G), scale)
    return dX, None, None


def _save_mask(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, vertex_ids, ctx.key, ctx.p = inputs
    ctx.save_for_backward(vertex_ids)


def _dropout_rows_backward(ctx: Any, G: Tensor) -> tuple[Any, ...]:
    (vertex_ids,) = ctx.saved_tensors
    return dropout_rows(_unit_stride(G), vertex_ids, ctx.key, ctx.p), None, None, None


for _name, _backward, _setup in (
    ("spmm", _spmm_backward, _save_block),
    ("spmm_transposed", _spmm_transposed_backward, _save_block),
    ("gather_rows", _gather_rows_backward, _save_list),
    ("dropout_rows", _dropout_rows_backward, _save_mask),
):
    torch.library.register_autograd(f"spgnn::{_name}", _backward, setup_context=_setup)
