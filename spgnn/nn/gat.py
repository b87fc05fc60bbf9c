"""Layers that weigh their neighbours: GAT (Veličković et al. 2018), GATv2 (Brody et al. 2022)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spgnn.attention import EdgeDropout
from spgnn.attention.scores import head_scores
from spgnn.autograd import autocast
from spgnn.errors import InputError, check_choice, check_number, check_rate
from spgnn.graph.features import Features
from spgnn.graph.protocol import Aggregation, AttentionScores, Graph, Matrix, Normalisation
from spgnn.nn.convolution import (
    Channels,
    Convolution,
    Linear,
    both,
    lazy_parts,
    linear_of,
    linear_of_own,
)
from spgnn.nn.layers import EDGES
from spgnn.nn.rowwise import DropoutKeys, dropout, keys_on
from spgnn.sparse import CSR, SUM_DTYPE

MESSAGES = 1 << 14  # keys of dropped messages are apart from those of features and edges
FILLS = ("add", "sum", "mean", "min", "max", "mul")
_REDUCED = {"add": "sum", "min": "amin", "max": "amax", "mul": "prod"}


class AttentionConv(Convolution):
    """Base of both: heads, self-loops, edge features, skip and bias.

    Parameters
    ----------
    in_channels : int, or a pair
    out_channels : int
        Of each head.
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
    message_dropout : float
        Of each element of a vertex's row, after scores were computed from all of it, as the
        authors' own implementation of GAT does; PyG's has none. The same mask for all neighbours, a
        function of the vertex.

    Attributes
    ----------
    heads : int
    number : int
        Of the layer in its model, to tell the dropout of layers apart.
    """

    uses_keys = True
    uses_edges = True
    messages_last: ClassVar[bool]  # whether dropped messages are the last columns of each head

    def __init__(
        self,
        in_channels: Channels,
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
        super().__init__(
            options, pair=True, in_channels=in_channels, out_channels=out_channels, heads=heads
        )
        name = type(self).__name__
        if isinstance(fill_value, str):
            check_choice(f"{name} fill_value", fill_value, FILLS)
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.negative_slope = check_number(f"{name} negative_slope", negative_slope, 0, 1e6)
        self.dropout = check_rate(f"{name} dropout", dropout)
        self.message_dropout = check_rate(f"{name} message_dropout", message_dropout)
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.number = 0
        width = heads * out_channels
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        total = width if concat else out_channels
        self.res = None
        if residual:
            self.res = Linear(both(in_channels)[1], total, bias=False, of_targets=True)
        self.bias = nn.Parameter(torch.zeros(total)) if bias else None
        self.uses_own_rows = residual
        self._edge_order = EdgeOrder()
        self._add_weights(in_channels, width, bias=bias)
        if not any(lazy_parts(self)):
            self.reset()

    @abstractmethod
    def _add_weights(self, in_channels: Channels, width: int, *, bias: bool) -> None:
        """Add the weights of features and scores."""

    @property
    def normalisation(self) -> Normalisation:
        """The matrix over whose nonzeros neighbours are weighed."""
        return "loops" if self.add_self_loops else "none"

    @property
    def shift(self) -> nn.Parameter | None:
        """The bias."""
        return self.bias

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """Weighted sums over neighbours; refuses A·X, and features of edges without a weight."""
        if not isinstance(H, Tensor | CSR):
            raise InputError("attention weighs features themselves; A·X adds them up already")
        if edge_attr is None and self.edge_dim is not None:
            edge_attr = graph.local_edges.attr
        if (edge_attr is None) != (self.edge_dim is None):
            raise InputError(
                f"{type(self).__name__} with edge_dim={self.edge_dim} needs "
                + ("no edge_attr" if self.edge_dim is None else "edge_attr")
            )
        edges = None
        if edge_attr is not None and self.lin_edge is not None:
            fill = self.fill_value if self.add_self_loops else None
            A = graph.halo_matrix(self.normalisation)
            wide = edge_attr.to(self.lin_edge.weight.dtype)
            edges = self.lin_edge(self._edge_order.features(graph, A, wide, fill))
        operand, scores = self._scored(H, graph, edges, keys)
        request = Aggregation(operand, normalisation=self.normalisation, reduce="attention")
        return replace(request, scores=scores, dropped=self.dropped(graph, keys))

    def update(self, Z: Tensor, H: Features, graph: Graph) -> Tensor:
        """Heads side by side or averaged, and the skip."""
        out = self.messages_of(Z)
        if not self.concat:
            # A sum's gradient is a view; that of a mean would be divided head by head.
            out = out.unflatten(1, (self.heads, self.out_channels)).sum(1) / self.heads
        if self.res is not None:
            return out + linear_of_own(self.res, H, graph)
        # The gradient needs the result of attention; what follows may overwrite what it is given.
        return out.clone() if self.concat else out

    @abstractmethod
    def _scored(
        self, H: Tensor | CSR, graph: Graph, edges: Tensor | None, keys: DropoutKeys | None
    ) -> tuple[Tensor, AttentionScores]:
        """The rows that are weighed, and how."""

    def messages(self, rows: Tensor, graph: Graph, keys: DropoutKeys | None) -> Tensor | None:
        """The messages [columns, heads, channels] where they are not the rows that are scored.

        Rows without data stand for those of training: they tell what moves there.
        """
        if not self.message_dropout or not (rows.is_meta or keys is not None):
            return None
        if keys is not None:
            keys = keys_on(keys, graph.vertex_ids)
        dropped = dropout(rows, self.message_dropout, keys, self.number | MESSAGES)
        assert isinstance(dropped, Tensor)
        return self.by_head(dropped)

    def messages_of(self, Z: Tensor) -> Tensor:
        """The columns of attention's result that are messages."""
        by_head, width = self.by_head(Z), self.out_channels
        if by_head.shape[2] == width:
            return Z
        return (by_head[..., -width:] if self.messages_last else by_head[..., :width]).flatten(1)

    def by_head(self, rows: Tensor) -> Tensor:
        """Rows of all heads side by side as [rows, heads, columns of each]."""
        return rows.view(len(rows), self.heads, rows.shape[1] // self.heads)

    def dropped(self, graph: Graph, keys: DropoutKeys | None) -> EdgeDropout | None:
        """Dropout of the edges of a graph; none without keys."""
        if keys is None or not self.dropout:
            return None
        return EdgeDropout(self.dropout, keys.key(self.number | EDGES), keys.vertex_ids)

    def extra_repr(self) -> str:
        """Widths of a head, and how many there are."""
        return f"{self.out_channels}, heads={self.heads}, concat={self.concat}"


class GATConv(AttentionConv):
    """``z'_i = Σ_j α_ij W h_j + b`` with ``α_i = softmax LeakyReLU(a_d·W h_i + a_s·W h_j)``.

    Parameters are those of PyG's layer, and so are their names. One row of W H travels, whatever
    the number of heads; scores are computed where they are needed.

    Parameters
    ----------
    in_channels, out_channels, heads, …
        See :class:`AttentionConv`.
    """

    messages_last = False

    def _add_weights(self, in_channels: Channels, width: int, *, bias: bool) -> None:
        shape = 1, self.heads, self.out_channels
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = Linear(in_channels, width, bias=False)
        else:
            self.lin_src = Linear(in_channels[0], width, bias=False)
            self.lin_dst = Linear(in_channels[1], width, bias=False, of_targets=True)
        self.att_src = nn.Parameter(torch.zeros(shape))
        self.att_dst = nn.Parameter(torch.zeros(shape))
        self.att_edge = None if self.edge_dim is None else nn.Parameter(torch.zeros(shape))

    def _scored(
        self, H: Tensor | CSR, graph: Graph, edges: Tensor | None, keys: DropoutKeys | None
    ) -> tuple[Tensor, AttentionScores]:
        of_sources, of_targets = self.lin_src or self.lin, self.lin_dst or self.lin
        assert isinstance(of_sources, Linear)
        assert isinstance(of_targets, Linear)
        Z, a = self.weighed(linear_of(of_sources, H)), self.att_src[0]
        wide = SUM_DTYPE.get(Z.dtype, Z.dtype)
        to_target = self.att_dst[0].to(wide)
        if of_sources is of_targets and not graph.bipartite:
            d = graph.own_scores(Z, to_target)
        else:
            d = head_scores(self.weighed(linear_of_own(of_targets, H, graph)), to_target)
        of_edges = None
        if edges is not None and self.att_edge is not None:
            of_edges = head_scores(edges, self.att_edge[0].to(wide))
        messages = self.messages(Z, graph, keys)
        if messages is not None:
            # Scores are of the whole row: they travel as one more column of each head.
            s = head_scores(Z, a.to(wide)).to(Z.dtype)
            Z = torch.cat((messages, s[..., None]), 2).flatten(1)
            a = nn.functional.pad(torch.zeros_like(a), (0, 1), value=1.0)
        return Z, AttentionScores(a, d, self.negative_slope, edges=of_edges)

    def weighed(self, rows: Tensor) -> Tensor:
        """The rows that are scored and weighed, of W h, which they may overwrite."""
        return autocast(rows)  # type: ignore[no-any-return]


class GATv2Conv(AttentionConv):
    """The same with ``α_i = softmax a·LeakyReLU(W_r h_i + b_r + W_l h_j + b_l)``.

    Parameters are those of PyG's layer, and so are their names: ``lin_l`` of sources, which is also
    what is weighed, and ``lin_r`` of destinations.

    Parameters
    ----------
    in_channels, out_channels, heads, …
        See :class:`AttentionConv`.
    share_weights : bool
        Whether sources and destinations have the same matrix.
    """

    messages_last = True

    def __init__(
        self,
        in_channels: Channels,
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
        *,
        message_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        self.share_weights = share_weights
        widths = in_channels, out_channels, heads, concat
        loops = add_self_loops, edge_dim, fill_value
        options["message_dropout"] = message_dropout
        super().__init__(*widths, negative_slope, dropout, *loops, bias, residual, **options)

    def _add_weights(self, in_channels: Channels, width: int, *, bias: bool) -> None:
        sources, targets = both(in_channels)
        self.lin_l = Linear(sources, width, bias=bias)
        self.lin_r = self.lin_l
        if not self.share_weights:
            self.lin_r = Linear(targets, width, bias=bias, of_targets=True)
        self.att = nn.Parameter(torch.zeros(1, self.heads, self.out_channels))

    def _scored(
        self, H: Tensor | CSR, graph: Graph, edges: Tensor | None, keys: DropoutKeys | None
    ) -> tuple[Tensor, AttentionScores]:
        Y, a = autocast(linear_of(self.lin_l, H)), self.att[0]
        if self.share_weights and not graph.bipartite:
            X = graph.own(Y)
        else:
            X = autocast(linear_of_own(self.lin_r, H, graph))
        messages = self.messages(Y, graph, keys)
        if messages is not None:
            # Messages travel next to the rows that are scored, in columns that a does not look at.
            Y = torch.cat((self.by_head(Y), messages), 2).flatten(1)
            X, a = self._with_zeros(X), nn.functional.pad(a, (0, self.out_channels))
            edges = None if edges is None else self._with_zeros(edges)
        return Y, AttentionScores(a, X, self.negative_slope, joint=True, edges=edges)

    def _with_zeros(self, rows: Tensor) -> Tensor:
        """Rows with as many zeros next to the columns of each head."""
        return nn.functional.pad(self.by_head(rows), (0, self.out_channels)).flatten(1)


@dataclass(eq=False)
class EdgeOrder:
    """Puts features of a graph's edges into the order of a matrix, and adds those of self-loops."""

    _seen: tuple[Tensor, Matrix, Tensor] | None = field(default=None, repr=False)

    def features(
        self, graph: Graph, A: Matrix, edge_attr: Tensor, fill: float | Tensor | str | None
    ) -> Tensor:
        """Features of the nonzeros of own rows, [nonzeros, f]."""
        A.attention.check_edges(None, needed=True)
        attr = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
        index = graph.local_edges.order
        if attr.is_meta:  # no data, and no order
            return attr.new_empty(A.attention.edges, attr.shape[1])
        if index is None:
            A.attention.check_edges(attr)
            return attr
        if attr.shape[0] != index.shape[1]:
            raise InputError(
                f"this rank has {index.shape[1]} edges, there are features of {attr.shape[0]}"
            )
        places = self._places(index, A, loops=fill is not None)
        if not len(attr):  # all of them are loops that are made
            attr = attr.new_zeros(1, attr.shape[1])
        features = attr.index_select(0, places.clamp(min=0))
        if fill is None:
            return features
        loops = places < 0
        rows = _rows(A)
        of_loops = _of_loops(features[~loops], rows[~loops], rows[loops], A.rows, fill)
        return features.masked_scatter(loops[:, None], of_loops.to(features.dtype))

    def _places(self, index: Tensor, A: Matrix, *, loops: bool) -> Tensor:
        """The edge of each nonzero, −1 for self-loops that are made."""
        if self._seen is not None and self._seen[0] is index and self._seen[1] is A:
            return self._seen[2]
        pattern, rows = A.local_pattern, _rows(A)
        columns, width = pattern.indices.long(), pattern.shape[1]
        nonzeros, edges = rows * width + columns, index[1] * width + index[0]
        if not len(edges):
            edges = edges.new_full((1,), -1)  # which is no nonzero
        order = edges.argsort(stable=True)
        ranked, nth = edges[order], _occurrence(nonzeros)  # of edges between the same two vertices
        at = torch.searchsorted(ranked, nonzeros).add_(nth).clamp_(max=len(edges) - 1)
        present = ranked[at] == nonzeros
        places = torch.where(present, order[at], -1)
        if loops:
            places = places.masked_fill(rows == columns, -1)
        elif not bool(present.all()) or index.shape[1] != len(nonzeros):
            raise InputError(
                "edge features of a graph with several edges between the same vertices: coalesce "
                "them, or give edge_index to a layer of PyG"
            )
        self._seen = index, A, places
        return places


def _occurrence(keys: Tensor) -> Tensor:
    """The number of keys before each one that are equal to it."""
    ranked, order = keys.sort(stable=True)
    nth = torch.empty_like(order)
    nth[order] = torch.arange(len(keys), device=keys.device) - torch.searchsorted(ranked, ranked)
    return nth


def _rows(A: Matrix) -> Tensor:
    pattern = A.local_pattern
    rows = torch.arange(pattern.shape[0], device=pattern.device)
    return rows.repeat_interleave(pattern.row_lengths)


def _of_loops(
    attr: Tensor, rows: Tensor, loops: Tensor, count: int, fill: float | Tensor | str
) -> Tensor:
    """Features of the self-loops of some vertices, computed from those of their other edges."""
    if not isinstance(fill, str):
        value = torch.as_tensor(fill, dtype=attr.dtype, device=attr.device)
        return value.expand(len(loops), attr.shape[1])
    how = _REDUCED.get(fill, fill)
    reduced = attr.new_full((count, attr.shape[1]), 1.0 if fill == "mul" else 0.0)
    places = rows[:, None].expand_as(attr)
    return reduced.scatter_reduce(0, places, attr, how, include_self=fill == "mul")[loops]
