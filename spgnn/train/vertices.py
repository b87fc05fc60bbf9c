"""Objectives of vertices by their labels: losses, scores, and the tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.command import plural
from spgnn.config import METRICS, RESIDUALS, Aim, TrainConfig, check_metric
from spgnn.data.graph import (
    MASKS,
    VertexData,
    classes_of,
    known_labels,
    label_columns,
    label_kind,
    labelled,
)
from spgnn.errors import InputError, check_choice
from spgnn.frontend.from_config import masks_of
from spgnn.graph import DistGraph, DistributedGraph, DistVertices
from spgnn.graph.outputs import plain
from spgnn.graph.training import TrainingGraph
from spgnn.nn import DropoutKeys, edge_arguments, takes_graph
from spgnn.nn.loss import (
    UNKNOWN,
    BinaryCrossEntropy,
    CrossEntropy,
    FunctionLoss,
    Loss,
    LossFunction,
    Residual,
    as_sum,
    count_labelled,
    label_weights,
)
from spgnn.nn.metrics import Score, accuracies, f1_scores, regression_scores, roc_aucs
from spgnn.train.task import Criterion, GraphTask, Predictions, Scores, Task, score_name

Metric = str | Callable[[Tensor, Tensor], Any]
SPLITS = ("train", "val", "test")
# What is reported without being asked for.
_REPORTED = {
    "softmax": ("accuracy",),
    "multilabel": ("f1-micro", "f1-macro"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc"),
}
_LOSS_OF = {"classes": "softmax", "several": "multilabel", "numbers": "mse"}
# How the outputs are read that a function of torch is given.
_READ_BY = {
    **dict.fromkeys(("cross_entropy", "nll_loss", "multi_margin_loss"), "classes"),
    **dict.fromkeys(("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"), "numbers"),
    "binary_cross_entropy_with_logits": "logits",
    "multilabel_soft_margin_loss": "logits",
    "logsigmoid": "logits",
    "binary_cross_entropy": "probabilities",
}
_NEEDED = {
    "softmax": "one class a vertex (y: integers [n])",
    "multilabel": "several labels a vertex (y: 0 and 1 [n, labels])",
    **dict.fromkeys(RESIDUALS, "numbers (y: floating [n] or [n, numbers])"),
}
_HAS = {"classes": "one class a vertex", "several": "several labels a vertex", "numbers": "numbers"}


def metrics_of(loss: str, metric: str) -> tuple[str, ...]:
    """The scores that are reported: the usual ones, and the one that was asked for."""
    chosen = () if metric == "auto" else (metric,)
    return tuple(dict.fromkeys((*_REPORTED[loss], *chosen)))


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss over known labels and further scores, exact over all ranks.

    `kind` is what ``--loss`` is, decided; `y` are labels [own rows, …] as the loss takes them,
    `masks` of train, validation and test, `totals` what their labels weigh and `counts` how many
    vertices with a label they have over all ranks. Of a function that is a loss, `kind` is what its
    outputs are read as, or empty; labels are predicted whose outputs exceed `threshold`.
    """

    kind: str
    loss: Loss
    y: Tensor
    masks: Sequence[Tensor]
    totals: Sequence[float]
    counts: Sequence[int]
    metrics: tuple[str, ...]
    criterion: Criterion
    threshold: float = 0.0

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
        """The objective of the options on labels of own rows; `classes` are outputs. Collective."""
        kind: str = aim.loss
        if kind == "auto":
            kind = _LOSS_OF[label_kind(y)]
            if kind == "mse" and y.shape[1] > 1 and _are_binary(y, comm):
                kind = "multilabel"
        check_metric(kind, aim.metric)
        if kind in RESIDUALS and (aim.class_weights != "none" or aim.label_smoothing):
            flag = "class-weights" if aim.class_weights != "none" else "label-smoothing"
            raise InputError(f"aim.{flag} needs classes, and the labels of {name} are numbers")
        _check(kind, y, name, comm)
        y = as_taken(kind, y)
        counts = _counts(name, masks, y, comm)
        loss = _loss(kind, aim, y, masks[0], classes=classes, comm=comm)
        totals = label_weights(loss, y, masks, comm)
        if not totals[0]:
            raise InputError("aim.class-weights: classes of all training vertices weigh nothing")
        metrics, criterion = metrics_of(kind, aim.metric), Criterion.of(aim.metric)
        return cls(kind, loss, y, masks, totals, counts, metrics, criterion)

    def on_outputs(self, outputs: Tensor, ids: Tensor, comm: Communicator) -> Objective:
        """The same, for outputs [own rows, …] like these of a user's model. Collective."""
        columns = as_table(outputs).shape[1]
        if isinstance(self.loss, FunctionLoss):
            loss, calls = self.loss.checked(outputs, self.masks, ids)
            kind, y, threshold = _read(loss.labels, calls, columns, comm)
            metrics = _REPORTED.get(kind, ())
            if kind == "multilabel" and columns == 1:
                metrics = ("accuracy", *metrics)
            return replace(self, kind=kind, loss=loss, y=y, metrics=metrics, threshold=threshold)
        needed = comm.agree(label_columns(self.y))
        if columns != needed and (self.kind != "softmax" or columns < needed):
            what = f"{needed} columns"
            if self.kind == "softmax":
                vertex = _vertex_with(self.y == needed - 1, ids, comm)
                what = f"{needed} classes (vertex {vertex} is of class {needed - 1})"
            raise InputError(
                f"--loss {self.kind}: the model returns {plural(columns, 'number')} a vertex, and "
                f"y has {what}; other losses are functions (loss=F.…)"
            )
        return self

    def predictions(self, outputs: Tensor, vertex_ids: Tensor) -> Predictions:
        """Scores of own vertices (float32 [own rows, columns]), and what follows of them."""
        scores = as_table(outputs).float()
        return Predictions(vertex_ids, self.decided(scores) | {"scores": scores})

    def decided(self, outputs: Tensor) -> dict[str, Tensor]:
        """Classes or labels by outputs [rows, columns]; nothing if these are numbers."""
        if self.kind == "softmax":
            return {"class": outputs.argmax(dim=1)}
        return {"labels": outputs > self.threshold} if self.kind == "multilabel" else {}

    def share(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The share of the loss over some training vertices that is this rank's."""
        return self.loss.share(outputs, y, mask, self.totals[0])

    def scores(self, outputs: Tensor, comm: Communicator) -> dict[str, Score]:
        """Validation loss, then each score on train, validation and test. Collective."""
        share = self.loss.share(outputs, self.y, self.masks[1], self.totals[1])
        loss = share.reshape(1).cpu()
        comm.all_reduce(loss).wait()
        result: dict[str, Score] = {"val_loss": float(loss) if self.totals[1] else None}
        for metric, scores in self._scores(as_table(outputs), comm).items():
            named = zip(SPLITS, scores, strict=True)
            result |= {score_name(split, metric): score for split, score in named}
        return result

    def _scores(self, outputs: Tensor, comm: Communicator) -> dict[str, list[Score]]:
        """Each score on the three splits."""
        if self.kind in RESIDUALS:
            return dict(regression_scores(outputs, self.y, self.masks, comm))
        if self.threshold:
            outputs = outputs - self.threshold
        arguments = outputs, self.y, self.masks
        result: dict[str, list[Score]] = {}
        if "accuracy" in self.metrics:
            y = self.y
            if y.dim() == 2:  # one logit is as two, of which the other one is 0
                outputs, y = torch.cat((torch.zeros_like(outputs), outputs), 1), y[:, 0]
            result["accuracy"] = accuracies(outputs, y, self.masks, self.counts, comm)
        if "f1-micro" in self.metrics or "f1-macro" in self.metrics:
            result["f1-micro"], result["f1-macro"] = f1_scores(*arguments, comm)
        if "roc-auc" in self.metrics:
            result["roc-auc"] = roc_aucs(*arguments, comm)
        return {name: result[name] for name in self.metrics}


def objective_on(loss: Aim | str | LossFunction, graph: DistVertices, seed: int = 0) -> Objective:
    """The objective of options, of a named loss or of a function, on vertices. Collective."""
    named = isinstance(loss, Aim | str)
    aim = loss if isinstance(loss, Aim) else Aim(loss=cast(Any, loss)) if named else Aim()
    name, y, comm = graph.data_name, getattr(graph, "y", None), graph.comm
    data = VertexData(**{mask: getattr(graph, mask, None) for mask in MASKS})

    def labels_there() -> Tensor:
        data.check_vertices(rows := len(graph.vertex_ids), name)
        if y is None or len(y) != rows:
            what = "no labels" if y is None else f"{len(y)} labels, but {rows} vertices here"
            raise InputError(f"{name} has {what}: give distribute y, or write a Task")
        return cast(Tensor, y)

    y = comm.on_every_rank(labels_there)
    if not y.is_floating_point():
        _check_integers(y, name, aim.loss if named else None, graph.vertex_ids, comm)
    labels = y
    if y.dim() == 2 and y.shape[1] == 1 and y.dtype in (torch.int32, torch.int64):
        y = y[:, 0]  # as OGB has classes
    if y.is_floating_point():
        y = as_table(y if y.dtype == torch.float64 else y.float())
    elif y.dim() > 1 and aim.loss in RESIDUALS:
        y = torch.where(y > UNKNOWN, as_table(y).double(), torch.nan)
    elif named:
        y = y.long() if y.dim() == 1 else as_table(y).to(torch.int8)
    if data.splits > 1:
        raise InputError(f"{name} has {data.splits} splits: distribute(…, split=0) takes one")
    masks = masks_of(data, graph.vertex_ids, y, seed)
    if named:
        return Objective.of(aim, name, y, masks, classes=graph.num_classes, comm=comm)
    counts = _counts(name, masks, y, comm)
    of_function = FunctionLoss(as_sum(cast(LossFunction, loss)), labels, comm)
    return Objective("", of_function, y, masks, counts, counts, (), Criterion())


def _counts(name: str, masks: Sequence[Tensor], y: Tensor, comm: Communicator) -> list[int]:
    """Vertices with a label in each mask; refuses where there is nothing to learn. Collective."""
    counts = count_labelled(masks, y, comm)
    if not counts[0]:
        raise InputError(
            f"{name}: no vertex of the training mask has a label; there is nothing to learn from"
        )
    return counts


def as_table(rows: Tensor) -> Tensor:
    """Outputs or labels [rows, …] as [rows, columns]."""
    return rows[:, None] if rows.dim() == 1 else rows.flatten(1)


def _are_binary(y: Tensor, comm: Communicator) -> bool:
    """True if all labels that are known on any rank are 0 or 1. Collective."""
    return not comm.agree(int(bool((known_labels(y) & (y != 0) & (y != 1)).any())))


def _vertex_with(chosen: Tensor, ids: Tensor, comm: Communicator) -> int:
    """The largest number of a vertex, on any rank, of which something is true. Collective."""
    numbers = ids[chosen.flatten(1).any(1) if chosen.dim() > 1 else chosen]
    return comm.agree(int(numbers.max()) if len(numbers) else -1)


def _check_integers(
    y: Tensor, name: str, loss: str | None, ids: Tensor, comm: Communicator
) -> None:
    """Refuse integers that would be lost: −1 says that a label is not known, and so does −100."""
    y = y if y.dtype.is_signed else y.int()
    below = (y < UNKNOWN) & (y != nn.CrossEntropyLoss().ignore_index)
    kinds = (below, y == UNKNOWN, y == 0, y == 1, y > 1)
    present = torch.stack([kind.any() for kind in kinds]).long().cpu()
    comm.all_reduce(present, "max").wait()
    smaller, unknown, zeros, ones, larger = present.tolist()
    if smaller or (unknown and ones and not zeros and not larger):
        got = "these are -1 and 1"
        if smaller:
            got = f"that of vertex {_vertex_with(below, ids, comm)} is smaller"
        raise InputError(
            f"{name}: of integers y, -1 says that a label is not known, and {got}: "
            "give floating numbers, y.float()"
        )
    if larger and y.dim() > 1 and y.shape[1] > 1 and loss in ("auto", "multilabel"):
        raise InputError(f"--loss multilabel needs labels 0 and 1; those of {name} are others")


def _read(
    labels: Tensor, calls: set[str], columns: int, comm: Communicator
) -> tuple[str, Tensor, float]:
    """The kind of outputs of so many columns, its labels, and a threshold. Collective."""
    y, integers = as_table(labels), not labels.is_floating_point()
    has_label = known_labels(y)
    binary, classes = _are_binary(y, comm), comm.agree(classes_of(y))
    whole = integers or not comm.agree(int(bool((has_label & (y != y.round())).any())))
    readings = {_READ_BY[name] for name in calls & _READ_BY.keys()}
    reading = readings.pop() if len(readings) == 1 else ""
    if y.shape[1] == 1 and columns >= max(classes, 2):
        if whole and (integers or reading == "classes"):
            return "softmax", torch.where(has_label, y.long(), UNKNOWN)[:, 0], 0.0
    elif columns == y.shape[1]:
        says = reading in ("logits", "probabilities")
        if binary and (says or (not reading and (integers or columns > 1))):
            threshold = 0.5 if reading == "probabilities" else 0.0
            return "multilabel", torch.where(has_label, y.to(torch.int8), UNKNOWN), threshold
        if reading in ("", "numbers"):
            return "mse", torch.where(has_label, y.double() if integers else y, torch.nan), 0.0
    return "", y, 0.0


def as_taken(kind: str, y: Tensor) -> Tensor:
    """Labels as a loss takes them: 0 and 1 are numbers, and numbers may all be 0 and 1."""
    kind_of_y = label_kind(y)
    if kind_of_y == "several" and kind in RESIDUALS:
        return torch.where(y == UNKNOWN, torch.nan, y.float())
    if kind_of_y == "numbers" and kind == "multilabel":
        return torch.where(y.isnan(), UNKNOWN, y).to(torch.int8)
    return y


def _check(kind: str, y: Tensor, name: str, comm: Communicator) -> None:
    """Refuse labels that a loss cannot take. Collective."""
    kind_of_y = label_kind(y)
    if kind_of_y == "numbers" and kind == "multilabel":
        fits = bool((y.isnan() | (y == 0) | (y == 1)).all())
        if comm.agree(int(not fits)):
            raise InputError(f"--loss multilabel needs labels 0 and 1; those of {name} are others")
    elif (kind_of_y == "classes") != (kind == "softmax"):
        raise InputError(f"--loss {kind} needs {_NEEDED[kind]}; {name} has {_HAS[kind_of_y]}")


def _loss(
    kind: str, aim: Aim, y: Tensor, training: Tensor, *, classes: int, comm: Communicator
) -> Loss:
    if kind in RESIDUALS:
        return Residual(kind)
    weight, listed = None, aim.given_weights
    if listed and len(listed) != classes:
        raise InputError(f"aim.class-weights: {len(listed)} weights for {classes} classes")
    if listed:
        weight = torch.tensor(listed, dtype=torch.float64, device=y.device)
    elif aim.class_weights == "balanced":
        weight = _balanced(y, training, classes, comm)
    outputs = CrossEntropy if kind == "softmax" else BinaryCrossEntropy
    return outputs(weight, aim.label_smoothing)


def _balanced(y: Tensor, training: Tensor, classes: int, comm: Communicator) -> Tensor:
    """Weights that give each class the same part in the loss, float64 [classes]. Collective."""
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
    """A model that learns what labels say of each vertex: its class, several labels, or numbers."""

    def __init__(self, config: TrainConfig, data: TrainingGraph) -> None:
        self.objective = objective_on(config.aim, data.whole)
        self.criterion = self.objective.criterion
        self.y = as_taken(self.objective.kind, data.y)
        super().__init__(config, data, data.whole.num_classes)
        if self.objective.kind != "softmax":
            self._signature["loss"] = self.objective.kind

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training vertices. Collective."""
        outputs = self.model(self.data.X, self.data.layers, self.begin(epoch))
        return self.objective.share(outputs, self.y, self.data.mask)

    def scores(self) -> Scores:
        """Validation loss, then scores on train, validation and test. Collective."""
        return self.objective.scores(self.outputs(), self.comm)

    def outputs(self) -> Tensor:
        """Outputs of own vertices [own rows, columns]. Collective."""
        outputs: Tensor = self.model(self.data.features, self.data.evaluated)
        return outputs

    def predictions(self) -> Predictions:
        """Scores (float32 [own rows, columns], before softmax or sigmoid), and what follows."""
        return self.objective.predictions(self.outputs(), self.data.whole.vertex_ids)


class GivenModel(Task):
    """A user's module on a graph, learnt from labels of its vertices; see `Trainer`. Collective."""

    def __init__(
        self,
        model: nn.Module,
        graph: DistributedGraph,
        loss: Aim | str | LossFunction,
        *,
        target: str | None,
        forward: Callable[..., Any] | None,
        metrics: Sequence[Metric],
        seed: int,
        weight_decay: float,
    ) -> None:
        if isinstance(metrics, str) or callable(metrics):
            raise InputError("Trainer(metrics=…) must be a list of names and functions, got one")
        self._metrics = [metric for metric in metrics if callable(metric)]
        self._names = [metric for metric in metrics if not callable(metric)]
        for name in self._names:
            check_choice("Trainer(metrics=…)", name, METRICS[1:])
        self.graph, self.comm, self.model = graph, graph.comm, model
        self.vertices = graph.labelled_vertices(target)
        self._forward, self._seed, self._weight_decay = forward, seed, weight_decay
        self._epoch = -1
        self._loss, self._version, self._has_outputs = loss, graph.version, False
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.device != graph.device:
                raise InputError(
                    f"Trainer(model, graph): {name} is on {tensor.device}, the graph on "
                    f"{graph.device}: use model.to(graph.device)"
                )
        self.objective = objective_on(loss, self.vertices, seed)
        self.criterion = self.objective.criterion
        if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
            model.eval()
            with torch.no_grad():
                self._call()  # which finds their shapes
        graph.replicate(model)

    def _follow(self) -> None:
        """Take labels of the graph again, if it was updated. Collective then."""
        if self._version != self.graph.version:
            self._version, self._has_outputs = self.graph.version, False
            self.objective = objective_on(self._loss, self.vertices, self._seed)

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training vertices. Collective."""
        self._follow()
        while self._epoch < epoch:  # those of a checkpoint, too
            self._epoch = self.graph.next_epoch()
        outputs = self.outputs()
        return self.objective.share(outputs, self.objective.y, self.objective.masks[0])

    def scores(self) -> Scores:
        """Validation loss, then scores on train, validation and test. Collective."""
        self._follow()
        outputs = self.outputs()
        scores = self.objective.scores(outputs, self.comm)
        return {**scores, **self._user_scores(outputs)} if self._metrics else scores

    def _user_scores(self, outputs: Tensor) -> Scores:
        """Scores of the user's metrics, over all vertices at once, by rank 0. Collective."""
        loss = self.objective.loss
        y = loss.labels if isinstance(loss, FunctionLoss) else self.objective.y
        masks = torch.stack([*self.objective.masks], dim=1) & labelled(y)[:, None]
        rows = [self.vertices.gather(one) for one in (outputs, y, masks)]

        def compute() -> dict[str, float | None]:
            outputs, y, masks = cast(list[Tensor], rows)
            result: dict[str, float | None] = {}
            for metric in self._metrics:
                name = getattr(metric, "__name__", type(metric).__name__)
                for split, mask in zip(SPLITS, masks.T, strict=True):
                    try:
                        score = float(metric(outputs[mask], y[mask])) if mask.any() else math.nan
                        getattr(metric, "reset", lambda: None)()  # of torchmetrics, which adds up
                    except Exception as error:
                        raise InputError(f"Trainer(metrics=…): {name}: {error}") from error
                    result[score_name(split, name)] = None if math.isnan(score) else score
            return result

        return cast(Scores, self.comm.from_rank_zero(compute))

    def outputs(self) -> Tensor:
        """Outputs of own vertices [own rows, …], as the loss takes them. Collective."""
        outputs = self._call()
        if not self._has_outputs:
            self._check_outputs(outputs)
            ids, comm = self.vertices.vertex_ids, self.comm
            objective = self.objective.on_outputs(outputs, ids, comm)
            for name in self._names:
                check_metric(objective.kind, name)
            names = dict.fromkeys((*objective.metrics, *self._names))
            self.objective, self._has_outputs = replace(objective, metrics=tuple(names)), True
        return outputs if isinstance(self.objective.loss, FunctionLoss) else as_table(outputs)

    def _call(self) -> Tensor:
        """Call the model; of rows of several vertex types, those whose labels are learnt."""
        graph, model = self.graph, self.model
        keys: tuple[DropoutKeys | None, ...] = ()
        if getattr(self._forward or model, "takes_keys", False):
            of_epoch = DropoutKeys(self.vertices.vertex_ids, self._seed, self._epoch)
            keys = (of_epoch if model.training else None,)
        if self._forward is not None:
            result = self._forward(model, graph, *keys)
        elif keys:
            result = model(*graph.model_inputs(True), *keys)
        else:
            by_graph = takes_graph(model)
            edges = {} if by_graph else edge_arguments(model, graph)
            result = model(*graph.model_inputs(by_graph), **edges)
        if isinstance(result, Mapping) and not isinstance(graph, DistGraph):
            name = self.vertices.data_name
            if name not in result:
                raise InputError(
                    f"the model makes rows of {', '.join(map(str, result)) or 'no type'}, none of "
                    f"{name!r}, whose labels are learnt"
                )
            result = result[name]
        if not isinstance(result, Tensor):
            raise InputError(
                f"the model returns a {type(result).__name__}, and a tensor with a row for each "
                "vertex is needed: Trainer(forward=lambda model, graph: model(…)[0]), say"
            )
        rows: Tensor = plain(result)
        return rows

    def _check_outputs(self, outputs: Tensor) -> None:
        """Refuse what has no row for each own vertex. Collective."""
        rows, shape = self.vertices.own_rows, list(outputs.shape)

        def check() -> None:
            if not shape or shape[0] != rows or not outputs.is_floating_point():
                raise InputError(
                    f"the model returns {outputs.dtype} {shape}, and floating numbers [{rows}, …] "
                    "are needed, a row for each own vertex (squeeze(-1), not squeeze(): a rank may "
                    "have one)"
                )

        self.comm.on_every_rank(check)
        dtype = str(outputs.dtype)
        self.comm.check_agreement("the model's outputs", of_a_vertex=tuple(shape[1:]), dtype=dtype)

    def predictions(self) -> Predictions:
        """Scores, and the classes or labels that follow. Collective."""
        outputs = self.outputs()
        result = self.objective.predictions(outputs, self.vertices.vertex_ids)
        return result._replace(columns=self.names)

    @property
    def names(self) -> dict[str, npt.NDArray[Any]]:
        """The source's ids of all vertices, on rank 0, if it has any."""
        names = self.vertices.names_of_all
        return {} if names is None else {"id": names}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All parameters decay alike."""
        return [{"params": list(self.model.parameters()), "weight_decay": self._weight_decay}]

    @property
    def signature(self) -> Mapping[str, Any]:
        """The model's class, the seed, and the size of the graph."""
        size = f"{self.graph.num_nodes} vertices and {self.graph.num_edges} edges"
        return {"model": type(self.model).__name__, "seed": self._seed, "a graph of": size}

    def state(self) -> dict[str, Tensor]:
        """State of the graph's codecs. Collective."""
        return self.graph.codec_state() if self.graph.codec.remembers else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of the graph's codecs. Collective."""
        self.graph.load_codec_state(state)
        self._epoch = int(state["epoch"])
