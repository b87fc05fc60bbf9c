"""Products of a sparse matrix whose nonzeros hold rows of numbers: the generalised SpMM of edges.

Row i of the result reduces ``op(X[j], v[e])`` over its nonzeros e in column j. Nothing of nonzeros
× columns is made but the gradient of `v`, and that only where it is asked for. Products where `v`
has fewer numbers than X has columns are those with a matrix of values, `spmm`. All other sums are
one operator, which makes ``op(X[j], v[e])`` of each nonzero before it adds. Its derivatives are
itself on the transpose and one product for each nonzero, so there are derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.kernels.checks import check_array, check_block, check_dense, check_is
from spgnn.kernels.extremes import pick, put_back, side_of
from spgnn.kernels.library import Operator, define, kernels_for, with_batch
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.spmm import SIDES, other_side, sddmm_operator, spmm, spmm_operator
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR, SUM_DTYPE

EdgeOp = Literal["mul", "add", "sub", "div", "copy", "add_relu", "outer"]
EDGE_OPS: tuple[str, ...] = get_args(EdgeOp)
EDGE_REDUCTIONS = ("sum", "mean", "max", "min")
_MUL, _ADD, _SUB, _DIV, _COPY, _ADD_RELU, _GATE = range(7)  # EdgeOp of types.hpp
_CODES = {"mul": _MUL, "add": _ADD, "sub": _SUB, "div": _DIV, "copy": _COPY, "add_relu": _ADD_RELU}


def edge_spmm(
    pattern: Pattern,
    X: Tensor | None,
    values: Tensor,
    op: EdgeOp = "mul",
    reduce: Literal["sum", "mean", "max", "min"] = "sum",
) -> Tensor:
    """Reduce ``op(X[j], values[e])`` over the nonzeros e of each row, j being the column of e.

    Differentiable at every order in X and in the values. The bits of the result do not depend on
    the number of threads. Rows without nonzeros give 0; of equal extremes the first nonzero's gets
    the gradient, and what is no number is larger, and smaller, than all numbers.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
        Columns of a row may repeat, and come in any order.
    X : Tensor [cols, f] or [cols, heads, f], float32, float64 or bfloat16
        Reductions are taken in float32, float64 and float32. ``None`` with "copy".
    values : Tensor of the dtype of X
        [nnz]; [nnz, heads], with heads; or a number for each of X's, [nnz, f] or [nnz, heads, f].
    op : {"mul", "add", "sub", "div", "copy", "add_relu", "outer"}
        ``x · v``, ``x + v``, ``x − v``, ``x / v``, ``v``; ``max(x + v, 0)``, of a number for each
        of X's; or ``v xᵀ`` of X [cols, f] and values [nnz, k].
    reduce : {"sum", "mean", "max", "min"}
        Of outer products the first two.

    Returns
    -------
    Tensor [rows, f] or [rows, heads, f]; with "copy" [rows, …] of the shape of values; of outer
    products [rows, k, f]
    """
    check_is("pattern", pattern, Pattern)
    check_choice("op", op, EDGE_OPS)
    check_choice("reduce", reduce, EDGE_REDUCTIONS)
    check_is("values", values, Tensor)
    if (X is None) != (op == "copy"):
        raise InputError(f'op="{op}" takes {"values alone" if X is not None else "X as well"}')
    if X is None:
        check_array("values", values, (pattern.nnz, *values.shape[1:]), pattern.indices, *SUM_DTYPE)
        shape = values.shape[1:]
        V, rows = values.reshape(pattern.nnz, shape.numel()), None
    else:
        check_block(pattern, X)
        shape = X.shape[1:]
        _check_values(pattern, X, values, op)
        V, rows = values.reshape(pattern.nnz, values.shape[1:].numel()), X.flatten(1)
    if op == "outer":
        if reduce in ("max", "min"):
            raise InputError(f'op="outer" has no reduce="{reduce}"; sum or mean')
        assert X is not None
        shape = torch.Size((V.shape[1], *shape))
    if reduce in ("max", "min"):
        Z = _extreme_of(pattern, rows, V, op, largest=reduce == "max")
        return Z.reshape(pattern.shape[0], *shape)
    Z = _sum_of(pattern, rows, V, op)
    if reduce == "mean":
        share = pattern.row_lengths.clamp_min(1).to(SUM_DTYPE[Z.dtype]).reciprocal()
        Z = (Z * share[:, None]).to(Z.dtype)
    return Z.reshape(pattern.shape[0], *shape)


def edge_add(pattern: Pattern, G: Tensor, X: Tensor, values: Tensor) -> Tensor:
    """``G[i] + X[j] + values[e]`` for every nonzero e, in row i and column j.

    So the first linear layer of a perceptron of (edge, source, target) needs no rows side by side.
    Differentiable at every order.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    G : Tensor [rows, f], float32, float64 or bfloat16
    X : Tensor [cols, f], dtype of G
    values : Tensor [nnz, f], dtype of G

    Returns
    -------
    Tensor [nnz, f]
    """
    check_is("pattern", pattern, Pattern)
    check_block(pattern, X)
    check_dense("X", X)
    check_array("G", G, (pattern.shape[0], X.shape[1]), X, X.dtype)
    check_array("values", values, (pattern.nnz, X.shape[1]), X, X.dtype)
    side = other_side(pattern, X, ordered=True)
    return _edge_products(pattern.indptr, pattern.indices, *side, G, X, values, _ADD)


def _check_values(pattern: Pattern, X: Tensor, values: Tensor, op: str) -> None:
    shapes = [(pattern.nnz, *X.shape[1:])]
    if op == "outer":
        shapes = [(pattern.nnz, *values.shape[1:2])] if X.dim() == 2 else []
    elif op != "add_relu":
        shapes += [(pattern.nnz, *X.shape[1:-1]), (pattern.nnz,)]
    if values.shape not in shapes or values.dtype != X.dtype or values.device != X.device:
        allowed = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise InputError(
            f'values of op="{op}" must be {X.dtype} {allowed} on {X.device} for X {list(X.shape)} '
            f"and {pattern.nnz} nonzeros, got {described(values)} on {values.device}"
        )


def _spread(numbers: Tensor, columns: int) -> Tensor:
    """[rows, heads] to [rows, columns]: each number stands for neighbouring columns."""
    heads = numbers.shape[1]
    if heads == columns:
        return numbers
    return numbers[:, :, None].expand(-1, -1, columns // heads).reshape(-1, columns)


def _sum_of(pattern: Pattern, X: Tensor | None, V: Tensor, op: str) -> Tensor:
    if X is None:
        return _sum(pattern, None, V, _COPY)
    columns, heads = X.shape[1], V.shape[1]
    if op == "outer":
        each = X[:, None, :].expand(-1, heads, -1)
        return spmm(CSR(pattern, V.to(SUM_DTYPE[X.dtype])), each).flatten(1)
    if op != "mul" or heads == columns:
        return _sum(pattern, X, V, _CODES[op])
    values = V.to(SUM_DTYPE[X.dtype])
    if heads == 1:
        return spmm(CSR(pattern, values[:, 0]), X)
    return spmm(CSR(pattern, values), X.unflatten(1, (heads, -1))).flatten(1)


def _sum(pattern: Pattern, X: Tensor | None, V: Tensor, op: int) -> Tensor:
    side = (None,) * 3 if X is None else other_side(pattern, X, ordered=True)
    return _edge_sum(pattern.indptr, pattern.indices, *side, X, None, V, op, False)


def _compute_sum(*arguments: Any) -> Tensor:
    indptr, indices, t_indptr, t_indices, order, X, W, V, op, adjoint = arguments
    out = _new_sum(*arguments)
    side = (t_indptr, t_indices, order) if adjoint else (indptr, indices, None)
    kernels_for(V).edge_sum(*side, X, W, V, op, out)
    return out


def _new_sum(indptr: Tensor, indices: Tensor, t_indptr: Tensor, *others: Any) -> Tensor:
    *_, X, _, V, _, adjoint = others
    return new_rows((t_indptr if adjoint else indptr).shape[0] - 1, V if X is None else X)


def _again() -> bool:
    """True where a derivative is to be differentiated itself."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _save_sum(ctx: Any, inputs: Any, output: Tensor) -> None:
    *sides, X, _, V, ctx.op, ctx.adjoint = inputs
    linear = ctx.op in (_ADD, _SUB, _COPY)
    keep_V = not linear and (ctx.needs_input_grad[5] or ctx.op != _MUL)
    keep_X = not linear and (ctx.needs_input_grad[7] or ctx.op == _ADD_RELU)
    ctx.heads = V.shape[1]
    ctx.save_for_backward(*sides, X if keep_X else None, V if keep_V else None)


