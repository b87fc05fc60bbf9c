"""Outputs of a synchronised model: rows of one rank, whose mean losses are over those of all.

A mean that one rank takes of its own rows is no loss of the whole graph. So what a model that was
given to a graph returns, and whatever is computed from it, knows the ranks: ``F.cross_entropy`` and
the like, where they average, average over all ranks, and ``backward`` leaves the loss to be
compared where gradients are averaged. All other operations are a tensor's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.autograd import all_reduced
from spgnn.comm import Communicator
from spgnn.torch_internals import plain_tensors, tracing, transforms_active

_CLASSES = {"cross_entropy", "nll_loss"}
# Of torch.nn.functional, each with a number for every row or entry before it takes the mean.
_NAMES = """
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss
    smooth_l1_loss huber_loss kl_div poisson_nll_loss gaussian_nll_loss soft_margin_loss
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss hinge_embedding_loss
    cosine_embedding_loss margin_ranking_loss triplet_margin_loss triplet_margin_with_distance_loss
"""
_LOSSES = {getattr(F, name) for name in _NAMES.split()}
_PLAIN = {"__format__", "__repr__", "__reduce_ex__", "__deepcopy__"}
# Told the loss that is differentiated, for all ranks to compare, and ``None`` afterwards.
Losses = Callable[[Communicator, Tensor | None], None]


class Output(Tensor):
    """What a synchronised model returned, or something computed from it."""

    ranks: ref[Communicator]
    on_backward: Losses

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do as any tensor; but take the mean of a loss over all ranks."""
        if any(not issubclass(cls, kind) for kind in types):
            return NotImplemented  # indices that know their ranks do what is right
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _PLAIN:
            return func(*(plain(one) for one in args), **kwargs)
        values = (*args, *kwargs.values())
        like = next((one for one in values if isinstance(one, Output)), None)
        like = like if like is not None else next(_outputs(values), None)
        comm = None if like is None else like.ranks()
        if func is F.l1_loss:  # which does not hand its weights on
            weight = sys._getframe(2).f_locals.get("weight")
            kwargs = kwargs if weight is None else {**kwargs, "weight": weight}
        with plain_tensors():
            if comm is None or like is None:
                return func(*args, **kwargs)
            if func in _LOSSES and _takes_mean(kwargs):
                return marked(_mean(func, args, kwargs, comm), comm, like.on_backward)
            if name == "backward" and args[0].numel() == 1 and kwargs.get("gradient") is None:
                like.on_backward(comm, plain(args[0].detach()))
                try:
                    return func(*args, **kwargs)
                finally:
                    like.on_backward(comm, None)
            result = func(*args, **kwargs)
            is_grad = getattr(getattr(func, "__self__", None), "__name__", "") == "grad"
            return result if is_grad else marked(result, comm, like.on_backward)


def _outputs(values: Any) -> Any:
    """Outputs in lists, as `torch.cat` has them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from (one for one in value if isinstance(one, Output))


def plain(value: Any) -> Any:
    """The same tensor without its ranks, also in a dictionary; for who takes shares of a loss."""
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value.as_subclass(Tensor) if isinstance(value, Output) else value


def marked(value: Any, comm: Communicator, on_backward: Losses) -> Any:
    """The same with floating tensors, also in lists and dictionaries, that know the ranks."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or type(value) is not Tensor:
            return value
        output: Output = value.as_subclass(Output)
        output.ranks, output.on_backward = ref(comm), on_backward
        return output
    if type(value) is dict:
        return {key: marked(one, comm, on_backward) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(marked(one, comm, on_backward) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(marked(one, comm, on_backward) for one in value)
    return value


def _takes_mean(kwargs: dict[str, Any]) -> bool:
    old = kwargs.get("size_average"), kwargs.get("reduce")
    return kwargs.get("reduction") == "mean" and old == (None, None)


def _mean(
    loss: Callable[..., Tensor], args: Any, kwargs: dict[str, Any], comm: Communicator
) -> Tensor:
    """The mean of a loss over the rows of all ranks, on every rank. Collective."""
    if loss.__name__ in _CLASSES:
        total = loss(*args, **{**kwargs, "reduction": "sum"})
        count = _weight(args[0], args[1], kwargs)
    else:
        each = loss(*args, **{**kwargs, "reduction": "none"})
        weighted = loss in (F.mse_loss, F.l1_loss) and kwargs.get("weight") is not None
        total, count = each.sum(), kwargs["weight"].sum() if weighted else each.numel()
    total = plain(total if total.dtype == torch.float64 else total.float())
    weight = total.new_tensor(count) if isinstance(count, int) else count.to(total.dtype)
    total, weight = all_reduced(torch.stack((total, weight)), comm).unbind()
    return total / weight


def _weight(logits: Tensor, y: Tensor, kwargs: dict[str, Any]) -> Any:
    """What torch divides a sum over classes by: rows, or the weights of their classes."""
    if y.is_floating_point():  # probabilities of classes
        classes = logits.shape[1 if logits.dim() > 1 else 0]
        return logits.numel() // max(classes, 1)
    known = y[y != kwargs.get("ignore_index", -100)]
    weight = kwargs.get("weight")
    return known.numel() if weight is None else weight[known].sum()


class Marks:
    """A hook of a model: what it returns to a program of the user's own knows the ranks."""

    def __init__(self, comm: Communicator | None, on_backward: Losses | None) -> None:
        self._ranks = None if comm is None else ref(comm)
        self._on_backward = on_backward

    def __call__(self, module: nn.Module, args: Any, out: Any) -> Any:
        if torch.compiler.is_compiling() or self._ranks is None or transforms_active():
            return None
        comm = self._ranks()
        if comm is None or self._on_backward is None or tracing():
            return None
        return marked(out, comm, self._on_backward)

    def __deepcopy__(self, memo: dict[int, Any]) -> Marks:
        """A copy of the model is on its own."""
        return Marks(None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Marks, (None, None)
