"""Labels as features (UniMP, Shi et al. 2021): those that are known help to find the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.config import RESIDUALS, Extension, TrainConfig
from spgnn.data import labelled
from spgnn.errors import InputError
from spgnn.graph import AnyGraph, Features, TrainingGraph
from spgnn.hashing import uniform
from spgnn.nn import UNKNOWN, DropoutKeys, Network, glorot_, label_weights
from spgnn.options import key
from spgnn.train import NodeClassification, as_taken


@dataclass(frozen=True)
class LabelInputs(Extension):
    """Key of the training command."""

    section = "aim"

    label_propagation: Annotated[
        float, key("show the labels of this share of training vertices, learn the others", high=1)
    ] = 0.0

    def changes_features(self, config: TrainConfig) -> str | None:
        """Labels that are added to features are other ones in each epoch."""
        return "aim.label-propagation" if self.label_propagation else None

    def model(self, config: TrainConfig, layers: nn.Module, classes: int, width: int) -> nn.Module:
        """The layers on features to which labels are added."""
        if not self.label_propagation:
            return layers
        return WithLabels(layers, classes, width, config.training.seed)

    def task(self, config: TrainConfig) -> Callable[[TrainConfig, Any], Any] | None:
        """Learn the labels that are no inputs."""
        return LabelPropagation if self.label_propagation else None

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what has no labels that could be shown."""
        if self.label_propagation and config.aim.task == "links":
            yield "aim.label-propagation needs --task vertices, not links"
        if self.label_propagation and config.aim.loss in RESIDUALS:
            yield f"aim.label-propagation needs classes, and --loss {config.aim.loss} has none"


class WithLabels(nn.Module):
    """A model whose features are X plus an embedding of the labels that it is shown."""

    def __init__(self, model: nn.Module, labels: int, channels: int, seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.embedding = nn.Parameter(torch.empty(labels, channels))
        glorot_(self.embedding, torch.Generator().manual_seed(seed))

    def forward(
        self,
        x: Features,
        graph: AnyGraph,
        keys: DropoutKeys | None = None,
        shown: Tensor | None = None,
    ) -> Tensor:
        """Outputs of the model for features and labels. Collective."""
        if not isinstance(x, Tensor):
            raise InputError("labels are added to features that are a dense tensor, and not A·X")
        if shown is None:
            shown = torch.full(x.shape[:1], UNKNOWN, device=x.device)
        if shown.dim() == 1:
            # One row more, of zeros, for those that are not shown.
            table = torch.cat((self.embedding, torch.zeros_like(self.embedding[:1])))
            added = F.embedding(torch.where(shown < 0, len(table) - 1, shown), table)
        else:
            added = (shown == 1).to(self.embedding.dtype) @ self.embedding
        outputs: Tensor = self.model(x + added.to(x.dtype), graph, keys)
        return outputs


class LabelPropagation(NodeClassification):
    """Labels of a share of the training vertices are inputs, those of the others are learnt."""

    def __init__(self, config: TrainConfig, data: TrainingGraph) -> None:
        super().__init__(config, data)
        kind, graph = self.objective.kind, data.graph
        if kind in RESIDUALS:
            raise InputError(f"aim.label-propagation needs classes or labels, not --loss {kind}")
        assert graph.y is not None
        assert graph.train_mask is not None
        self.share = config.extension(LabelInputs).label_propagation
        ids = (graph.vertex_ids[rows] for rows in (data.first, data.rows))
        self._ids, self._row_ids = (each.cpu().numpy() for each in ids)  # where draws are made
        self._inputs_y = as_taken(kind, graph.y[data.first])
        self._inputs_mask = graph.train_mask[data.first]
        y = self.objective.y
        self._all_labels = _hidden_unless(self.objective.masks[0] & labelled(y), y)
        self._signature["task"] = "label propagation"

    def network_of(self, layers: Network) -> nn.Module:
        """The layers on features to which labels are added."""
        whole = self.data.whole
        model = WithLabels(layers, whole.num_classes, whole.num_features, self.seed)
        return model.to(whole.device)

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over the training vertices whose labels are no inputs. Collective."""
        inputs = self._inputs_mask & self._drawn(self._ids, epoch)
        targets = self.data.mask & ~self._drawn(self._row_ids, epoch)
        (total,) = label_weights(self.objective.loss, self.y, [targets], self.comm)
        outputs = self.model(
            self.data.X, self.data.layers, self.begin(epoch), _hidden_unless(inputs, self._inputs_y)
        )
        return self.objective.loss.share(outputs, self.y, targets, total)

    def outputs(self) -> Tensor:
        """Outputs of own vertices, all training labels inputs. Collective."""
        labels = self._all_labels
        outputs: Tensor = self.model(self.data.features, self.data.evaluated, shown=labels)
        return outputs

    def _drawn(self, ids: npt.NDArray[np.int64], epoch: int) -> Tensor:
        """True if each vertex's label is an input in an epoch, bool."""
        draws = uniform(ids, self.seed, f"labels shown in epoch {epoch}")
        return torch.from_numpy(draws < self.share).to(self._inputs_mask.device)


def _hidden_unless(shown: Tensor, y: Tensor) -> Tensor:
    """Labels, −1 where they are not shown."""
    return torch.where(shown if y.dim() == 1 else shown[:, None], y, UNKNOWN).to(y.dtype)
