"""Softmax of scores over the nonzeros of each row: the weights of attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_is
from spgnn.kernels.library import Operator, with_batch
from spgnn.pattern import Pattern, described
from spgnn.sparse import SUM_DTYPE


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """``exp(scores[e]) / (sum of exp(scores) over the nonzeros in the row of e)``.

    Scores may be of any size; what is −∞ gets no weight, also where all of a row is. Differentiable
    at every order. Bits do not depend on the number of threads.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    scores : Tensor [nnz] or [nnz, heads], float32, float64 or bfloat16
        Sums are taken in float32, float64 and float32.

    Returns
    -------
    Tensor of the shape and dtype of ``scores``
    """
    check_is("pattern", pattern, Pattern)
    check_is("scores", scores, Tensor)
    fits = scores.dim() in (1, 2) and scores.shape[0] == pattern.nnz
    if not fits or scores.dtype not in SUM_DTYPE:
        raise InputError(
            f"scores must be float32, float64 or bfloat16 [{pattern.nnz}] or "
            f"[{pattern.nnz}, heads], got {described(scores)}"
        )
    if scores.device != pattern.device:
        raise InputError(f"the pattern is on {pattern.device}, scores on {scores.device}")
    return _softmax(pattern.indptr, scores)


def _empty(indptr: Tensor, scores: Tensor, *others: Tensor | None) -> Tensor:
    return scores.new_empty(scores.shape)


def _along(indptr: Tensor, weights: Tensor, change: Tensor) -> Tensor:
    """The derivative of weights along a change of scores; the Jacobian is symmetric."""
    wide = SUM_DTYPE[weights.dtype]
    weights, change, narrow = weights.to(wide), change.to(wide), weights.dtype
    return (weights * (change - _row_sums(indptr, weights, change))).to(narrow)


def _save_softmax(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _softmax_backward(ctx: Any, G: Tensor) -> tuple[None, Tensor]:
    indptr, weights = ctx.saved_tensors
    return None, _along(indptr, weights, G)


def _softmax_tangent(arguments: Any, tangents: Any) -> Tensor:
    return _along(arguments[0], _softmax(*arguments), tangents[1])


def _save_sums(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sums_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    """The sum of G over the row, for every nonzero, times the other factor."""
    indptr, a, b = ctx.saved_tensors
    sums = _row_sums(indptr, G, None)
    return None, sums if b is None else sums * b, None if b is None else sums * a


def _batched(
    operator: Operator, info: Any, in_dims: Any, indptr: Tensor, *arrays: Any
) -> tuple[Tensor, int]:
    """Batches are heads."""
    operator.refuse_batches_but(in_dims, *range(1, len(in_dims)))
    wide = [
        None if array is None else with_batch(array, dim, info, -1)
        for array, dim in zip(arrays, in_dims[1:], strict=True)
    ]
    assert wide[0] is not None
    shape = wide[0].shape
    result = operator(indptr, *(None if a is None else a.flatten(1) for a in wide))
    return result.unflatten(1, shape[1:]), len(shape) - 1


_row_sums = Operator(
    "row_sums(Tensor indptr, Tensor a, Tensor? b) -> Tensor",
    new=_empty,
    save=_save_sums,
    backward=_sums_backward,
    batched=_batched,
)
_softmax = Operator(
    "edge_softmax(Tensor indptr, Tensor scores) -> Tensor",
    new=_empty,
    save=_save_softmax,
    backward=_softmax_backward,
    batched=_batched,
    tangent=_softmax_tangent,
)
