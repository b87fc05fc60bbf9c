"""Outputs of a synchronised model: rows of one rank, whose mean losses are over those of all.

A mean that one rank takes of its own rows is no loss of the whole graph. So what a model that was
given to a graph returns, and whatever is computed from it, knows the ranks: ``F.cross_entropy`` and
the like, where they average, average over all ranks, and ``backward`` leaves the loss to be
compared where gradients are averaged. All other operations are a tensor's own.

That is right only of rows that know nothing of each other. What combines rows (a mean over them,
all pairs, a transpose) is of one rank's, and so is a mean loss of it: ranks then differ in it, and
that is refused where they compare it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.autograd import all_reduced
from spgnn.comm import Communicator
from spgnn.data.graph import outside_classes
from spgnn.errors import InputError
from spgnn.graph.foreign import MADE, ModelHook, dims_over, takes_hooks
from spgnn.torch_internals import plain_tensors, tracing, transforms_active

# Of torch.nn.functional, each with a number for every row or entry before it takes the mean.
_NAMES = """
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss
    smooth_l1_loss huber_loss kl_div poisson_nll_loss gaussian_nll_loss soft_margin_loss
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss hinge_embedding_loss
    cosine_embedding_loss margin_ranking_loss triplet_margin_loss triplet_margin_with_distance_loss
"""
_LOSSES = {getattr(F, name) for name in _NAMES.split()}
# Each row of the result is made of the same row of the operands, and of what all ranks have.
_ROW_BY_ROW = """
    add sub mul div true_divide floor_divide remainder pow neg abs sign exp expm1 log log1p log2
    sqrt rsqrt square reciprocal sin cos tanh sigmoid logsigmoid relu relu6 elu selu celu gelu silu
    mish leaky_relu prelu softplus softsign hardtanh hardsigmoid hardswish threshold logit erf clamp
    clamp_min clamp_max clip where maximum minimum lerp addcmul addcdiv nan_to_num dropout
    alpha_dropout detach clone contiguous to type float double half bfloat16 cpu cuda requires_grad
    retain_grad unsqueeze cat concat stack index_select masked_fill masked_select split chunk linear
    layer_norm rms_norm group_norm pairwise_distance lt le gt ge eq ne isnan isfinite zeros_like
    ones_like full_like
