"""Layers whose neighbours meet features of edges: GINE, NNConv, CGConv, Transformer, interaction.

What a layer does to an edge is split so that only what is not linear is done edge by edge: a linear
map of (edge, source, target) is the sum of three, two of which are of vertices.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.attention import EdgeDropout
from spgnn.errors import InputError, check_choice, check_integer, check_rate
from spgnn.graph.features import Features
from spgnn.graph.protocol import (
    Aggregation,
    AnyGraph,
    EdgeOperand,
    Graph,
    as_graph,
    dense,
    edge_dropout_factors,
)
from spgnn.kernels import edge_add, edge_softmax, edge_spmm, sddmm, spmm
from spgnn.kernels.edge_spmm import EDGE_REDUCTIONS
from spgnn.kernels.gemm import times_transposed
from spgnn.nn.convolution import Channels, Convolution, Linear, both, glorot_, lazy_parts
from spgnn.nn.layers import EDGES, GINConv, first_linear
from spgnn.nn.norm import BatchNorm, run_stage
from spgnn.nn.rowwise import DropoutKeys
from spgnn.pattern import described
from spgnn.sparse import CSR


def edge_rows(
    layer: nn.Module, graph: Graph, edge_attr: Tensor | None, rows: Tensor, width: int | None = None
) -> Tensor:
    """Features of edges [edges, f], those given or the graph's, in the dtype of `rows`."""
    name, attr = type(layer).__name__, graph.local_edges.attr if edge_attr is None else edge_attr
    if not isinstance(attr, Tensor) or not attr.is_floating_point() or attr.dim() not in (1, 2):
        raise InputError(
            f"{name} needs edge_attr, floating numbers [edges, f] of this rank's edges as "
            f"edge_index orders them; got {described(attr)}"
        )
    attr = attr[:, None] if attr.dim() == 1 else attr
    if width is not None and attr.shape[1] != width:
        raise InputError(f"{name}: edges have {attr.shape[1]} features, not {width}")
    if not attr.is_meta and len(attr) != graph.local_edges.pattern.nnz:
        edges = graph.local_edges.pattern.nnz
        raise InputError(f"{name}: this rank has {edges} edges, edge_attr {len(attr)} rows")
    return attr.to(rows.dtype)


def meet(
    graph: Graph,
    H: Tensor,
    to_target: Tensor,
    to_source: Tensor,
    bias: Tensor | None,
    of_edges: Tensor | None,
) -> Tensor:
    """``W_t h_i + W_s h_j + b + of_edges`` for each edge [edges, f], of which W_s h_j travels."""
    there = graph.halo_matrix().halo(times_transposed(H, to_source))
    here = times_transposed(graph.own(H), to_target)
    here = here if bias is None else here + bias
    pattern = graph.local_edges.pattern
    if of_edges is None:
        of_edges = there.new_zeros(pattern.nnz, there.shape[1])
    # Under torch.autocast what travelled is of another dtype.
    return edge_add(pattern, here.to(there.dtype), there, of_edges.to(there.dtype))


