"""What all models here are: layers, with ReLU and dropout between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spgnn.nn.dropout import DropoutKeys, dropout
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import Graph, LayerGraph, Propagation, by_layer


class Convolution(nn.Module):
    """Base of layers on a graph."""

    @abstractmethod
    def forward(self, graph: LayerGraph, H_local: Features) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Z_local must be a tensor of its own, which the next layer may overwrite.
        """

    @staticmethod
    @abstractmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in the matrices of a layer of these widths."""


def multiplies_first(f_in: int, f_out: int, input_layer: bool) -> bool:
    """Whether A (H W) moves fewer bytes an epoch than (A H) W, with W [f_in, f_out].

    Each costs the width that travels, forward and backward; but the input needs no gradient, so
    (A X) W has no product in backward.
    """
    return 2 * f_out <= f_in * (1 if input_layer else 2)


def linear(f_in: int, f_out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer whose bias is zero."""
    made = nn.Linear(f_in, f_out, bias=bias)
    if bias:
        nn.init.zeros_(made.bias)
    return made


class Stack(nn.Module):
    """Layers with ReLU and dropout between them.

    Weights are replicated: the same seed gives the same ones on every rank and at any P.

    Parameters
    ----------
    widths : sequence of int
        Features, hidden widths, classes.
    dropout : float
        Probability, on the input of every layer.
    input_dropout : bool
        Whether features are dropped as well.
    seed : int
        Of the weights: matrices are drawn from it (Glorot & Bengio 2010, uniform), and all else is
        left as the layer made it.
    options
        For every layer.

    Attributes
    ----------
    convolution : type of Convolution
        What the layers are; made of the two widths, ``input_layer``, and the options.
    """

    convolution: ClassVar[type[Convolution]]

    def __init__(
        self,
        widths: Sequence[int],
        *,
        dropout: float = 0.0,
        input_dropout: bool = True,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.layers = nn.ModuleList(
            self.convolution(f_in, f_out, input_layer=number == 0, **options)
            for number, (f_in, f_out) in enumerate(pairwise(widths))
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    bound = (6 / sum(parameter.shape)) ** 0.5
                    parameter.uniform_(-bound, bound, generator=generator)

    @classmethod
    def size(cls, widths: Sequence[int]) -> int:
        """Numbers in the matrices of a model of these widths."""
        return sum(cls.convolution.size(*pair) for pair in pairwise(widths))

    @property
    def convolutions(self) -> list[Convolution]:
        """The layers."""
        return [layer for layer in self.layers if isinstance(layer, Convolution)]

    def forward(self, graph: Graph, X_local: Features, keys: DropoutKeys | None = None) -> Tensor:
        """Logits [rows of the last layer, classes]. Collective.

        Parameters
        ----------
        graph : DistMatrix, or a sequence of one Propagation a layer
            A matrix stands for every layer. Each layer of a sequence takes the rows that the one
            before it made.
        X_local : Tensor or CSR [columns of the first layer, features], or Propagated
            Propagated features have the rows that the first layer makes. They cannot be dropped:
            A·dropout(X) changes every epoch.
        keys : DropoutKeys, optional
            Only in training with dropout.
        """
        convolutions = self.convolutions
        Z_local: Features = X_local
        for number, (layer, on) in enumerate(
            zip(convolutions, by_layer(graph, len(convolutions)), strict=True)
        ):
            if isinstance(Z_local, Tensor) and number:
                # In place: the gradient of ReLU needs its result alone.
                Z_local = torch.relu_(Z_local)
            if not isinstance(Z_local, Propagated) and (number or self.input_dropout):
                Z_local = dropout(Z_local, self.dropout, _keys(keys, on), number)
            Z_local = layer(on, Z_local)
        assert isinstance(Z_local, Tensor)
        return Z_local


def _keys(keys: DropoutKeys | None, graph: LayerGraph) -> DropoutKeys | None:
    """A ghost is dropped as at its owner: by its own id."""
    if keys is None or not isinstance(graph, Propagation):
        return keys
    return replace(keys, vertex_ids=graph.sources)