"""
_OF_ROWS = {*_ROW_BY_ROW.split(), *_NAMES.split()}
# Nor is a row made of several where the number of rows stays, or each number is a row.
_RESHAPE = {"view", "reshape", "flatten", "unflatten", "expand", "expand_as", "squeeze"}
# Told the loss that is differentiated, for all ranks to compare, and ``None`` afterwards.
Losses = Callable[[Communicator, Tensor | None], None]


class Output(Tensor):
    """A tensor that a synchronised model returned, or one computed from it."""

    ranks: ref[Communicator]
    on_backward: Losses
    combined: bool  # whether rows are made of several rows of a rank
    own_mean = False  # whether it is a mean that a rank took over its own rows

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
        if name in ("__format__", "__repr__", "__reduce_ex__", "__deepcopy__"):
            return func(*(plain(one) for one in args), **kwargs)
        outputs = list(_outputs((*args, *kwargs.values())))
        like = outputs[0] if outputs else None
        comm = None if like is None else like.ranks()
        if func is F.l1_loss:  # which does not hand its weights on
            weight = sys._getframe(2).f_locals.get("weight")
            kwargs = kwargs if weight is None else {**kwargs, "weight": weight}
        if func is torch.autograd.grad and kwargs["grad_outputs"] is None:
            _refuse_own_mean(*args)
        if name == "backward":  # what it computes again looks rows up as it did before
            return _backward(func, args, kwargs, like)
        with plain_tensors():
            if comm is None or like is None:
                return func(*args, **kwargs)
            several = _combine_rows(name, args, kwargs, outputs)
            mean = kwargs.get("reduction") in ("mean", "batchmean")
            old = kwargs.get("size_average"), kwargs.get("reduce")
            if func in _LOSSES and mean and old == (None, None) and not several:
                return marked(_mean(func, args, kwargs, comm), comm, like.on_backward)
            result = func(*args, **kwargs)
            if name in MADE or getattr(getattr(func, "__self__", None), "__name__", "") == "grad":
                return result  # and of z.grad
            if name in _RESHAPE and isinstance(result, Tensor):
                several = several or (result.dim() != 1 and result.shape[:1] != args[0].shape[:1])
            result = marked(result, comm, like.on_backward, several)
            if isinstance(result, Output):
                result.own_mean = _is_own_mean(name, outputs, several)
            return result


def _is_own_mean(name: str, outputs: list[Output], combined: bool) -> bool:
    """True of a mean over own rows, and of sums of it; what is multiplied may be a share."""
    if all(one.own_mean or not one.dim() for one in outputs):
        summed = name.strip("_").lstrip("ri") in ("add", "sub", "neg", "sum", "mean")
        return summed and any(one.own_mean for one in outputs)
    return name == "mean" and combined and not outputs[0].combined


def _refuse_own_mean(losses: Any, inputs: Any) -> None:
    """Refuse the gradient of own rows where a loss is a mean over them: ranks differ in rows."""
    of_rows = not all(isinstance(one, nn.Parameter) for one in inputs)
    if of_rows and any(one.own_mean for one in _outputs(losses)):
        raise InputError(
            "torch.autograd.grad of a mean that each rank took over its own rows: differentiate "
            "each rank's share, loss_of_each_row.sum() divided by the number of rows of all"
        )


def _backward(func: Callable[..., Any], args: Any, kwargs: Any, like: Output | None) -> Any:
    """Differentiate; all ranks are told a loss without a weight."""
    one: Any = args[0] if args else None
    if isinstance(one, tuple | list) and len(one) == 1:  # of torch.autograd.backward
        (one,) = one
    weighted = any(kwargs.get(name) is not None for name in ("gradient", "grad_tensors"))
    comm = None if like is None or weighted or not isinstance(one, Output) else like.ranks()
    if like is None or comm is None or one.numel() != 1:
        return func(*plain(args), **kwargs)
    like.on_backward(comm, plain(one))
    try:
        return func(*plain(args), **kwargs)
    finally:
        like.on_backward(comm, None)


def _outputs(values: Any) -> Iterator[Output]:
    """Outputs, also in lists, as `torch.cat` has them."""
    for value in values:
        several = value if isinstance(value, list | tuple) else (value,)
        yield from (one for one in several if isinstance(one, Output))


def plain(value: Any) -> Any:
    """The same tensor without its ranks, also in a dictionary; for who takes shares of a loss."""
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value.as_subclass(Tensor) if isinstance(value, Output) else value


def _combine_rows(name: str, args: Any, kwargs: Any, outputs: list[Output]) -> bool:
    """True if an operation on outputs makes a row of several, or is given such rows."""
    if any(one.combined for one in outputs):
        return True
    if all(not one.dim() for one in outputs):  # losses, which are added up
        return False
    name = name.removeprefix("__").removesuffix("__").removesuffix("_")
    if name[1:] in _OF_ROWS and name[0] in "ri":  # __radd__, __iadd__
        name = name[1:]
    if name in _OF_ROWS or name in _RESHAPE:
        return False
    if name == "getitem":
        first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        return isinstance(first, int)
    if name in ("matmul", "mm"):
        return isinstance(args[1], Output)
    if name == "transpose":
        return any(dim % args[0].dim() == 0 for dim in args[1:3])
    along = dims_over(name, args, kwargs)
    return along is None or 0 in along


def marked(value: Any, comm: Communicator, on_backward: Losses, combined: bool = False) -> Any:
    """The same with floating tensors, also in lists and dictionaries, that know the ranks."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or type(value) is not Tensor:
            return value
        output: Output = value.as_subclass(Output)
        output.ranks, output.on_backward, output.combined = ref(comm), on_backward, combined
        return output
    if type(value) is dict:
        return {key: marked(one, comm, on_backward, combined) for key, one in value.items()}
    if isinstance(value, tuple) or type(value) is list:  # with names: a maximum's, or a user's own
        parts = [marked(one, comm, on_backward, combined) for one in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return value


def _mean(
    loss: Callable[..., Tensor], args: Any, kwargs: dict[str, Any], comm: Communicator
) -> Tensor:
    """The mean of a loss over the rows of all ranks, on every rank. Collective."""
    if loss.__name__ in ("cross_entropy", "nll_loss"):
        try:
            total = loss(*args, **{**kwargs, "reduction": "sum"})
        except IndexError as error:
            why = outside_classes(args[1], args[0])
            raise InputError(f"{loss.__name__}: {why}{error}") from error
        count = _weight(args[0], args[1], kwargs)
    else:
        each = loss(*args, **{**kwargs, "reduction": "none"})
        weighted = loss in (F.mse_loss, F.l1_loss) and kwargs.get("weight") is not None
        total, count = each.sum(), kwargs["weight"].sum() if weighted else each.numel()
        if kwargs["reduction"] == "batchmean":
            count = len(each)
    total = plain(total if total.dtype == torch.float64 else total.float())
    weight = total.new_tensor(count) if isinstance(count, int) else count.to(total.dtype)
    total, weight = all_reduced(torch.stack((total, weight)), comm).unbind()
    return total / weight


def _weight(logits: Tensor, y: Tensor, kwargs: dict[str, Any]) -> Any:
    """The divisor of torch's mean over classes: rows, or the weights of their classes."""
    if y.is_floating_point():  # probabilities of classes
        return logits.numel() // max(logits.shape[1 if logits.dim() > 1 else 0], 1)
    labelled = y[y != kwargs.get("ignore_index", -100)]
    weight = kwargs.get("weight")
    return labelled.numel() if weight is None else weight[labelled].sum()


class Marks(ModelHook):
    """Hooks of a model and its parts: what a user's own program is returned knows the ranks."""

    def __init__(self, comm: Communicator | None = None, on_backward: Losses | None = None) -> None:
        self._ranks = None if comm is None else ref(comm)
        self._on_backward = on_backward
        self._outer: nn.Module | None = None  # what is at work, and not called by another part
        self._combined = False

    def follow(self, model: nn.Module) -> None:
        """Register the hooks: methods and containers call parts, and no `forward` of the model."""
        for module in filter(takes_hooks, model.modules()):
            module.register_forward_pre_hook(self.before, with_kwargs=True)
            module.register_forward_hook(self.after, always_call=True)

    def before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """A part works on plain tensors; whether these combine rows goes for what it returns."""
        if torch.compiler.is_compiling() or self._outer is not None:
            return None
        self._outer = module
        self._combined = any(one.combined for one in _outputs((*args, *kwargs.values())))
        return plain(args), plain(kwargs)

    def after(self, module: nn.Module, args: Any, out: Any) -> Any:
        """Mark what is returned to whoever called the outermost part."""
        if torch.compiler.is_compiling() or self._outer is not module:
            return None
        self._outer = None
        comm = None if self._ranks is None or transforms_active() else self._ranks()
        if comm is None or self._on_backward is None or tracing() or out is None:
            return None
        return marked(out, comm, self._on_backward, self._combined)
