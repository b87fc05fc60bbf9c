# Attention has many operands, and O is the name of its sums in all of its literature.
# ruff: noqa: E741
"""Attention through torch, edge by edge: the baseline, and the way on CUDA without CuPy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgnn.kernels import attention_reference as reference
from spgnn.kernels.attention_reference import Factors, by_heads, merge
from spgnn.kernels.attention_rules import Rules
from spgnn.kernels.attention_state import FINISHED, MERGED, Target
from spgnn.pattern import Pattern

__all__ = [
    "attend",
    "attend_backward",
    "attend_v2",
    "attend_v2_backward",
    "finish",
    "head_products",
    "merge",
]


def attend(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says."""
    twice = target.arrays[3] is not None
    factors = _factors(pattern, rules)
    made = reference.attend(pattern, d, s, Z, rules.slope, rules.edges, factors, twice)
    _end(made if twice else (*made, None, None), target)


def attend_v2(
    pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules, target: Target
) -> None:
    """The same with GATv2's scores."""
    edges = None if rules.edges is None else rules.edges.to(a.dtype)
    numbers = reference.arguments(pattern, x.to(a.dtype), y.to(a.dtype), edges)
    scores = reference.scores_v2(numbers, a, rules.slope)
    made = reference.triple(pattern, scores, y, _factors(pattern, rules)(scores))
    _end((*made, None, None), target)


def attend_backward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in Z, s and the scores of edges."""
    factors = _factors(pattern, rules)
    operands = pattern, d, s, Z, G, lse, D
    dZ, ds, de = reference.attend_backward(*operands, rules.slope, rules.edges, factors)
    return dZ, ds, None if rules.edges is None else de


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients in x, y, a and the features of edges."""
    factors = _factors(pattern, rules)
    operands = pattern, x, y, a, G, lse, D
    dx, dy, da, dt = reference.attend_v2_backward(*operands, rules.slope, rules.edges, factors)
    return dx, dy, da, None if rules.edges is None else dt


def finish(arrays: Sequence[Tensor | None], out: Tensor, lse: Tensor) -> None:
    """O / n and m + log n of triples (m, n, O, …)."""
    m, n, O, *_ = arrays
    assert m is not None
    assert n is not None
    assert O is not None
    out.copy_(_divided(O, n))
    lse.copy_(m + torch.where(n == 0, 1.0, n).log())


def head_products(G: Tensor, X: Tensor, products: Tensor) -> None:
    """<G[i, h], X[i, h]> for every row and head."""
    wide = G.to(products.dtype) * X.to(products.dtype)
    torch.sum(by_heads(wide, products.shape[1]), -1, out=products)


def _end(made: Sequence[Tensor | None], target: Target) -> None:
    if target.ending == MERGED:
        merge(target.arrays, None, made)
        return
    if target.ending == FINISHED:
        assert target.out is not None
        assert target.lse is not None
        finish(made, target.out, target.lse)
        n = made[1]
        assert n is not None
        made = tuple(None if array is None else _divided(array, n) for array in made)
    for place, array in zip(target.arrays, made, strict=True):
        if place is not None and array is not None:
            place.copy_(array)


def _divided(sums: Tensor, n: Tensor) -> Tensor:
    n = torch.where(n == 0, 1.0, n)
    return (by_heads(sums, n.shape[1]) / n[:, :, None]).reshape(sums.shape)


def _factors(pattern: Pattern, rules: Rules) -> Factors:
    dropout = rules.drops
    if dropout is None:
        return lambda scores: None
    rule = dropout.row_ids, dropout.col_ids, dropout.key, dropout.p
    return lambda scores: reference.dropout_factors(pattern, *rule, scores)
