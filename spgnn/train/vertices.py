"""Objectives of vertices by their labels: losses, scores, and the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.config import RESIDUALS, Aim, TrainConfig, check_metric
from spgnn.data.graph import label_kind, labelled
from spgnn.errors import InputError
from spgnn.hashing import uniform
from spgnn.nn.label_input import WithLabels
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
from spgnn.train.setup import Problem
from spgnn.train.task import Criterion, GraphTask, Predictions, Scores, score_name

SPLITS = ("train", "val", "test")
# What is reported without being asked for.
_REPORTED = {
    "softmax": ("accuracy",),
    "multilabel": ("f1-micro", "f1-macro"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc"),
}
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


def metrics_of(loss: str, metric: str) -> tuple[str, ...]:
    """The scores that are reported: the usual ones, and the one that was asked for."""
    asked = () if metric == "auto" else (metric,)
    return tuple(dict.fromkeys((*_REPORTED[loss], *asked)))


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss over known labels and further scores, exact over all ranks.

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
        """The objective of the options on these labels. Collective.

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
        """Classes or labels by outputs [rows, columns]; nothing if these are numbers."""
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


class NodeClassification(GraphTask):
    """A model that finds what labels say of each vertex: its class, several labels, or numbers.

    What is minimised, and which scores are reported, is an :class:`Objective`.

    Parameters
    ----------
    config : TrainConfig
    problem : Problem
    comm : Communicator
        All ranks.

    Raises
    ------
    InputError
        If labels do not fit the flags, no training vertex has one, or the weights could never fit
        into memory; on all ranks alike.
    """

    def __init__(self, config: TrainConfig, problem: Problem, comm: Communicator) -> None:
        self.objective = Objective.of(
            config.aim,
            problem.meta.name,
            problem.y,
            problem.masks,
            classes=problem.classes,
            comm=comm,
        )
        self.criterion = self.objective.criterion
        self.y = as_taken(self.objective.kind, problem.training.y)
        super().__init__(config, problem, comm, problem.classes)

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training vertices. Collective."""
        rows = self.problem.training
        outputs = self.model(rows.X, rows.graph, self.begin(epoch))
        return self.objective.share(outputs, self.y, rows.mask)

    def scores(self) -> Scores:
        """Validation loss, then scores on train, validation and test. Collective."""
        return self.objective.scores(self.outputs(), self.comm)

    def outputs(self) -> Tensor:
        """Outputs of own vertices [own rows, columns]. Collective."""
        found: Tensor = self.model(self.problem.X, self.problem.A)
        return found

    def predictions(self) -> Predictions:
        """Scores (float32 [own rows, columns], before softmax or sigmoid), and what follows.

        That is the class (int64), or which labels a vertex has (bool); of numbers, nothing.
        Collective.
        """
        scores = self.outputs().float()
        arrays = self.objective.decided(scores) | {"scores": scores}
        return Predictions(self.problem.vertex_ids, arrays)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, size of the graph, and the loss if it is not over classes."""
        told, kind = super().signature, self.objective.kind
        return told if kind == "softmax" else {**told, "loss": kind}


class LabelPropagation(NodeClassification):
    """Labels of a share of the training vertices are shown, those of the others are to be found.

    As Shi et al. (2021, UniMP): an embedding of the labels that are shown is added to the features.
    Which ones these are is drawn in each epoch, by a hash of (seed, epoch, original id). In
    evaluation all training labels are shown; so scores on training vertices say little.

    Parameters
    ----------
    config, problem, comm
        As of :class:`NodeClassification`.

    Raises
    ------
    InputError
        As there, or if labels are numbers.
    """

    def __init__(self, config: TrainConfig, problem: Problem, comm: Communicator) -> None:
        super().__init__(config, problem, comm)
        kind = self.objective.kind
        if kind in RESIDUALS:
            raise InputError(f"aim.label-propagation needs classes or labels, not --loss {kind}")
        self.share = config.aim.label_propagation
        model = WithLabels(self.layers, problem.classes, problem.features, self.seed)
        self.model = self.network = self.with_labels = model.to(problem.y.device)
        self._inputs_y = as_taken(kind, problem.training.inputs.y)
        given = self.objective.masks[0]
        self._all_shown = _hidden_unless(given & labelled(self.objective.y), self.objective.y)

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over the training vertices whose labels are not shown. Collective."""
        rows, inputs = self.problem.training, self.problem.training.inputs
        shown = _hidden_unless(inputs.mask & self._drawn(inputs.vertex_ids, epoch), self._inputs_y)
        asked = rows.mask & ~self._drawn(rows.row_ids, epoch)
        (total,) = label_weights(self.objective.loss, self.y, [asked], self.comm)
        outputs = self.with_labels(rows.X, rows.graph, self.begin(epoch), shown)
        return self.objective.loss.share(outputs, self.y, asked, total)

    def outputs(self) -> Tensor:
        """Outputs of own vertices, all training labels shown. Collective."""
        found: Tensor = self.with_labels(self.problem.X, self.problem.A, shown=self._all_shown)
        return found

    @property
    def signature(self) -> Mapping[str, Any]:
        """As of the base, and that labels are shown."""
        return {**super().signature, "task": "label propagation"}

    def _drawn(self, vertex_ids: Tensor, epoch: int) -> Tensor:
        """True if each vertex's label is shown in an epoch, bool."""
        draws = uniform(vertex_ids.cpu().numpy(), self.seed, f"labels shown in epoch {epoch}")
        return torch.from_numpy(draws < self.share).to(vertex_ids.device)


def _hidden_unless(shown: Tensor, y: Tensor) -> Tensor:
    """Labels, −1 where they are not shown."""
    return torch.where(shown if y.dim() == 1 else shown[:, None], y, UNKNOWN).to(y.dtype)
