"""What all models here are: layers, with ReLU and dropout between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from spgnn.errors import InputError
from spgnn.nn.dropout import DropoutKeys, dropout
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import Graph, LayerGraph, Propagation, by_layer


class Convolution(nn.Module):
    """Base of layers on a graph."""

    @abstractmethod
    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Z_local must be a tensor of its own, which the next layer may overwrite.
        """

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices anew (Glorot & Bengio 2010, uniform); all else is left as it is."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                glorot_(parameter, generator)

    @staticmethod
    @abstractmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in the matrices of a layer of these widths."""


def multiplies_first(H_local: Tensor, f_out: int) -> bool:
    """Whether A (H W) moves fewer bytes than (A H) W, with W [f_in, f_out].

    Each costs the width that travels, forward and backward; but the input needs no gradient, so
    (A X) W has no product in backward.
    """
    f_in = H_local.shape[1]
    if not torch.is_grad_enabled():
        return f_out <= f_in
    return 2 * f_out <= f_in * (2 if H_local.requires_grad else 1)


def glorot_(matrix: Tensor, generator: torch.Generator | None = None) -> None:
    """Overwrite a matrix with uniform draws (Glorot & Bengio 2010)."""
    bound = (6 / sum(matrix.shape)) ** 0.5
    with torch.no_grad():
        matrix.uniform_(-bound, bound, generator=generator)


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
    in_channels : int
        Features.
    hidden_channels : int, or a sequence of one width a hidden layer
    num_layers : int
    out_channels : int, optional
        By default as many as the last hidden layer would have.
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
        What the layers are; made of the two widths and the options.
    """

    convolution: ClassVar[type[Convolution]]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        *,
        input_dropout: bool = True,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.input_dropout = input_dropout
        widths = _widths(in_channels, hidden_channels, num_layers, out_channels)
        self.convs = nn.ModuleList(
            self.convolution(f_in, f_out, **options) for f_in, f_out in pairwise(widths)
        )
        generator = torch.Generator().manual_seed(seed)
        for layer in self.convolutions:
            layer.reset(generator)

    @classmethod
    def of(cls, widths: Sequence[int], **options: Any) -> Self:
        """A model of these widths: features, those of the hidden layers, classes."""
        first, *hidden, last = widths
        return cls(first, hidden, len(hidden) + 1, last, **options)

    @classmethod
    def size(cls, widths: Sequence[int]) -> int:
        """Numbers in the matrices of a model of these widths."""
        return sum(cls.convolution.size(*pair) for pair in pairwise(widths))

    @property
    def convolutions(self) -> list[Convolution]:
        """The layers."""
        return [layer for layer in self.convs if isinstance(layer, Convolution)]

    def forward(self, X_local: Features, graph: Graph, keys: DropoutKeys | None = None) -> Tensor:
        """Logits [rows of the last layer, classes]. Collective.

        Parameters
        ----------
        X_local : Tensor or CSR [columns of the first layer, features], or Propagated
            Propagated features have the rows that the first layer makes. They cannot be dropped:
            A·dropout(X) changes every epoch.
        graph : DistMatrix, a graph that has matrices, or a sequence of one Propagation a layer
            A matrix stands for every layer. Each layer of a sequence takes the rows that the one
            before it made.
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
            Z_local = layer(Z_local, on)
        assert isinstance(Z_local, Tensor)
        return Z_local


def _keys(keys: DropoutKeys | None, graph: LayerGraph) -> DropoutKeys | None:
    """A ghost is dropped as at its owner: by its own id."""
    if keys is None or not isinstance(graph, Propagation):
        return keys
    return replace(keys, vertex_ids=graph.sources)


def _widths(
    in_channels: int, hidden: int | Sequence[int], num_layers: int, out_channels: int | None
) -> list[int]:
    """Features, what each hidden layer makes, classes."""
    if isinstance(hidden, int):
        hidden = [hidden] * (num_layers - (out_channels is not None))
    widths = [in_channels, *hidden] + ([] if out_channels is None else [out_channels])
    if len(widths) != num_layers + 1 or num_layers < 1:
        raise InputError(
            f"num_layers={num_layers} does not fit hidden_channels={list(hidden)} and "
            f"out_channels={out_channels}"
        )
    return widths
