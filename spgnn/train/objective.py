"""What a model of vertices is trained towards: a loss and scores, by what the labels are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.config import RESIDUALS, Aim, check_metric
from spgnn.data.graph import label_kind
from spgnn.errors import InputError
from spgnn.nn.loss import (
    UNKNOWN,
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    Residual,
    count_labelled,
    label_weights,
)
from spgnn.nn.metrics import Score, accuracies, f1_scores, regression_scores, roc_aucs

SPLITS = ("train", "val", "test")
# What is reported without being asked for.
_REPORTED = {
    "softmax": ("accuracy",),
    "multilabel": ("f1-micro", "f1-macro"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc"),
}
LOWER_IS_BETTER = {"mae", "rmse"}
_LOSS_OF = {"classes": "softmax", "several": "multilabel", "numbers": "mse"}
_NEEDED = {
    "softmax": "one class a vertex (y: integers [n])",
    "multilabel": "several labels a vertex (y: 0 and 1 [n, labels])",
    **dict.fromkeys(RESIDUALS, "numbers (y: floating [n] or [n, numbers])"),
}
_FOUND = {
    "classes": "one class a vertex",
    "several": "several labels a vertex",
    "numbers": "numbers",
}


class Criterion(NamedTuple):
    """The score by which epochs are compared.

    Attributes
    ----------
    name : str
    higher : bool
        Whether more is better.
    """

    name: str = "val_loss"
    higher: bool = False

    @classmethod
    def of(cls, metric: str) -> Criterion:
        """The validation score of a ``--metric``; ``auto`` is the validation loss."""
        if metric == "auto":
            return cls()
        return cls(score_name("val", metric), metric not in LOWER_IS_BETTER)

    def better(self, one: float, other: float) -> bool:
        """Whether one score is better than another; equal ones are not."""
        return one > other if self.higher else one < other


def score_name(split: str, metric: str) -> str:
    """What a score is called in the history, say ``val_acc`` or ``test_roc_auc``."""
    return f"{split}_{'acc' if metric == 'accuracy' else metric.replace('-', '_')}"


def metrics_of(loss: str, metric: str) -> tuple[str, ...]:
    """The scores that are reported: the usual ones, and the one that was asked for."""
    asked = () if metric == "auto" else (metric,)
    return tuple(dict.fromkeys((*_REPORTED[loss], *asked)))


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss over known labels and the scores beside it, exact over all ranks.

    Attributes
    ----------
    kind : str
        What ``--loss`` is, decided.
    loss : Loss
    y : Tensor [own rows] or [own rows, columns]
        Labels as the loss takes them.
    masks : sequence of Tensor bool [own rows]
        Train, validation, test.
    totals : sequence of float
        What their labels weigh, over all ranks.
    counts : sequence of int
        Labelled vertices in each, over all ranks.
    metrics : tuple of str
    criterion : Criterion
    """

    kind: str
    loss: Loss
    y: Tensor
    masks: Sequence[Tensor]
    totals: Sequence[float]
    counts: Sequence[int]
    metrics: tuple[str, ...]
    criterion: Criterion

    @classmethod
    def of(
        cls,
        aim: Aim,
        name: str,
        y: Tensor,
        masks: Sequence[Tensor],
        *,
        classes: int,
        comm: Communicator,
    ) -> Objective:
        """What the flags ask for, on these labels. Collective.

        Parameters
        ----------
        aim : Aim
        name : str
            Of the data set, for messages.
        y : Tensor [own rows] or [own rows, columns]
        masks : sequence of Tensor bool [own rows]
        classes : int
            Columns of the last layer.
        comm : Communicator
            All ranks.

        Raises
        ------
        InputError
            On all ranks, if labels do not fit the flags, or no training vertex has one.
        """
        kind = _LOSS_OF[label_kind(y)] if aim.loss == "auto" else aim.loss
        check_metric(kind, aim.metric)
        if kind in RESIDUALS and (aim.class_weights != "none" or aim.label_smoothing):
            flag = "class-weights" if aim.class_weights != "none" else "label-smoothing"
            raise InputError(f"aim.{flag} needs classes, and the labels of {name} are numbers")
        _check(kind, y, name, comm)
        y = as_taken(kind, y)
        counts = count_labelled(masks, y, comm)
        if not counts[0]:
            raise InputError(
                f"{name}: no vertex of the training mask has a label; "
                "there is nothing to learn from"
            )
        loss = _loss(kind, aim, y, masks[0], classes=classes, comm=comm)
        totals = label_weights(loss, y, masks, comm)
        if not totals[0]:
            raise InputError("aim.class-weights: classes of all training vertices weigh nothing")
        metrics, criterion = metrics_of(kind, aim.metric), Criterion.of(aim.metric)
        return cls(kind, loss, y, masks, totals, counts, metrics, criterion)

    def decided(self, outputs: Tensor) -> dict[str, Tensor]:
        """What outputs [rows, columns] say a vertex is, by name; nothing if they are numbers."""
        if self.kind == "softmax":
            return {"class": outputs.argmax(dim=1)}
        return {"labels": outputs > 0} if self.kind == "multilabel" else {}

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The share of the loss over some training vertices that is this rank's."""
        return self.loss.share(outputs, y, mask, self.totals[0])

    def scores(self, outputs: Tensor, comm: Communicator) -> dict[str, Score]:
        """Validation loss, then each score on train, validation and test. Collective."""
        share = self.loss.share(outputs, self.y, self.masks[1], self.totals[1])
        loss = share.reshape(1).cpu()
        comm.all_reduce(loss).wait()
        found: dict[str, Score] = {"val_loss": float(loss) if self.totals[1] else None}
        for metric, scores in self._scores(outputs, comm).items():
            named = zip(SPLITS, scores, strict=True)
            found |= {score_name(split, metric): score for split, score in named}
        return found

    def _scores(self, outputs: Tensor, comm: Communicator) -> dict[str, list[Score]]:
        """Each score on the three splits."""
        if self.kind in RESIDUALS:
            return dict(regression_scores(outputs, self.y, self.masks, comm))
        given = outputs, self.y, self.masks
        found: dict[str, list[Score]] = {}
        if "accuracy" in self.metrics:
            found["accuracy"] = accuracies(*given, self.counts, comm)
        if "f1-micro" in self.metrics or "f1-macro" in self.metrics:
            found["f1-micro"], found["f1-macro"] = f1_scores(*given, comm)
        if "roc-auc" in self.metrics:
            found["roc-auc"] = roc_aucs(*given, comm)
        return {name: found[name] for name in self.metrics}


