"""Graph attention networks (Veličković et al. 2018; Brody et al. 2022) on a distributed matrix."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.attention import EdgeDropout, attend, attend_v2, head_scores
from spgnn.autograd import autocast
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
from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.edge_features import FILLS, EdgeOrder
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import (
    Graph,
    LayerGraph,
    LayerMatrix,
    Propagation,
    by_layer,
    matrix_of,
    own_rows,
)
from spgnn.nn.stack import Stack
from spgnn.sparse import CSR, SUM_DTYPE

# Keys of a layer's edges are apart from those of its features.
EDGES = 1 << 15


class AttentionConv(Convolution):
    """What both layers have in common: heads, self-loops, edge features, skip and bias.

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
        heads: int,
        *,
        concat: bool,
        negative_slope: float,
        dropout: float,
        add_self_loops: bool,
        edge_dim: int | None,
        fill_value: float | Tensor | str,
        bias: bool,
        residual: bool,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_channels(name, in_channels=in_channels, out_channels=out_channels, heads=heads)
        if isinstance(fill_value, str):
            check_choice(f"{name} fill_value", fill_value, FILLS)
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.negative_slope = check_number(f"{name} negative_slope", negative_slope, -1e6, 1e6)
        self.dropout = check_number(f"{name} dropout", dropout, 0, 1)
        if self.dropout == 1:
            raise InputError(f"{name}: dropout of all edges leaves nothing")
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.number = 0
        width = heads * out_channels
        self.lin_edge = None if edge_dim is None else linear(edge_dim, width, bias=False)
        total = width if concat else out_channels
        self.res = linear(in_channels, total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(total)) if bias else None
        self._edge_order = EdgeOrder()

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
        out = self._attend(H_local, graph, A, edges, self.dropped(graph, keys))
        if not self.concat:
            out = out.unflatten(1, (self.heads, self.out_channels)).mean(1)
        if self.res is not None:
            out = out + _of_own(self.res, graph, H_local)
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
        dropout: EdgeDropout | None,
    ) -> Tensor:
        """Weighted sums [rows, heads · out_channels]."""

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


class GATConv(AttentionConv):
    """``z'_i = Σ_j α_ij W h_j + b`` with ``α_i = softmax LeakyReLU(a_d·W h_i + a_s·W h_j)``.

    Parameters are those of PyG's layer of that name, and so are their names. One row of W H
    travels, whatever the number of heads; scores are made where they are needed.

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
    options
        Of PyG's message passing; none but their defaults.
    """

    def __init__(  # noqa: PLR0917 - as PyG orders them
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
        **options: Any,
    ) -> None:
        check_options(self, options)
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat=concat,
            negative_slope=negative_slope,
            dropout=dropout,
            add_self_loops=add_self_loops,
            edge_dim=edge_dim,
            fill_value=fill_value,
            bias=bias,
            residual=residual,
        )
        self.lin = linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.zeros(1, heads, out_channels))
        self.att_edge = None
        if self.edge_dim is not None:
            self.att_edge = nn.Parameter(torch.zeros(1, heads, out_channels))
        if not any(lazy_parts(self)):
            self.reset()

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: LayerMatrix,
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