def _sum_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    *sides, X, V = ctx.saved_tensors
    to_X, to_V, op = ctx.needs_input_grad[5], ctx.needs_input_grad[7], ctx.op
    dX = dV = mask = None
    if op == _ADD_RELU and _again():
        mask = (X.detach().index_select(0, sides[1].long()) + V.detach() > 0).to(V.dtype)
    if to_X and mask is not None:
        dX = _edge_sum(*sides, G, None, mask, _MUL, True)
    elif to_X and op == _ADD_RELU:
        dX = _edge_sum(*sides, G, X, V, _GATE, True)
    elif to_X and op in (_ADD, _SUB):
        dX = spmm_operator(*sides, *(None,) * 4, G, not ctx.adjoint)
    elif to_X:
        dX = _edge_sum(*sides, G, None, V, op, not ctx.adjoint)
    if to_V and op in (_ADD, _SUB, _COPY):
        of_heads = _sums_of_heads(G, ctx.heads)
        ends = (None, of_heads) if ctx.adjoint else (of_heads, None)
        dV = _edge_products(*sides, *ends, None, _ADD)
        dV = -dV if op == _SUB else dV
    elif to_V and mask is not None:
        dV = _edge_products(*sides, G, None, None, _ADD) * mask
    elif to_V and op == _ADD_RELU:
        dV = _edge_products(*sides, G, X, V, _GATE)
    elif to_V:
        by_row, by_column = (X, G) if ctx.adjoint else (G, X)
        if ctx.heads == G.shape[1]:
            dV = _edge_products(*sides, by_row, by_column, None, _MUL)
        else:
            by_head = (t.unflatten(1, (ctx.heads, -1)) for t in (by_row, by_column))
            dV = sddmm_operator(*sides, None, None, *by_head).to(G.dtype)
        if op == _DIV:
            dV = -dV / V / V if _again() else dV.div_(V).div_(V).neg_()
    return *[None] * 5, dX, None, dV, None, None


