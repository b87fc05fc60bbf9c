"""Losses over vertices that live on many ranks: every rank's share, and what it is a share of.

Shares of all ranks add up to the loss of one process, and so do their gradients: each is divided by
what counts over all ranks, so that nothing has to be scaled any further.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spgnn.comm import Communicator
from spgnn.data.graph import labelled, outside_classes
from spgnn.errors import InputError
from spgnn.hashing import uniform
from spgnn.kernels.cross_entropy import cross_entropy_sum
from spgnn.torch_internals import traced

UNKNOWN = -1


class Loss(Protocol):
    """A mean over what is known of some vertices."""

    @abstractmethod
    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """The weight in the mean of some vertices' known labels, a scalar; no collective."""

    @abstractmethod
    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the mean that is this rank's, a scalar."""


@dataclass(frozen=True, eq=False)
class CrossEntropy(Loss):
    """Softmax cross-entropy of one class a vertex, y int64 [rows], −1 where unknown."""

    weight: Tensor | None = None
    smoothing: float = 0.0

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Vertices, or the weights of their classes."""
        counted = mask & (y > UNKNOWN)
        return counted.sum() if self.weight is None else self.weight[y[counted]].double().sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the weighted mean."""
        outputs = _wide(outputs)
        if self.weight is None and not self.smoothing:
            return cross_entropy_sum(outputs, y, mask, total or 1)
        # Ignored rather than left out: no copy of the chosen rows, forward or backward.
        target = torch.where(mask & (y > UNKNOWN), y, UNKNOWN)
        summed = F.cross_entropy(
            outputs,
            target,
            None if self.weight is None else self.weight.to(outputs.dtype),
            ignore_index=UNKNOWN,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return summed / (total or 1)


@dataclass(frozen=True, eq=False)
class BinaryCrossEntropy(Loss):
    """Sigmoid cross-entropy of several labels a vertex, y int8 [rows, labels], −1 where unknown."""

    weight: Tensor | None = None
    smoothing: float = 0.0

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Known labels."""
        return ((y > UNKNOWN) & mask[:, None]).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the mean."""
        outputs = _wide(outputs)
        counted = (y > UNKNOWN) & mask[:, None]
        target = (y == 1).to(outputs.dtype) * (1 - self.smoothing) + self.smoothing / 2
        summed = F.binary_cross_entropy_with_logits(
            outputs,
            target,
            counted.to(outputs.dtype),
            reduction="sum",
            pos_weight=None if self.weight is None else self.weight.to(outputs.dtype),
        )
        return summed / (total or 1)


LossFunction = Callable[[Tensor, Tensor], Any]
"""Outputs [rows, …] and labels [rows, …] of some vertices to the mean of their losses, or to a
pair: the sum of their weighted losses, and the sum of the weights."""

_SAMPLED, _CHECKED = 1024, 1 << 15  # vertices of all ranks, and of this one


@dataclass(frozen=True, eq=False)
class FunctionLoss(Loss):
    """A user's function, on the vertices with a known label."""

    function: LossFunction
    labels: Tensor
    comm: Communicator
    weighted: bool = False
    dtype: torch.dtype = torch.float32

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Vertices."""
        return (mask & labelled(self.labels)).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the mean; collective if it is weighted."""
        rows = (mask & labelled(self.labels)).nonzero()[:, 0]
        chosen = outputs[rows]
        result = self.function(chosen, self.labels[rows]) if len(rows) else None
        nothing = chosen.sum().to(self.dtype)
        if not self.weighted:
            share: Tensor = nothing if result is None else result * (len(rows) / (total or 1))
            return share
        summed, weight = (nothing, 0.0) if result is None else result
        weights = torch.tensor([float(weight)], dtype=torch.float64)
        self.comm.all_reduce(weights).wait()
        share = summed / float(weights)
        return share

    def checked(
        self, outputs: Tensor, masks: Sequence[Tensor], ids: Tensor
    ) -> tuple[FunctionLoss, set[str]]:
        """The same, by what the function returns, and the torch functions it calls. Collective."""
        y, of_class = self.labels, labelled(self.labels)
        rows = (masks[0] & of_class).nonzero()[:, 0]
        draws = torch.from_numpy(uniform(ids[rows].cpu().numpy(), 0, "checked by loss"))
        rows = rows[draws.argsort().to(rows.device)][:_CHECKED]
        scored = (torch.stack(list(masks)).any(0) & of_class).nonzero()[:, 0]
        if outside_classes(y[scored], outputs):  # where it is not learnt, too
            rows = torch.cat((rows, scored[y[scored].reshape(-1).argmax()][None]))
        first = max(2, _SAMPLED // self.comm.size)
        tensors = ids, outputs.detach(), y
        sampled = _of_all([t[rows[:first]] for t in tensors], self.comm)
        more = [t[rows[first:]] for t in tensors]
        ids, outputs, labels = (torch.cat(pair) for pair in zip(sampled, more, strict=True))
        devices = [outputs.device] if outputs.is_cuda else []
        module = self.function if isinstance(self.function, nn.Module) else None
        state = None if module is None else deepcopy(module.state_dict())
        tried = self
        with suppress(Exception):  # what counts its calls counts in a copy, if there can be one
            tried = replace(self, function=copy(self.function))
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using a target size")  # which is refused here
            weighted, dtype, calls = self.comm.on_every_rank(
                lambda: tried._adds_up(ids.cpu(), outputs, labels)
            )
        if module is not None and state is not None:
            module.load_state_dict(state)
        result = replace(self, weighted=weighted, dtype=dtype)
        return result, set(self.comm.broadcast_value(sorted(calls)))

    def _adds_up(
        self, ids: Tensor, outputs: Tensor, labels: Tensor
    ) -> tuple[bool, torch.dtype, set[str]]:
        """Refuse a function whose losses do not add up; what it returns, and calls of torch."""
        try:
            with _Calls() as calls:
                whole = _Summed.of(self.function, outputs, labels)
        except InputError:
            raise
        except Exception as error:
            shapes = [f"[{', '.join(('rows', *map(str, t.shape[1:])))}]" for t in (outputs, labels)]
            why = outside_classes(labels, outputs, ids)
            raise InputError(
                f"Trainer(loss=…) fails with outputs {shapes[0]} and y {shapes[1]}: {why}{error}"
            ) from error
        self._check_halves(whole, ids, outputs, labels)
        # Outputs of a new model are alike, and functions of a mean look as means do.
        spread = _spread(outputs)
        with suppress(Exception):  # what no model returns, perhaps
            whole = _Summed.of(self.function, spread, labels)
        if whole.outputs is spread:
            self._check_halves(whole, ids, spread, labels)
        return whole.weighted, whole.dtype, calls.names

    def _check_halves(self, whole: _Summed, ids: Tensor, outputs: Tensor, labels: Tensor) -> None:
        noise = [0.0, 0.0]  # of losses that are random
        for _ in range(4):
            again = _Summed.of(self.function, outputs, labels)
            apart = ((whole.sums - again.sums).abs(), (whole.gradient - again.gradient).abs())
            noise = [max(most, float(t.max())) for most, t in zip(noise, apart, strict=True)]
            if noise == [0.0, 0.0]:
                break
        tolerance = torch.finfo(whole.gradient.dtype).eps ** 0.7
        for parts in (2, 3) if len(ids) > 1 else ():
            draws = torch.from_numpy(uniform(ids.numpy(), 0, f"one of {parts} parts of a loss"))
            order = draws.argsort().to(outputs.device)
            cut = max(len(ids) // parts, 1)
            try:
                one, other = (
                    _Summed.of(self.function, outputs[some], labels[some])
                    for some in (order[:cut], order[cut:])
                )
            except Exception as error:
                raise InputError(
                    "Trainer(loss=…) is called with outputs and labels of any of the vertices; "
                    f"with those of some it fails: {error}"
                ) from error
            sums, gradient = one.sums + other.sums, torch.empty_like(whole.gradient)
            gradient[order] = torch.cat((one.gradient, other.gradient))
            size = whole.sums.abs() + sums.abs(), whole.gradient.abs().max()
            apart = (whole.sums - sums).abs(), (whole.gradient - gradient).abs()
            for off, scale, noisy in zip(apart, size, noise, strict=True):
                if (off > tolerance * scale + 10 * noisy).any():
                    broadcast = labels.is_floating_point() and outputs.shape == (*labels.shape, 1)
                    raise InputError(_BROADCAST if broadcast else _NO_MEAN)


def _spread(outputs: Tensor) -> Tensor:
    """Made-up outputs that differ from vertex to vertex, of the sign and range of a column's."""
    low, high = outputs.amin(dim=0), outputs.amax(dim=0)
    low, high = low.clamp(max=-1) * (low < 0), high.clamp(min=1) * ((high > 0) | (low == 0))
    numbers = np.arange(outputs.numel())
    draws = torch.from_numpy(uniform(numbers, 0, "outputs of a loss")).reshape(outputs.shape)
    return low + (high - low) * (0.05 + 0.9 * draws).to(outputs)


_BROADCAST = (
    "Trainer(loss=…): outputs are [rows, 1] and y is [rows], which the loss broadcasts to a table "
    "of all pairs: let it take outputs.squeeze(-1)"
)
_NO_MEAN = (
    "Trainer(loss=…) must return the mean over vertices of a loss of each, and this one does not: "
    "losses of two halves do not add up. Class weights: loss=torch.nn.CrossEntropyLoss(w); other "
    "weights or masks: return (sum, weight), as (w * loss).sum(), w.sum(); a sum or root: the "
    "mean, the square"
)


class _Summed(NamedTuple):
    """A function's losses of some vertices, as a sum."""

    outputs: Tensor
    sums: Tensor  # of losses and of weights, float64 [2]
    gradient: Tensor  # of the sum of losses, [rows, …]
    weighted: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, function: LossFunction, outputs: Tensor, labels: Tensor) -> _Summed:
        """Call the function and differentiate what it returns."""
        leaf = outputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            result = function(leaf, labels)
        weighted = isinstance(result, tuple) and len(result) == 2
        loss, weight = result if weighted else (result, len(outputs))
        scalars = [t for t in (loss, weight) if isinstance(t, Tensor)]
        if not isinstance(loss, Tensor) or any(t.numel() != 1 for t in scalars):
            got = type(loss).__name__ if not scalars else f"a tensor {list(scalars[0].shape)}"
            raise InputError(
                "Trainer(loss=…) must return the mean of the losses of vertices, a scalar, or "
                f"(sum, weight), two; got {got}"
            )
        if weighted and isinstance(weight, Tensor) and weight.requires_grad:
            raise InputError(
                "Trainer(loss=…): the weight of (sum, weight) depends on the outputs, through "
                "which nothing would be learnt: use weight.detach()"
            )
        gradient = None
        if loss.requires_grad:
            ones = torch.ones_like(loss)
            (gradient,) = torch.autograd.grad(loss, leaf, ones, allow_unused=True)
        if gradient is None:
            raise InputError("Trainer(loss=…) must return what depends on the model's outputs")
        times = 1 if weighted else len(outputs)
        sums = torch.tensor([float(loss.detach()) * times, float(weight)], dtype=torch.float64)
        return cls(outputs, sums, gradient * times, weighted, loss.dtype)


def as_sum(function: LossFunction) -> LossFunction:
    """A module of torch that weighs classes, or leaves some out, as a (sum, weight)."""
    if not isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss) or function.reduction != "mean":
        return function
    weight, ignored = function.weight, function.ignore_index
    if weight is None and ignored == nn.CrossEntropyLoss().ignore_index:
        return function
    summed = copy(function)
    summed.reduction = "sum"

    def pair(outputs: Tensor, y: Tensor) -> Any:
        if y.is_floating_point():  # shares of classes, whose weights torch does not divide by
            return function(outputs, y)
        counted = y[y != ignored]
        return summed(outputs, y), len(counted) if weight is None else weight[counted].sum()

    return pair


class _Calls(TorchFunctionMode):
    """Notes the names of the torch functions that are called within it."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **kwargs or {})


def _of_all(tensors: Sequence[Tensor], comm: Communicator) -> list[Tensor]:
    """Some tensors' rows of all ranks, in rank order. Collective; the ledger counts no rows."""
    count = len(tensors[0])
    counts = torch.zeros(comm.size, dtype=torch.int64)
    counts[comm.rank] = count
    comm.all_reduce(counts).wait()
    first = int(counts[: comm.rank].sum())
    widths = [t.element_size() * prod(t.shape[1:]) for t in tensors]
    every = torch.zeros(int(counts.sum()), sum(widths), dtype=torch.int64)
    for t, column in zip(tensors, every.split(widths, 1), strict=True):
        content = t.contiguous().reshape(-1).view(torch.uint8)
        column[first : first + count] = content.reshape(count, column.shape[1]).cpu()
    comm.all_reduce(every).wait()
    return [
        part.to(torch.uint8).reshape(-1).view(t.dtype).reshape(-1, *t.shape[1:]).to(t.device)
        for t, part in zip(tensors, every.split(widths, 1), strict=True)
    ]


_RESIDUALS: dict[str, Any] = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss}


