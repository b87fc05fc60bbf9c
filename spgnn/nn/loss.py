"""Losses over vertices that live on many ranks: every rank's share, and what it is a share of.

Shares of all ranks add up to the loss of one process, and so do their gradients: each is divided by
what counts over all ranks, so that nothing has to be scaled any further.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.comm import (
    Communicator,
)
from spgnn.data.graph import labelled
from spgnn.kernels.cross_entropy import cross_entropy_sum

UNKNOWN = -1


class Loss(Protocol):
    """A mean over what is known of some vertices."""

    @abstractmethod
    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """The weight in the mean of some vertices' known labels, a scalar; no collective."""

    @abstractmethod
    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """The share of the mean that is this rank's, a scalar.

        Parameters
        ----------
        outputs : Tensor [rows, columns]
            The loss is float32 at least.
        y : Tensor [rows] or [rows, columns]
        mask : Tensor bool [rows]
        total : float
            The weight over all ranks (:func:`label_weights`).
        """


@dataclass(frozen=True, eq=False)
class CrossEntropy(Loss):
    """Softmax cross-entropy of one class a vertex, y int64 [rows], −1 where unknown.

    As ``torch.nn.CrossEntropyLoss``: with weights, a mean in which a vertex weighs what its class
    does.

    Attributes
    ----------
    weight : Tensor [classes], optional
    smoothing : float
        So much of the target is spread over all classes.
    """

    weight: Tensor | None = None
    smoothing: float = 0.0

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Vertices, or the weights of their classes."""
        known = mask & (y > UNKNOWN)
        return known.sum() if self.weight is None else self.weight[y[known]].double().sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """Of the weighted mean."""
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
    """Sigmoid cross-entropy of several labels a vertex, y int8 [rows, labels], −1 where unknown.

    As ``torch.nn.BCEWithLogitsLoss``: the mean over all known labels.

    Attributes
    ----------
    weight : Tensor [labels], optional
        What a label that a vertex has weighs against one that it has not.
    smoothing : float
        Targets are s/2 and 1 − s/2.
    """

    weight: Tensor | None = None
    smoothing: float = 0.0

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Known labels."""
        return ((y > UNKNOWN) & mask[:, None]).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """Of the mean."""
        outputs = _wide(outputs)
        known = (y > UNKNOWN) & mask[:, None]
        target = (y == 1).to(outputs.dtype) * (1 - self.smoothing) + self.smoothing / 2
        summed = F.binary_cross_entropy_with_logits(
            outputs,
            target,
            known.to(outputs.dtype),
            reduction="sum",
            pos_weight=None if self.weight is None else self.weight.to(outputs.dtype),
        )
        return summed / (total or 1)


LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Outputs [rows, …] and labels [rows, …] of some vertices to the mean of their losses."""


@dataclass(frozen=True, eq=False)
class MeanOfRows(Loss):
    """A user's function, the mean of losses of vertices, on those with a known label.

    Attributes
    ----------
    function : callable
        ``torch.nn.functional.cross_entropy``, say.
    """

    function: LossFunction

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Vertices."""
        return (mask & labelled(y)).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """Of the mean."""
        rows = (mask & labelled(y)).nonzero()[:, 0]
        if not len(rows):
            return outputs.sum() * 0
        return self.function(outputs[rows], y[rows]) * (len(rows) / (total or 1))


@dataclass(frozen=True, eq=False)
class Residual(Loss):
    """A mean over residuals of numbers, y float32 [rows, numbers], NaN where not known.

    Attributes
    ----------
    kind : {"mse", "l1", "huber"}
        Squares; sizes; or half the square up to 1 and the size minus a half beyond (Huber 1964).
    """

    kind: str

    def weight_of(self, y: Tensor, mask: Tensor) -> Tensor:
        """Known numbers."""
        return (~y.isnan() & mask[:, None]).sum()

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor, total: float) -> Tensor:
        """Of the mean."""
        outputs = _wide(outputs)
        known = ~y.isnan() & mask[:, None]
        # An output that does not count is its own target: no gradient, and no copy of the others.
        target = torch.where(known, y.to(outputs.dtype), outputs.detach())
        match self.kind:
            case "mse":
                summed = F.mse_loss(outputs, target, reduction="sum")
            case "l1":
                summed = F.l1_loss(outputs, target, reduction="sum")
            case _:
                summed = F.huber_loss(outputs, target, reduction="sum")
        return summed / (total or 1)


def _wide(outputs: Tensor) -> Tensor:
    """In float32 at least: sums over many vertices have no digits left in less."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def label_weights(
    loss: Loss, y: Tensor, masks: Sequence[Tensor], comm: Communicator
) -> list[float]:
    """Weights of the known labels in each mask over all ranks. Collective."""
    weights = torch.stack([loss.weight_of(y, mask) for mask in masks]).cpu()
    comm.all_reduce(weights).wait()
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
    return CrossEntropy().share(logits, y, mask, total)


def count_labelled(masks: Sequence[Tensor], y: Tensor, comm: Communicator) -> list[int]:
    """For each mask, the vertices in it with a known label, over all ranks. Collective."""
    known = ~y.isnan() if y.is_floating_point() else y > UNKNOWN
    if known.dim() == 2:
        known = known.any(dim=1)
    counts = torch.stack([(mask & known).sum() for mask in masks]).cpu()
    comm.all_reduce(counts).wait()
    return [int(count) for count in counts]