def _sum_tangent(arguments: Sequence[Any], tangents: Sequence[Tensor | None]) -> Tensor:
    *sides, X, W, V, op, adjoint = arguments
    dX, dV = tangents[5], tangents[7]
    if op in (_ADD_RELU, _GATE):
        raise InputError("add_relu has no derivative in forward mode")
    if op in (_ADD, _SUB):
        dX, dV = (torch.zeros_like(t) if d is None else d for t, d in ((X, dX), (V, dV)))
        return _edge_sum(*sides, dX, W, dV, op, adjoint)
    terms = [] if dX is None else [_edge_sum(*sides, dX, W, V, op, adjoint)]
    if dV is not None and op == _DIV:
        terms.append(_edge_sum(*sides, X, W, -dV / (V * V), _MUL, adjoint))
    elif dV is not None:
        terms.append(_edge_sum(*sides, X, W, dV, op, adjoint))
    total: Tensor = sum(terms[1:], terms[0])
    return total


def _sums_of_heads(G: Tensor, heads: int) -> Tensor:
    """[rows, heads · f] to [rows, heads]."""
    return G if heads == G.shape[1] else G.unflatten(1, (heads, -1)).sum(-1)


def _batched(operator: Operator, info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
    """Batches are more heads."""
    operator.refuse_batches_but(in_dims, 5, 6, 7)
    *sides, one, two, three = arguments[:8]
    rows = (
        None if t is None else with_batch(t, dim, info, -2).flatten(1)
        for t, dim in zip((one, two, three), in_dims[5:8], strict=True)
    )
    result = operator(*sides, *rows, *arguments[8:])
    return result.unflatten(1, (info.batch_size, -1)), 1


def _compute_products(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    *_, G, X, V, op = others
    out = _new_products(indptr, indices, *others)
    kernels_for(out).edge_products(indptr, indices, G, X, V, op, out)
    return out


def _new_products(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    *_, G, X, V, _ = others
    like = next(t for t in (G, X, V) if t is not None)
    products: Tensor = like.new_empty(indices.shape[0], like.shape[1])
    return products


def _save_products(ctx: Any, inputs: Any, output: Tensor) -> None:
    *sides, G, X, _, ctx.op = inputs
    product = ctx.op == _MUL
    needs_G, needs_X = ctx.needs_input_grad[5:7]
    saved = G if product and needs_X else None, X if product and needs_G else None
    ctx.save_for_backward(*sides, *saved)


def _products_backward(ctx: Any, P: Tensor) -> tuple[Tensor | None, ...]:
    *sides, G, X = ctx.saved_tensors
    op, dG, dX = _MUL if ctx.op == _MUL else _COPY, None, None
    if ctx.needs_input_grad[5]:
        dG = _edge_sum(*sides, X, None, P, op, False)
    if ctx.needs_input_grad[6]:
        dX = _edge_sum(*sides, G, None, P, op, True)
    return *[None] * 5, dG, dX, P if ctx.needs_input_grad[7] else None, None


_edge_sum = Operator(
    f"edge_sum({SIDES}, Tensor? X, Tensor? W, Tensor V, int op, bool adjoint) -> Tensor",
    new=_new_sum,
    compute=_compute_sum,
    save=_save_sum,
    backward=_sum_backward,
    batched=_batched,
    tangent=_sum_tangent,
)
_edge_products = Operator(
    f"edge_products({SIDES}, Tensor? G, Tensor? X, Tensor? V, int op) -> Tensor",
    new=_new_products,
    compute=_compute_products,
    save=_save_products,
    backward=_products_backward,
    batched=_batched,
)


def _extreme_of(pattern: Pattern, X: Tensor | None, V: Tensor, op: str, *, largest: bool) -> Tensor:
    if op == "add_relu":  # which rises with x + v
        return torch.relu(_extreme_of(pattern, X, V, "add", largest=largest))
    if not pattern.nnz:
        # Depends on both: or else a rank without nonzeros would leave out what is collective.
        zeros = V.sum(0).expand(pattern.shape[0], -1)
        AX = 0.0 if X is None else spmm(CSR(pattern), X)
        return zeros if X is None else _spread(zeros, X.shape[1]) + AX
    side = (None,) * 3 if X is None else side_of(pattern, X)
    block = pattern.indptr, pattern.indices, *side
    Z: Tensor = _edge_extremes(*block, X, V, _CODES[op], largest)[0]
    return Z


def _compute_extreme(*arguments: Any) -> tuple[Tensor, Tensor]:
    indptr, indices, _, _, _, X, V, op, largest = arguments
    out, arg = _new_extreme(*arguments)
    kernels_for(V).edge_extremes(indptr, indices, X, V, op, largest, out, arg)
    return out, arg


def _new_extreme(*arguments: Any) -> tuple[Tensor, Tensor]:
    indptr, *_, X, V, _, _ = arguments
    like = V if X is None else X
    out = like.new_empty(indptr.shape[0] - 1, like.shape[1])
    return out, torch.empty_like(out, dtype=index_dtype(V.shape[0]))


def _save_extreme(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    *block, X, V, ctx.op, _ = inputs
    keep_V = ctx.op in (_MUL, _DIV)
    keep_X = keep_V and ctx.needs_input_grad[6]
    ctx.save_for_backward(output[1], *block, X if keep_X else None, V if keep_V else None)
    ctx.lengths = 0 if X is None else X.shape[0], V.shape
    ctx.mark_non_differentiable(output[1])


def _extreme_backward(ctx: Any, G: Tensor, of_arg: None) -> tuple[Tensor | None, ...]:
    arg, *block, X, V = ctx.saved_tensors
    (columns, (nnz, heads)), op = ctx.lengths, ctx.op
    to_X, to_V = ctx.needs_input_grad[5:7]
    nonzeros = _heads_apart(arg, heads), block[0], *[None] * 4
    of_x, of_v, wide = G, -G if op == _SUB else G, SUM_DTYPE[G.dtype]
    if V is not None:
        g, v = G.to(wide), torch.where(arg < 0, 1, _by_head(pick(V, *nonzeros), G)).to(wide)
        by_x = g * v if op == _MUL else g / v
        of_x = by_x.to(G.dtype)
        if X is not None:
            x = pick(X, arg, *block).to(wide)
            of_v = (g * x if op == _MUL else -by_x * x / v).to(G.dtype)
    dX = put_back(of_x, arg, *block, columns) if to_X else None
    dV = put_back(_heads_apart(of_v, heads), *nonzeros, nnz) if to_V else None
    return *[None] * 5, dX, dV, None, None


def _heads_apart(rows: Tensor, heads: int) -> Tensor:
    """[rows, heads · f] to [rows · f, heads]."""
    apart: Tensor = rows.unflatten(1, (heads, -1)).transpose(1, 2).reshape(-1, heads)
    return apart


def _by_head(apart: Tensor, like: Tensor) -> Tensor:
    """The inverse, with the shape of another tensor."""
    heads = apart.shape[1]
    return apart.view(len(like), -1, heads).transpose(1, 2).reshape(like.shape)


_edge_extremes = define(
    f"edge_extremes({SIDES}, Tensor? X, Tensor V, int op, bool largest) -> (Tensor, Tensor)",
    new=_new_extreme,
    compute=_compute_extreme,
)
torch.library.register_autograd(_edge_extremes, _extreme_backward, setup_context=_save_extreme)
