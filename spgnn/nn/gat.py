"""Graph attention networks (Veličković et al. 2018; Brody et al. 2022) on a distributed matrix."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.attention import EdgeDropout, attend, attend_v2, head_scores
from spgnn.autograd import autocast
from spgnn.blocks import take_rows
from spgnn.errors import InputError
from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.edge_features import FILLS, EdgeOrder
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import LayerGraph, Propagation, matrix_of, own_rows
from spgnn.nn.stack import Convolution, glorot_, linear
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.spmm import DistMatrix

# Keys of a layer's edges are apart from those of its features.
EDGES = 1 << 15


class AttentionConv(Convolution):
    """What both layers have in common: heads, self-loops, edge features, skip and bias.

    Parameters
    ----------
    in_channels : int
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
    number : int
        Of the layer in its model, to tell the dropout of layers apart.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        *,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        residual: bool = False,
        number: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(fill_value, str) and fill_value not in FILLS:
            raise InputError(f"fill_value must be a number or one of {', '.join(FILLS)}")
        if heads < 1 or not 0 <= dropout < 1:
            raise InputError(
                f"heads must be at least 1 and dropout in [0, 1), got {heads} and {dropout}"
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.number = number
        self.lin_edge: nn.Linear | None = None
        if edge_dim is not None:
            self.lin_edge = linear(edge_dim, heads * out_channels, bias=False)
        total = heads * out_channels if concat else out_channels
        self.res = linear(in_channels, total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(total)) if bias else None
        self._edge_order = EdgeOrder()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices and vectors anew (Glorot & Bengio 2010, uniform)."""
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                glorot_(parameter if parameter.dim() == 2 else parameter[0], generator)

    def forward(
        self,
        H_local: Features,
        graph: LayerGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """H_local [columns, in_channels] to [rows, heads · out_channels], or their mean. Collective.

        Parameters
        ----------
        H_local : Tensor or CSR
        graph : what the layer works on
        edge_attr : Tensor [local edges, edge_dim], optional
            Of ``graph.edge_index``, or of the nonzeros of a matrix's ``local_pattern``.
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
        if (edge_attr is None) != (self.edge_dim is None):
            raise InputError(
                f"a layer with edge_dim={self.edge_dim} needs "
                + ("no edge_attr" if self.edge_dim is None else "edge_attr")
            )
        A = matrix_of(graph, "loops" if self.add_self_loops else "none")
        edges = None
        if edge_attr is not None and self.lin_edge is not None:
            fill = self.fill_value if self.add_self_loops else None
            edges = self.lin_edge(self._edge_order.features(graph, A, edge_attr, fill))
        out = self._attend(H_local, graph, A, edges, self._dropped(graph, keys))
        if not self.concat:
            out = out.unflatten(1, (self.heads, self.out_channels)).mean(1)
        if self.res is not None:
            out = out + _mapped(self.res, _own(graph, H_local))
        if self.bias is not None:
            out = out + self.bias
        # The gradient needs what attention made; the next layer may overwrite what it is given.
        untouched = self.concat and self.res is None and self.bias is None
        return out.clone() if untouched else out

    @abstractmethod
    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: DistMatrix,
        edges: Tensor | None,
        dropout: EdgeDropout | None,
    ) -> Tensor:
        """Weighted sums [rows, heads · out_channels]."""

    def _dropped(self, graph: LayerGraph, keys: DropoutKeys | None) -> EdgeDropout | None:
        if keys is None or not self.dropout:
            return None
        key = keys.key(self.number | EDGES)
        if isinstance(graph, Propagation):
            return EdgeDropout(self.dropout, key, graph.sources, graph.targets)
        return EdgeDropout(self.dropout, key, keys.vertex_ids)

    def extra_repr(self) -> str:
        """As PyG writes it."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATConv(AttentionConv):
    """``z'_i = Σ_j α_ij W h_j + b`` with ``α_i = softmax LeakyReLU(a_d·W h_i + a_s·W h_j)``.

    Parameters are those of PyG's layer of that name, and so are their names. One row of W H
    travels, whatever the number of heads; scores are made where they are needed.

    Parameters
    ----------
    in_channels, out_channels, …
        See :class:`AttentionConv`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, negative_slope, **options)
        self.lin = linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.att_edge = None
        if self.edge_dim is not None:
            self.att_edge = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.reset()

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: DistMatrix,
        edges: Tensor | None,
        dropout: EdgeDropout | None,
    ) -> Tensor:
        Z_local = autocast(_mapped(self.lin, H_local))
        wide = SUM_DTYPE.get(Z_local.dtype, Z_local.dtype)
        d = head_scores(own_rows(graph, Z_local), self.att_dst[0].to(wide))
        scores = None
        if edges is not None and self.att_edge is not None:
            scores = head_scores(edges, self.att_edge[0].to(wide))
        return attend(
            A,
            Z_local,
            self.att_src[0],
            d,
            slope=self.negative_slope,
            edge_scores=scores,
            dropout=dropout,
        )

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its matrix, all heads together."""
        return f_in * f_out


class GATv2Conv(AttentionConv):
    """The same with ``α_i = softmax a·LeakyReLU(W_r h_i + b_r + W_l h_j + b_l)``.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_l`` of sources,
    which is also what is weighed, and ``lin_r`` of destinations.

    Parameters
    ----------
    in_channels, out_channels, …
        See :class:`AttentionConv`.
    share_weights : bool
        Whether both are the same.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        *,
        bias: bool = True,
        share_weights: bool = False,
        **options: Any,
    ) -> None:
        options["bias"] = bias
        super().__init__(in_channels, out_channels, heads, concat, negative_slope, **options)
        self.share_weights = share_weights
        self.lin_l = linear(in_channels, heads * out_channels, bias=bias)
        self.lin_r = self.lin_l
        if not share_weights:
            self.lin_r = linear(in_channels, heads * out_channels, bias=bias)
        self.att = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.reset()

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: DistMatrix,
        edges: Tensor | None,
        dropout: EdgeDropout | None,
    ) -> Tensor:
        Y_local = autocast(_mapped(self.lin_l, H_local))
        if self.share_weights:
            X_own = own_rows(graph, Y_local)
        else:
            X_own = autocast(_mapped(self.lin_r, _own(graph, H_local)))
        return attend_v2(
            A,
            Y_local,
            self.att[0],
            X_own,
            slope=self.negative_slope,
            edge_features=edges,
            dropout=dropout,
        )

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its two matrices, all heads together."""
        return 2 * f_in * f_out


def _mapped(layer: nn.Linear, H: Tensor | CSR) -> Tensor:
    """A linear layer on features, however they are stored."""
    if isinstance(H, Tensor):
        made: Tensor = layer(H)
        return made
    made = kernels.spmm(H, layer.weight.T)
    return made if layer.bias is None else made + layer.bias


def _own(graph: LayerGraph, H: Tensor | CSR) -> Tensor | CSR:
    """Features of the vertices whose rows a layer makes."""
    if isinstance(H, Tensor):
        return own_rows(graph, H)
    if not isinstance(graph, Propagation) or graph.targets is None:
        return H
    return take_rows(H, graph.targets)
