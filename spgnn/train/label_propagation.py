"""Masked label propagation: some training labels are features, the others are to be found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.config import RESIDUALS, TrainConfig
from spgnn.data.graph import labelled
from spgnn.errors import InputError
from spgnn.hashing import uniform
from spgnn.nn.label_input import WithLabels
from spgnn.nn.loss import UNKNOWN, label_weights
from spgnn.train.objective import as_taken
from spgnn.train.setup import Problem
from spgnn.train.task import NodeClassification


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
        """What the model makes of own vertices, all training labels shown. Collective."""
        found: Tensor = self.with_labels(self.problem.X, self.problem.A, shown=self._all_shown)
        return found

    @property
    def signature(self) -> Mapping[str, Any]:
        """As of the base, and that labels are shown."""
        return {**super().signature, "task": "label propagation"}

    def _drawn(self, vertex_ids: Tensor, epoch: int) -> Tensor:
        """Whether each vertex's label is shown in an epoch, bool."""
        draws = uniform(vertex_ids.cpu().numpy(), self.seed, f"labels shown in epoch {epoch}")
        return torch.from_numpy(draws < self.share).to(vertex_ids.device)


def _hidden_unless(shown: Tensor, y: Tensor) -> Tensor:
    """Labels, −1 where they are not shown."""
    return torch.where(shown if y.dim() == 1 else shown[:, None], y, UNKNOWN).to(y.dtype)