class GATv2Conv(AttentionConv):
    """The same with ``α_i = softmax a·LeakyReLU(W_r h_i + b_r + W_l h_j + b_l)``.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_l`` of sources,
    which is also what is weighed, and ``lin_r`` of destinations.

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
    bias : bool
    share_weights : bool
        Whether sources and destinations have the same matrix.
    residual : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    def __init__(  # noqa: PLR0917 - as PyG orders them
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
        share_weights: bool = False,
        residual: bool = False,
        **options: Any,
    ) -> None:
        check_options(self, options)
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat=concat,
            negative_slope=negative_slope,
            dropout=dropout,
            add_self_loops=add_self_loops,
            edge_dim=edge_dim,
            fill_value=fill_value,
            bias=bias,
            residual=residual,
        )
        self.share_weights = share_weights
        self.lin_l = linear(in_channels, heads * out_channels, bias=bias)
        self.lin_r = self.lin_l
        if not share_weights:
            self.lin_r = linear(in_channels, heads * out_channels, bias=bias)
        self.att = nn.Parameter(torch.zeros(1, heads, out_channels))
        if not any(lazy_parts(self)):
            self.reset()

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: LayerMatrix,
        edges: Tensor | None,
        dropout: EdgeDropout | None,
    ) -> Tensor:
        Y_local = autocast(_mapped(self.lin_l, H_local))
        if self.share_weights:
            X_own = own_rows(graph, Y_local)
        else:
            X_own = autocast(_of_own(self.lin_r, graph, H_local))
        return attend_v2(
            A,
            Y_local,
            self.att[0],
            X_own,
            slope=self.negative_slope,
            edge_features=edges,
            dropout=dropout,
        )


class GAT(Stack):
    """Layers of :class:`GATConv`, or of :class:`GATv2Conv`; as PyG's, dropout is of edges as well.

    Heads stand side by side but in the layer that makes the output, which averages them. So hidden
    widths have to be multiples of their number.

    Parameters
    ----------
    in_channels, hidden_channels, num_layers, …
        See :class:`Stack`.
    options
        ``heads``; ``out_heads`` of the layer that makes the output, by default as many;
        ``attention_dropout`` of edges, by default as of features; ``concat``, ``v2``, and what else
        the layers take.
    """

    convolution: ClassVar[type[AttentionConv]] = GATConv

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        for number, layer in enumerate(self.convolutions):
            assert isinstance(layer, AttentionConv)
            layer.number = number

    def fetch_ids(self, graph: Graph, vertex_ids: Tensor) -> None:
        """Fetch what dropout has to know of other ranks' vertices; else the first call does.

        Collective.

        Parameters
        ----------
        graph : as for a call
        vertex_ids : Tensor int64 [own rows]
            Those of the keys, the same object.
        """
        keys = DropoutKeys(vertex_ids, 0, 0)
        for layer, on in zip(self.convs, by_layer(graph, len(self.convs)), strict=True):
            assert isinstance(layer, AttentionConv)
            dropped = layer.dropped(on, keys)
            if dropped is not None:
                layer.matrix(on).attention.ids(dropped.sources, dropped.targets)

    def init_conv(self, f_in: int, f_out: int, *, last: bool, **options: Any) -> Convolution:
        """A layer of these widths."""
        heads, out_heads = options.pop("heads", 1), options.pop("out_heads", None)
        dropped = options.pop("attention_dropout", None)
        kind = GATv2Conv if options.pop("v2", False) else self.convolution
        concat = options.pop("concat", True) and not last
        if last and out_heads is not None:
            heads = out_heads
        if concat and f_out % heads:
            raise InputError(
                f"{type(self).__name__}: {heads} heads side by side need hidden_channels that are "
                f"a multiple of it, got {f_out}"
            )
        made: Any = kind
        try:
            found: Convolution = made(
                f_in,
                f_out // heads if concat else f_out,
                heads,
                concat,
                dropout=self.dropout if dropped is None else dropped,
                **options,
            )
        except TypeError as error:
            raise InputError(f"{type(self).__name__}: {error}") from None
        return found


class GATv2(GAT):
    """Layers of :class:`GATv2Conv`."""

    convolution = GATv2Conv


def _mapped(layer: Linear, H: Tensor | CSR) -> Tensor:
    """A linear layer on features, however they are stored."""
    if isinstance(H, Tensor):
        made: Tensor = layer(H)
        return made
    made = kernels.spmm(H, layer.weight.T)
    return made if layer.bias is None else made + layer.bias


def _of_own(layer: Linear, graph: LayerGraph, H: Tensor | CSR) -> Tensor:
    """The same of the vertices whose rows a layer makes."""
    if isinstance(H, Tensor):
        return _mapped(layer, own_rows(graph, H))
    return own_rows(graph, _mapped(layer, H))
