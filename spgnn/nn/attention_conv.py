"""What layers that weigh their neighbours have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.attention import EdgeDropout
from spgnn.errors import InputError, check_choice, check_number
from spgnn.nn.block import Block
from spgnn.nn.convolution import (
    Convolution,
    Linear,
    check_channels,
    check_options,
    lazy_parts,
    linear,
)
from spgnn.nn.dropout import DropoutKeys, dropout, keys_on
from spgnn.nn.edge_features import FILLS, EdgeOrder
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import (
    LayerGraph,
    LayerMatrix,
    Propagation,
    ids_of,
    matrix_of,
    own_rows,
)
from spgnn.sparse import CSR

# Keys of a layer's edges, and of its messages, are apart from those of its features.
EDGES, MESSAGES = 1 << 15, 1 << 14


class AttentionConv(Convolution):
    """What both layers have in common: heads, self-loops, edge features, skip and bias.

    Parameters
    ----------
    in_channels : int
        −1 finds them at the first call.
    out_channels : int
        Of each head.
    heads : int
    concat : bool
        Whether heads stand side by side, [heads · out_channels]; else they are averaged.
    negative_slope : float
        Of LeakyReLU.
    dropout : float
        Of attention weights: a function of the edge's original ends and the head.
    add_self_loops : bool
        Ask the graph for A + I; a matrix is taken as it is.
    edge_dim : int, optional
        Width of edge features; they need 1D and column cover.
    fill_value : float, Tensor or str
        Edge features of self-loops that are added, or how those of a vertex's other edges are
        reduced: add, mean, min, max, mul.
    bias, residual : bool
    message_dropout : float
        Of what is weighed, each element of a vertex's row, after scores were made of all of it: as
        the authors' own implementation of GAT does; PyG's has none. The same mask for all
        neighbours, a function of the vertex.
    options
        Of PyG's message passing; none but their defaults.

    Attributes
    ----------
    heads : int
    number : int
        Of the layer in its model, to tell the dropout of layers apart.
    """

    propagates = False
    drops_edges = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        residual: bool = False,
        *,
        message_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options)
        name = type(self).__name__
        check_channels(name, in_channels=in_channels, out_channels=out_channels, heads=heads)
        if isinstance(fill_value, str):
            check_choice(f"{name} fill_value", fill_value, FILLS)
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.negative_slope = check_number(f"{name} negative_slope", negative_slope, 0, 1e6)
        self.dropout = check_number(f"{name} dropout", dropout, 0, 1)
        if self.dropout == 1:
            raise InputError(f"{name}: dropout of all edges leaves nothing")
        self.message_dropout = check_number(f"{name} message_dropout", message_dropout, 0, 1)
        if self.message_dropout == 1:
            raise InputError(f"{name}: dropout of all messages leaves nothing")
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.number = 0
        width = heads * out_channels
        self.lin_edge = None if edge_dim is None else linear(edge_dim, width, bias=False)
        total = width if concat else out_channels
        self.res = linear(in_channels, total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(total)) if bias else None
        self._edge_order = EdgeOrder()
        self._make(in_channels, width, bias=bias)
        if not any(lazy_parts(self)):
            self.reset()

    @abstractmethod
    def _make(self, in_channels: int, width: int, *, bias: bool) -> None:
        """Make the weights of features and scores."""

    def forward(
        self,
        H_local: Features,
        graph: LayerGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """H_local [columns, f_in] to [rows, heads · out_channels], or their mean. Collective.

        Parameters
        ----------
        H_local : Tensor or CSR
        graph : what the layer works on
        edge_attr : Tensor [local edges, edge_dim], optional
            Of ``graph.edge_index``, or of the nonzeros of a matrix's ``local_pattern``. By default,
            the graph's own.
        keys : DropoutKeys, optional
            Only in training with dropout.

        Raises
        ------
        InputError
            If features are propagated already, or the matrix is distributed in a way that adds up
            what is not weighed yet.
        """
        if isinstance(H_local, Propagated):
            raise InputError("attention weighs features themselves; A·X adds them up already")
        if edge_attr is None and self.edge_dim is not None:
            edge_attr = getattr(graph, "edge_attr", None)
        if (edge_attr is None) != (self.edge_dim is None):
            raise InputError(
                f"{type(self).__name__} with edge_dim={self.edge_dim} needs "
                + ("no edge_attr" if self.edge_dim is None else "edge_attr")
            )
        A = self.matrix(graph)
        edges = None
        if edge_attr is not None and self.lin_edge is not None:
            fill = self.fill_value if self.add_self_loops else None
            edges = self.lin_edge(self._edge_order.features(graph, A, edge_attr, fill))
        out = self._attend(H_local, graph, A, edges, keys)
        if not self.concat:
            out = out.unflatten(1, (self.heads, self.out_channels)).mean(1)
        if self.res is not None:
            out = out + mapped_of_own(self.res, graph, H_local)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        # The gradient needs what attention made; the next layer may overwrite what it is given.
        untouched = self.concat and self.res is None and self.bias is None
        return out.clone() if untouched else out

    @abstractmethod
    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: LayerMatrix,
        edges: Tensor | None,
        keys: DropoutKeys | None,
    ) -> Tensor:
        """Weighted sums [rows, heads · out_channels]."""

    def messages(self, rows: Tensor, graph: LayerGraph, keys: DropoutKeys | None) -> Tensor | None:
        """What is weighed where that is not the rows that scores are made of.

        Rows without data stand for those of training: they tell what moves there.

        Parameters
        ----------
        rows : Tensor [columns, heads · out_channels]
        graph : LayerGraph
        keys : DropoutKeys, optional

        Returns
        -------
        Tensor [columns, heads, out_channels] or None
        """
        if not self.message_dropout or not (rows.is_meta or keys is not None):
            return None
        if keys is not None:
            keys = keys_on(keys, ids_of(graph))
        made = dropout(rows, self.message_dropout, keys, self.number | MESSAGES)
        assert isinstance(made, Tensor)
        return self.by_head(made)

    def by_head(self, rows: Tensor) -> Tensor:
        """Rows of all heads side by side as [rows, heads, columns of each]."""
        return rows.view(len(rows), self.heads, rows.shape[1] // self.heads)

    def matrix(self, graph: LayerGraph) -> LayerMatrix:
        """The matrix whose nonzeros are weighed. Collective when first asked."""
        return matrix_of(graph, "loops" if self.add_self_loops else "none")

    def dropped(self, graph: LayerGraph, keys: DropoutKeys | None) -> EdgeDropout | None:
        """Dropout of the edges of a graph; none without keys."""
        if keys is None or not self.dropout:
            return None
        key = keys.key(self.number | EDGES)
        if isinstance(graph, Propagation):
            return EdgeDropout(self.dropout, key, graph.sources, graph.targets)
        if isinstance(graph, Block):
            return EdgeDropout(self.dropout, key, graph.vertex_ids)
        return EdgeDropout(self.dropout, key, keys.vertex_ids)

    def extra_repr(self) -> str:
        """Widths of a head, and how many there are."""
        return f"{self.out_channels}, heads={self.heads}, concat={self.concat}"


def mapped(layer: Linear, H: Tensor | CSR) -> Tensor:
    """A linear layer on features, however they are stored."""
    if isinstance(H, Tensor):
        made: Tensor = layer(H)
        return made
    made = kernels.spmm(H, layer.weight.T)
    return made if layer.bias is None else made + layer.bias


def mapped_of_own(layer: Linear, graph: LayerGraph, H: Tensor | CSR) -> Tensor:
    """The same of the vertices whose rows a layer makes."""
    if isinstance(H, Tensor):
        return mapped(layer, own_rows(graph, H))
    return own_rows(graph, mapped(layer, H))