class GINEConv(GINConv):
    """``z_i = nn((1 + ε) h_i + Σ_j relu(h_j + e_ji W))`` (Hu et al. 2020), W is ``lin``.

    Parameters
    ----------
    nn, eps, train_eps
        As of :class:`GINConv`.
    edge_dim : int, optional
        Width of the edges' features; without it they are as wide as H, and there is no W.
    """

    uses_edges = True
    accepts_propagated = False

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nn, eps, train_eps, **options)
        self.edge_dim, self.lin = edge_dim, None
        if edge_dim is not None:
            first = first_linear(nn)[0]
            if first is None:
                raise InputError("GINEConv: edge_dim needs an nn that begins with a linear layer")
            self.lin = Linear(edge_dim, first.in_features)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``((1 + ε) h_i + Σ_j relu(h_j + e_ji W)) W_1``; H is dense."""
        rows = dense(H, "GINEConv")
        attr = edge_rows(self, graph, edge_attr, rows, self.edge_dim)
        attr = attr if self.lin is None else self.lin(attr)
        if attr.shape[1:] != rows.shape[1:]:
            raise InputError(
                f"GINEConv: edges have {list(attr.shape[1:])} features, vertices "
                f"{list(rows.shape[1:])}; edge_dim adds a linear layer"
            )
        request = super().aggregation(rows, graph, None, keys)
        return replace(request, edge=EdgeOperand("add_relu", attr))


class NNConv(Convolution):
    """``z_i = R h_i + Σ_j h_j Θ(e_ji) + b`` with matrices Θ that a perceptron makes of features.

    Gilmer et al. 2017; parameters and their names are PyG's. Of the matrices none is made: where
    the perceptron ends with ``W g(e) + c``, the sum is ``Σ_k (Σ_j g_k(e_ji) h_j) W_k + Σ_j h_j c``.

    Parameters
    ----------
    in_channels, out_channels : int
        A pair of the former is of sources and targets of two types.
    nn : Module
        A linear layer, or a sequence that ends with one, [edges, f] to [edges, in · out].
    aggr : {"add", "sum", "mean"}
    """

    uses_edges = True
    uses_own_rows = True

    def __init__(
        self,
        in_channels: Channels,
        out_channels: int,
        nn: torch.nn.Module,
        aggr: str = "add",
        root_weight: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options, pair=True, in_channels=in_channels, out_channels=out_channels)
        in_channels, targets = both(in_channels)
        check_choice("NNConv aggr", aggr, ("add", "sum", "mean"))
        last = nn[-1] if isinstance(nn, torch.nn.Sequential) and len(nn) else nn
        if not isinstance(last, torch.nn.Linear) or last.out_features != in_channels * out_channels:
            raise InputError(
                f"NNConv: nn must end with a linear layer to {in_channels} · {out_channels} numbers"
            )
        self.in_channels, self.out_channels, self.nn = in_channels, out_channels, nn
        self.reduce = "mean" if aggr == "mean" else "sum"
        self.lin = None
        if root_weight:
            self.lin = Linear(targets, out_channels, bias=False, of_targets=True)
        self.bias = torch.nn.Parameter(torch.zeros(out_channels)) if bias else None
        if self.lin is not None:
            glorot_(self.lin.weight)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the matrix of the vertex itself again; `nn` has rules of its own."""
        if self.lin is not None:
            glorot_(self.lin.weight, generator)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``Σ_k (Σ_j g_k(e_ji) h_j) W_k + R h_i``."""
        rows = dense(H, "NNConv")
        hidden, last = edge_rows(self, graph, edge_attr, rows), self.nn
        if isinstance(last, nn.Sequential):
            hidden, last = last[:-1](hidden), last[-1]
        assert isinstance(last, nn.Linear)
        matrices = last.weight
        if last.bias is not None:  # g is 1
            hidden = F.pad(hidden, (0, 1), value=1.0)
            matrices = torch.cat((matrices, last.bias[:, None]), 1)
        W = matrices.view(self.in_channels, self.out_channels, -1).permute(1, 2, 0).flatten(1)
        root = None if self.lin is None else self.lin.weight
        edge = EdgeOperand("outer", hidden)
        return Aggregation(rows, W, root, reduce=self.reduce, edge=edge)


class CGConv(Convolution):
    """``z_i = h_i + Σ_j σ(v_ij W_f + b_f) softplus(v_ij W_s + b_s)``, ``v_ij = [h_i, h_j, e_ji]``.

    Xie & Grossman 2018, for crystals; parameters and their names are PyG's.

    Parameters
    ----------
    channels : int, or a pair of it
        Of sources and targets of two types.
    dim : int
        Width of the edges' features; 0: there are none.
    aggr : {"add", "sum", "mean", "max", "min"}
    batch_norm : bool
        Over the vertices of all ranks.
    """

    uses_edges = True
    uses_own_rows = True

    def __init__(
        self,
        channels: Channels,
        dim: int = 0,
        aggr: str = "add",
        batch_norm: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options)
        sources, targets = both(channels)
        self.channels = check_integer("CGConv channels", targets, 1)
        self.of_sources = check_integer("CGConv channels", sources, 1)
        self.dim = check_integer("CGConv dim", dim, 0)
        check_choice("CGConv aggr", aggr, ("add", *EDGE_REDUCTIONS))
        self.reduce: Any = "sum" if aggr == "add" else aggr
        self.lin_f = Linear(sources + targets + dim, targets, bias=bias)
        self.lin_s = Linear(sources + targets + dim, targets, bias=bias)
        self.bn = None
        if batch_norm:
            norm = BatchNorm(targets)
            self.bn = norm.module  # whose parameters have the names of PyG's
            self.__dict__["norm"] = norm
        self.reset()

    def forward(
        self,
        H_local: Features,
        graph: AnyGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """H_local [columns, channels] to [rows, channels]; see `Convolution`. Collective."""
        H, on = dense(H_local, "CGConv"), as_graph(graph)
        to_target, to_source, to_edge = torch.cat((self.lin_f.weight, self.lin_s.weight)).split(
            (self.channels, self.of_sources, self.dim), 1
        )
        bias = None
        if self.lin_f.bias is not None:
            bias = torch.cat((self.lin_f.bias, self.lin_s.bias))
        of_edges = None
        if self.dim:
            attr = edge_rows(self, on, edge_attr, H, self.dim)
            of_edges = times_transposed(attr, to_edge)
        gate, size = meet(on, H, to_target, to_source, bias, of_edges).chunk(2, 1)
        message = gate.sigmoid() * F.softplus(size)
        Z = edge_spmm(on.local_edges.pattern, None, message, "copy", self.reduce)
        if self.bn is not None:
            norm: BatchNorm = self.__dict__["norm"]
            norm.training = self.training
            Z = run_stage(norm, Z, on)
        return on.own(H) + Z


class TransformerConv(Convolution):
    """``z_i = S h_i + Σ_j α_ij (V h_j + E e_ji)``, α a softmax of ``<Q h_i, K h_j + E e_ji> / √c``.

    Shi et al. 2021; parameters and their names are PyG's. Nothing of edges × channels is made: of
    an edge, scores and sums see its own features.

    Parameters
    ----------
    in_channels, out_channels : int
        The latter of a head; a pair of the former is of sources and targets of two types.
    concat : bool
        Heads side by side, or their mean.
    beta : bool
        A gate weighs the skip and the sum.
    dropout : float
        Of attention weights in training: a function of the edge's original ends and the head.
    edge_dim : int, optional
        Width of the edges' features.
    """

    uses_edges = True
    uses_own_rows = True
    uses_keys = True

    def __init__(
        self,
        in_channels: Channels,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            options,
            aggr="add",
            pair=True,
            in_channels=in_channels,
            out_channels=out_channels,
            heads=heads,
        )
        self.dropout, self.number = check_rate("TransformerConv dropout", dropout), 0
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.root_weight, self.edge_dim = concat, root_weight, edge_dim
        width, (sources, targets) = heads * out_channels, both(in_channels)
        self.lin_key = Linear(sources, width, bias=bias)
        self.lin_query = Linear(targets, width, bias=bias, of_targets=True)
        self.lin_value = Linear(sources, width, bias=bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        out = width if concat else out_channels
        self.lin_skip = Linear(targets, out, bias=bias, of_targets=True)
        self.lin_beta = Linear(3 * out, 1, bias=False) if beta and root_weight else None
        if not any(lazy_parts(self)):
            self.reset()

    def forward(
        self,
        H_local: Features,
        graph: AnyGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """H_local [columns, in_channels] to [rows, out]; see `Convolution`. Collective."""
        H, on, heads = dense(H_local, "TransformerConv"), as_graph(graph), self.heads
        own, fetch, pattern = on.own(H), on.halo_matrix().halo, on.local_edges.pattern
        if H.shape[1] <= 2 * heads * self.out_channels:
            there = fetch(H)
            key, value = self.lin_key(there), self.lin_value(there)
        else:
            key, value = fetch(torch.cat((self.lin_key(H), self.lin_value(H)), 1)).chunk(2, 1)
        query = self.lin_query(own).unflatten(1, (heads, -1)) / sqrt(self.out_channels)
        key, value = (t.unflatten(1, (heads, -1)) for t in (key, value))
        scores, attr = sddmm(pattern, query, key), None
        if self.lin_edge is not None:
            attr = edge_rows(self, on, edge_attr, key, self.edge_dim)
            attr = attr[:, None, :].expand(-1, heads, -1)
            weight = self.lin_edge.weight.unflatten(0, (heads, -1)).to(key.dtype)
            of_query = torch.einsum("rhc,hcd->rhd", query, weight)
            scores = scores + sddmm(pattern.by_nonzero, of_query, attr)
        alpha = edge_softmax(pattern, scores)
        if self.training and self.dropout:
            if keys is None:
                raise InputError("TransformerConv with dropout needs keys=DropoutKeys(…)")
            dropped = EdgeDropout(self.dropout, keys.key(self.number | EDGES), keys.vertex_ids)
            alpha = alpha * edge_dropout_factors(on, dropped, alpha)
        Z = spmm(CSR(pattern, alpha), value)
        if attr is not None:
            summed = spmm(CSR(pattern.by_nonzero, alpha), attr)
            Z = Z + torch.einsum("rhd,hcd->rhc", summed, weight)
        Z = Z.flatten(1) if self.concat else Z.mean(1)
        if not self.root_weight:
            return Z
        skip: Tensor = self.lin_skip(own)
        if self.lin_beta is None:
            return Z + skip
        share: Tensor = self.lin_beta(torch.cat((Z, skip, Z - skip), 1)).sigmoid()
        return share * skip + (1 - share) * Z


class InteractionNetwork(Convolution):
    """``e' = e + f([e, h_j, h_i])``, then ``h' = h + g([h, Σ_j e'])``: edges learn as vertices do.

    Battaglia et al. 2016; the processor of MeshGraphNets (Pfaff et al. 2021) and GraphCast (Lam et
    al. 2023). f and g are perceptrons, whose first layers are factored: of [edges, 3 f] nothing is
    made, and of a vertex the source's part travels.

    Parameters
    ----------
    channels : int
        Of vertices and of edges.
    hidden : int, optional
        Of the perceptrons; by default as wide.
    aggr : {"sum", "mean", "max", "min"}
    norm : bool
        A layer norm after each perceptron.
    act : callable
        Their activation.
    """

    uses_edges = True
    uses_own_rows = True

    def __init__(
        self,
        channels: int,
        hidden: int | None = None,
        aggr: Literal["sum", "mean", "max", "min"] = "sum",
        norm: bool = True,
        act: type[nn.Module] = nn.SiLU,
    ) -> None:
        super().__init__()
        self.channels = check_integer("InteractionNetwork channels", channels, 1)
        width = check_integer("InteractionNetwork hidden", hidden or channels, 1)
        check_choice("InteractionNetwork aggr", aggr, EDGE_REDUCTIONS)
        self.aggr: Any = aggr

        def perceptron(inputs: int) -> nn.Sequential:
            last = [nn.LayerNorm(channels)] if norm else []
            layers = Linear(inputs * channels, width), act(), Linear(width, channels)
            return nn.Sequential(*layers, *last)

        self.edge_mlp, self.node_mlp = perceptron(3), perceptron(2)
        self.reset()

    def forward(  # type: ignore[override]
        self,
        H_local: Tensor,
        graph: AnyGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Vertices [columns, channels] and edges [edges, channels], both updated. Collective.

        Arguments are those of `Convolution`; `keys` have no effect.

        Returns
        -------
        H_local : Tensor [rows, channels]
        edge_attr : Tensor [edges, channels]
            For the next layer.
        """
        H, on = dense(H_local, "InteractionNetwork"), as_graph(graph)
        E, first = edge_rows(self, on, edge_attr, H, self.channels), self.edge_mlp[0]
        assert isinstance(first, nn.Linear)
        to_edge, to_source, to_target = first.weight.chunk(3, 1)
        met = meet(on, H, to_target, to_source, first.bias, times_transposed(E, to_edge))
        E = E + self.edge_mlp[1:](met)
        summed, own = edge_spmm(on.local_edges.pattern, None, E, "copy", self.aggr), on.own(H)
        return own + self.node_mlp(torch.cat((own, summed), 1)), E
