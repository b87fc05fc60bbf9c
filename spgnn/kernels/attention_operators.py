"""Attention of one process as torch operators: differentiable, and seen through by compilers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.attention import (
    FINISHED,
    AttentionDropout,
    Rules,
    Target,
    attend_backward,
    attend_v2_backward,
    check_attention,
    check_attention_v2,
    head_products,
)
from spgnn.kernels.library import define, kernels_for, traced
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.spmm import make_other_side
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE


def attention(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Weighted sums over the nonzeros of each row, weights as in GAT.

    ``Y_i = Σ_j α_ij Z_j`` for every head, ``α_i = softmax_j LeakyReLU(d_i + s_j [+ t_ij])``.
    Nothing of the size nnz × heads is made. Differentiable once. Bits do not depend on the number
    of threads.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    d : Tensor [rows, heads], dtype of sums
    s : Tensor [cols, heads], dtype of sums
    Z : Tensor [cols, heads * width], float32, float64 or bfloat16
        Sums are taken in float32, float64 and float32.
    slope : float
        Of LeakyReLU below 0; at least 0.
    edge_scores : Tensor [nnz, heads], dtype of sums, optional
        t_ij, in the order of the pattern's nonzeros.
    dropout : AttentionDropout, optional
        Of weights, after the softmax.

    Returns
    -------
    Tensor [rows, heads * width], dtype of Z
        Zeros for rows without nonzeros.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_attention(pattern, d, s, Z, Rules(slope, edge_scores, dropout))
    gradients = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad for array in (d, s, Z, edge_scores)
    )
    block = _block(pattern, ordered=edge_scores is not None)
    result = _attention(*block, d, s, Z, edge_scores, float(slope), *_rule(dropout), gradients)
    out: Tensor = result[0]
    return out


def attention_v2(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Weighted sums over the nonzeros of each row, weights as in GATv2.

    ``Y_i = Σ_j α_ij y_j`` for every head,
    ``α_i = softmax_j a · LeakyReLU(x_i + y_j [+ t_ij])``. Otherwise as `attention`.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    x : Tensor [rows, heads * width], float32, float64 or bfloat16
    y : Tensor [cols, heads * width], dtype of x
    a : Tensor [heads, width], dtype of sums
    slope : float
        Of LeakyReLU below 0; at least 0.
    edge_features : Tensor [nnz, heads * width], dtype of x, optional
        t_ij.
    dropout : AttentionDropout, optional

    Returns
    -------
    Tensor [rows, heads * width], dtype of x

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_attention_v2(pattern, x, y, a, Rules(slope, edge_features, dropout))
    block = _block(pattern, ordered=edge_features is not None)
    result = _attention_v2(*block, x, y, a, edge_features, float(slope), *_rule(dropout))
    out: Tensor = result[0]
    return out


def _block(pattern: Pattern, ordered: bool) -> tuple[Tensor | None, ...]:
    """Both sides of a pattern, and the order of its transpose where edges have numbers."""
    if traced():
        make_other_side(pattern)
    T = pattern.T
    order = pattern.order if ordered else None
    return pattern.indptr, pattern.indices, T.indptr, T.indices, order


def _rule(dropout: AttentionDropout | None) -> tuple[Tensor | None, Tensor | None, int, float]:
    if dropout is None or not dropout.p:
        return None, None, 0, 0.0
    return dropout.row_ids, dropout.col_ids, dropout.signed_key, float(dropout.p)


def _dropout(rule: tuple[Any, ...]) -> AttentionDropout | None:
    row_ids, col_ids, key, p = rule
    return None if row_ids is None else AttentionDropout(key, p, row_ids, col_ids)


def _pattern(block: tuple[Tensor, ...], cols: int) -> Pattern:
    """The pattern with its other side, which has been made."""
    indptr, indices, t_indptr, t_indices, order = block
    rows = indptr.shape[0] - 1
    pattern = Pattern.trusted(indptr, indices, (rows, cols))
    pattern.__dict__["_other_side"] = Pattern.trusted(t_indptr, t_indices, (cols, rows))
    if order is not None:
        pattern.__dict__["order"] = order
    return pattern


def _new(block: tuple[Tensor, ...], Z: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    rows = block[0].shape[0] - 1
    return new_rows(rows, Z), Z.new_empty((rows, heads), dtype=SUM_DTYPE[Z.dtype])


def _empty(*arguments: Any) -> tuple[Tensor, ...]:
    block, (d, _, Z), gradients = arguments[:5], arguments[5:8], arguments[-1]
    out, lse = _new(block, Z, d.shape[1])
    if not gradients:
        return out, lse, lse.new_empty(0), lse.new_empty(0)
    sums = out.new_empty((0, out.shape[1]), dtype=lse.dtype)
    return out, lse, new_rows(out.shape[0], sums), torch.empty_like(lse)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    block, (d, s, Z, edge_scores, slope), rule = arguments[:5], arguments[5:10], arguments[10:14]
    gradients = arguments[14]
    results = _empty(*arguments)
    out, lse, P, pi = results
    rules = Rules(slope, edge_scores, _dropout(rule))
    kept = (None, None, None, P, pi) if gradients else (None,) * 5
    target = Target(FINISHED, kept, out, lse)
    kernels_for(Z).attend(_pattern(block, Z.shape[0]), d, s, Z, rules, target)
    return results


def _backward_of(*arguments: Any) -> tuple[Tensor, ...]:
    block, (d, s, Z, edge_scores, slope), rule = arguments[:5], arguments[5:10], arguments[10:14]
    G, out, lse, P, pi = arguments[14:]
    heads = d.shape[1]
    options = {"slope": slope, "edge_scores": edge_scores, "dropout": _dropout(rule)}
    D = head_products(G, out, heads)
    # Over all nonzeros of a row, α (<g, z> − D) adds up to 0: the term in `slope` is none.
    dd = (head_products(G, P, heads) - D * pi) * (1 - slope)
    pattern = _pattern(block, Z.shape[0])
    dZ, ds, dt = attend_backward(pattern, d, s, Z, G, lse, D, **options)
    return dd, ds, dZ, d.new_empty(0) if dt is None else dt


def _empty_backward(*arguments: Any) -> tuple[Tensor, ...]:
    d, s, Z, edge_scores = arguments[5:9]
    dt = d.new_empty(0) if edge_scores is None else torch.empty_like(edge_scores)
    return torch.empty_like(d), torch.empty_like(s), new_rows(Z.shape[0], Z), dt


def _empty_v2(*arguments: Any) -> tuple[Tensor, ...]:
    return _new(arguments[:5], arguments[6], arguments[7].shape[0])


def _forward_v2(*arguments: Any) -> tuple[Tensor, ...]:
    block, (x, y, a, features, slope), rule = arguments[:5], arguments[5:10], arguments[10:14]
    out, lse = _empty_v2(*arguments)
    rules, target = Rules(slope, features, _dropout(rule)), Target(FINISHED, (None,) * 5, out, lse)
    kernels_for(y).attend_v2(_pattern(block, y.shape[0]), x, y, a, rules, target)
    return out, lse


def _backward_of_v2(*arguments: Any) -> tuple[Tensor, ...]:
    block, (x, y, a, features, slope), rule = arguments[:5], arguments[5:10], arguments[10:14]
    G, out, lse = arguments[14:]
    options = {"slope": slope, "edge_features": features, "dropout": _dropout(rule)}
    D = head_products(G, out, a.shape[0])
    pattern = _pattern(block, y.shape[0])
    dx, dy, da, dt = attend_v2_backward(pattern, x, y, a, G, lse, D, **options)
    return dx, dy, da, x.new_empty(0) if dt is None else dt


def _empty_backward_v2(*arguments: Any) -> tuple[Tensor, ...]:
    x, y, a, features = arguments[5:9]
    dt = x.new_empty(0) if features is None else torch.empty_like(features)
    return new_rows(x.shape[0], x), new_rows(y.shape[0], y), torch.empty_like(a), dt


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    *block, d, s, Z, edge_scores, ctx.slope, row_ids, col_ids, ctx.key, ctx.p, _ = inputs
    kept = (*block, d, s, Z, edge_scores, row_ids, col_ids, *output)
    ctx.save_for_backward(*kept)
    ctx.set_materialize_grads(False)


def _save_v2(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    *block, x, y, a, features, ctx.slope, row_ids, col_ids, ctx.key, ctx.p = inputs
    ctx.save_for_backward(*block, x, y, a, features, row_ids, col_ids, *output)
    ctx.set_materialize_grads(False)


def _differentiate(operator: str) -> Any:
    """The gradients by an operator of its own, which compilers see as one."""

    def backward(ctx: Any, G: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, constants = ctx.saved_tensors, (None,) * 5
        rule, results = saved[9:11], saved[11:]
        if G is None:
            return (None,) * len(ctx.needs_input_grad)
        first, second, third, edges = getattr(torch.ops.spgnn, operator)(
            *saved[:9], ctx.slope, *rule, ctx.key, ctx.p, G, *results
        )
        of_edges = None if saved[8] is None else edges
        rest = (None,) * (len(ctx.needs_input_grad) - 9)
        return (*constants, first, second, third, of_edges, *rest)

    return backward


_SIDES = "Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor? order, "
_RULE = "float slope, Tensor? row_ids, Tensor? col_ids, int key, float p"

_attention = define(
    f"attention({_SIDES}Tensor d, Tensor s, Tensor Z, Tensor? edge_scores, {_RULE}, "
    "bool gradients) -> (Tensor, Tensor, Tensor, Tensor)",
    compute=_forward,
    fake=_empty,
)
define(
    f"attention_backward({_SIDES}Tensor d, Tensor s, Tensor Z, Tensor? edge_scores, {_RULE}, "
    "Tensor G, Tensor out, Tensor lse, Tensor P, Tensor pi) -> (Tensor, Tensor, Tensor, Tensor)",
    compute=_backward_of,
    fake=_empty_backward,
)
_attention_v2 = define(
    f"attention_v2({_SIDES}Tensor x, Tensor y, Tensor a, Tensor? edge_features, {_RULE}) "
    "-> (Tensor, Tensor)",
    compute=_forward_v2,
    fake=_empty_v2,
)
define(
    f"attention_v2_backward({_SIDES}Tensor x, Tensor y, Tensor a, Tensor? edge_features, {_RULE}, "
    "Tensor G, Tensor out, Tensor lse) -> (Tensor, Tensor, Tensor, Tensor)",
    compute=_backward_of_v2,
    fake=_empty_backward_v2,
)
for _operator, _name, _saving in (
    (_attention, "attention_backward", _save),
    (_attention_v2, "attention_v2_backward", _save_v2),
):
    torch.library.register_autograd(_operator, _differentiate(_name), setup_context=_saving)
