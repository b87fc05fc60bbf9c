"""Labels as features (UniMP, Shi et al. 2021): those that are known help to find the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.errors import InputError
from spgnn.graph.features import Features
from spgnn.graph.protocol import AnyGraph
from spgnn.nn.convolution import glorot_
from spgnn.nn.loss import UNKNOWN
from spgnn.nn.rowwise import DropoutKeys


class WithLabels(nn.Module):
    """A model whose features are X plus an embedding of the labels that it is shown.

    Parameters
    ----------
    model : Module
        Called as ``model(X, graph, keys)``.
    labels : int
        Classes, or labels that a vertex may have.
    channels : int
        Width of X.
    seed : int
        Of the embedding (Glorot & Bengio 2010, uniform).
    """

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
        """Outputs of the model for features and labels. Collective.

        Parameters
        ----------
        x : Tensor [columns of the first layer, features]
        graph, keys
            As the model takes them.
        shown : Tensor int64 [columns], or int8 [columns, labels], optional
            −1 where a label is not shown; by default none is.
        """
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
        found: Tensor = self.model(x + added.to(x.dtype), graph, keys)
        return found