def as_taken(kind: str, y: Tensor) -> Tensor:
    """Labels as a loss takes them: 0 and 1 are numbers, and numbers may all be 0 and 1."""
    held = label_kind(y)
    if held == "several" and kind in RESIDUALS:
        return torch.where(y == UNKNOWN, torch.nan, y.float())
    if held == "numbers" and kind == "multilabel":
        return torch.where(y.isnan(), UNKNOWN, y).to(torch.int8)
    return y


def _check(kind: str, y: Tensor, name: str, comm: Communicator) -> None:
    """Refuse labels that a loss cannot take. Collective."""
    held = label_kind(y)
    if held == "numbers" and kind == "multilabel":
        fits = bool((y.isnan() | (y == 0) | (y == 1)).all())
        if comm.agree(int(not fits)):
            raise InputError(f"--loss multilabel needs labels 0 and 1; those of {name} are others")
    elif (held == "classes") != (kind == "softmax"):
        raise InputError(f"--loss {kind} needs {_NEEDED[kind]}; {name} has {_FOUND[held]}")


def _loss(
    kind: str, aim: Aim, y: Tensor, training: Tensor, *, classes: int, comm: Communicator
) -> Loss:
    if kind in RESIDUALS:
        return Residual(kind)
    weight, given = None, aim.given_weights
    if given and len(given) != classes:
        raise InputError(f"aim.class-weights: {len(given)} weights for {classes} classes")
    if given:
        weight = torch.tensor(given, dtype=torch.float64, device=y.device)
    elif aim.class_weights == "balanced":
        weight = _balanced(y, training, classes, comm)
    made = CrossEntropy if kind == "softmax" else BinaryCrossEntropy
    return made(weight, aim.label_smoothing)


def _balanced(y: Tensor, training: Tensor, classes: int, comm: Communicator) -> Tensor:
    """Weights that give each class the same part in the loss, float64 [classes]. Collective.

    Of classes, n / (classes × vertices of the class): 1 where all are equally frequent, 0 for one
    that does not occur. Of labels, how many vertices have it not for one that has it; 1 where
    either do not occur.
    """
    if y.dim() == 1:
        counts = torch.bincount(y[training & (y > UNKNOWN)], minlength=classes).cpu()
        comm.all_reduce(counts).wait()
        n = counts.double()
        weight = torch.where(n > 0, n.sum() / (classes * n.clamp(min=1)), 0.0)
    else:
        here = training[:, None]
        counts = torch.stack([((y == value) & here).sum(dim=0) for value in (0, 1)]).cpu()
        comm.all_reduce(counts).wait()
        absent, present = counts.double()
        both = (absent > 0) & (present > 0)
        weight = torch.where(both, absent / present.clamp(min=1), 1.0)
    return weight.to(y.device)
