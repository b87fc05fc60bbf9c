"""Attention of one process as torch operators: differentiable, and seen through by compilers."""

from __future__ import annotations

from functools import partial
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


def _features(operands: Any, joint: bool) -> Tensor:
    """Of (d, s, Z) or (x, y, a): the rows that are summed."""
    rows: Tensor = operands[1 if joint else 2]
    return rows


def _empty(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    block, operands = arguments[:5], arguments[5:8]
    Z, rows = _features(operands, joint), block[0].shape[0] - 1
    heads = operands[2].shape[0] if joint else operands[0].shape[1]
    out, lse = new_rows(rows, Z), Z.new_empty((rows, heads), dtype=SUM_DTYPE[Z.dtype])
    if joint:
        return out, lse
    if not arguments[14]:
        return out, lse, lse.new_empty(0), lse.new_empty(0)
    sums = out.new_empty((0, out.shape[1]), dtype=lse.dtype)
    return out, lse, new_rows(rows, sums), torch.empty_like(lse)


def _forward(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    block, operands, (edges, slope) = arguments[:5], arguments[5:8], arguments[8:10]
    Z, results = _features(operands, joint), _empty(joint, *arguments)
    more = results[2:] if not joint and arguments[14] else (None, None)
    target = Target(FINISHED, (None, None, None, *more), *results[:2])
    attend = kernels_for(Z).attend_v2 if joint else kernels_for(Z).attend
    rules = Rules(slope, edges, _dropout(arguments[10:14]))
    attend(_pattern(block, Z.shape[0]), *operands, rules, target)
    return results


def _backward_of(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients in the three operands and the edges."""
    block, operands, (edges, slope) = arguments[:5], arguments[5:8], arguments[8:10]
    dropout, (G, out, lse, *more) = _dropout(arguments[10:14]), arguments[14:]
    D = head_products(G, out, lse.shape[1])
    pattern = _pattern(block, _features(operands, joint).shape[0])
    of_rows = pattern, *operands, G, lse, D
    if joint:
        *gradients, dt = attend_v2_backward(
            *of_rows, slope=slope, edge_features=edges, dropout=dropout
        )
    else:
        P, pi = more
        # Over all nonzeros of a row, α (<g, z> − D) adds up to 0: the term in `slope` is none.
        dd = (head_products(G, P, lse.shape[1]) - D * pi) * (1 - slope)
        dZ, ds, dt = attend_backward(*of_rows, slope=slope, edge_scores=edges, dropout=dropout)
        gradients = [dd, ds, dZ]
    return *gradients, operands[0].new_empty(0) if dt is None else dt


def _empty_backward(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    first, second, third, edges = arguments[5:9]
    dt = first.new_empty(0) if edges is None else torch.empty_like(edges)
    if joint:
        return (
            new_rows(len(first), first),
            new_rows(len(second), second),
            torch.empty_like(third),
            dt,
        )
    return torch.empty_like(first), torch.empty_like(second), new_rows(len(third), third), dt


def _save(joint: bool, ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    *arrays, ctx.slope, row_ids, col_ids, ctx.key, ctx.p = inputs if joint else inputs[:-1]
    ctx.save_for_backward(*arrays, row_ids, col_ids, *output)
    ctx.set_materialize_grads(False)


def _differentiate(
    backward: Any, ctx: Any, G: Tensor | None, *others: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients by an operator of its own, which compilers see as one."""
    saved = ctx.saved_tensors
    if G is None:
        return (None,) * len(ctx.needs_input_grad)
    *gradients, edges = backward(
        *saved[:9], ctx.slope, *saved[9:11], ctx.key, ctx.p, G, *saved[11:]
    )
    of_edges = None if saved[8] is None else edges
    return (None,) * 5 + (*gradients, of_edges) + (None,) * (len(ctx.needs_input_grad) - 9)


_SIDES = "Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor? order, "
_RULE = "Tensor? edges, float slope, Tensor? row_ids, Tensor? col_ids, int key, float p"


def _define(name: str, joint: bool, operands: str, more: str, results: str) -> Any:
    """An operator, and one for its gradients."""
    arguments = f"{_SIDES}{operands}, {_RULE}"
    outputs = ", ".join(["Tensor"] * len(results.split(", ")))
    operator = define(
        f"{name}({arguments}{more}) -> ({outputs})",
        compute=partial(_forward, joint),
        fake=partial(_empty, joint),
    )
    tensors = ", ".join(f"Tensor {result}" for result in results.split(", "))
    backward = define(
        f"{name}_backward({arguments}, Tensor G, {tensors}) -> (Tensor, Tensor, Tensor, Tensor)",
        compute=partial(_backward_of, joint),
        fake=partial(_empty_backward, joint),
    )
    torch.library.register_autograd(
        operator, partial(_differentiate, backward), setup_context=partial(_save, joint)
    )
    return operator


_attention = _define(
    "attention", False, "Tensor d, Tensor s, Tensor Z", ", bool gradients", "out, lse, P, pi"
)
_attention_v2 = _define("attention_v2", True, "Tensor x, Tensor y, Tensor a", "", "out, lse")