@dataclass(frozen=True, eq=False)
class Residual(Loss):
    """A mean over residuals of numbers, y float32 [rows, numbers], NaN where not known."""

    kind: str

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Known numbers."""
        return (~y.isnan() & mask[:, None]).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the mean."""
        outputs = _wide(outputs)
        counted = ~y.isnan() & mask[:, None]
        # An output that does not count is its own target: no gradient, and no copy of the others.
        target = torch.where(counted, y.to(outputs.dtype), outputs.detach())
        summed: Tensor = _RESIDUALS[self.kind](outputs, target, reduction="sum")
        return summed / (total or 1)


def _wide(outputs: Tensor) -> Tensor:
    """In float32 at least: sums over many vertices have no digits left in less."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def over_ranks(parts: Sequence[Tensor], comm: Communicator) -> Tensor:
    """Sums over all ranks of tensors of one shape, stacked, in memory of the CPU. Collective."""
    total = torch.stack(list(parts)).cpu()
    comm.all_reduce(total).wait()
    return total


def label_weights(
    loss: Loss, y: Tensor, masks: Sequence[Tensor], comm: Communicator
) -> list[float]:
    """Weights of the known labels in each mask over all ranks. Collective."""
    weights: list[float] = over_ranks([loss.weight_of(y, mask) for mask in masks], comm).tolist()
    return [float(weight) for weight in weights]


def masked_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
    """One rank's share of the mean cross-entropy; the shares of all ranks add up to the loss.

    Parameters
    ----------
    logits : Tensor [rows, classes]
        The loss is float32 at least.
    y : Tensor int64 [rows]
        −1 where unknown; such vertices do not count.
    mask : Tensor bool [rows]
    total : float
        Vertices that count, over all ranks (:func:`count_labelled`).
    """
    if not (traced() or y.is_meta):  # plans have labels without numbers
        below = (y < UNKNOWN) & (y != nn.CrossEntropyLoss().ignore_index)
        if bool(below.any()):
            row = int(below.nonzero()[0])
            raise InputError(f"y of row {row} is {int(y[row])}; -1 says that a class is not known")
    return CrossEntropy().share(logits, y, mask, total)


def count_labelled(masks: Sequence[Tensor], y: Tensor, comm: Communicator) -> list[int]:
    """For each mask, the vertices in it with a known label, over all ranks. Collective."""
    has_label = labelled(y)
    counts: list[int] = over_ranks([(mask & has_label).sum() for mask in masks], comm).tolist()
    return counts
