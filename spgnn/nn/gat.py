"""Graph attention networks (Veličković et al. 2018; Brody et al. 2022) on a distributed matrix."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spgnn.attention import attend, attend_v2, head_scores
from spgnn.autograd import autocast
from spgnn.errors import InputError
from spgnn.nn.attention_conv import AttentionConv, mapped, mapped_of_own
from spgnn.nn.convolution import (
    Convolution,
    linear,
)
from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.propagation import (
    Graph,
    LayerGraph,
    LayerMatrix,
    by_layer,
    own_rows,
)
from spgnn.nn.stack import Stack
from spgnn.sparse import CSR, SUM_DTYPE


class GATConv(AttentionConv):
    """``z'_i = Σ_j α_ij W h_j + b`` with ``α_i = softmax LeakyReLU(a_d·W h_i + a_s·W h_j)``.

    Parameters are those of PyG's layer of that name, and so are their names. One row of W H
    travels, whatever the number of heads; scores are made where they are needed.

    Parameters
    ----------
    in_channels, out_channels, heads, …
        See :class:`AttentionConv`.
    """

    def _make(self, in_channels: int, width: int, *, bias: bool) -> None:
        shape = 1, self.heads, self.out_channels
        self.lin = linear(in_channels, width, bias=False)
        self.att_src = nn.Parameter(torch.zeros(shape))
        self.att_dst = nn.Parameter(torch.zeros(shape))
        self.att_edge = None if self.edge_dim is None else nn.Parameter(torch.zeros(shape))

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: LayerMatrix,
        edges: Tensor | None,
        keys: DropoutKeys | None,
    ) -> Tensor:
        Z_local, a = autocast(mapped(self.lin, H_local)), self.att_src[0]
        wide = SUM_DTYPE.get(Z_local.dtype, Z_local.dtype)
        d = head_scores(own_rows(graph, Z_local), self.att_dst[0].to(wide))
        scores = None
        if edges is not None and self.att_edge is not None:
            scores = head_scores(edges, self.att_edge[0].to(wide))
        messages = self.messages(Z_local, graph, keys)
        if messages is not None:
            # Scores were made of all of the row: they travel as one more column of each head.
            s = head_scores(Z_local, a.to(wide)).to(Z_local.dtype)
            Z_local = torch.cat((messages, s[..., None]), 2).flatten(1)
            a = nn.functional.pad(torch.zeros_like(a), (0, 1), value=1.0)
        out = attend(
            A,
            Z_local,
            a,
            d,
            slope=self.negative_slope,
            edge_scores=scores,
            dropout=self.dropped(graph, keys),
        )
        return out if messages is None else self.by_head(out)[..., :-1].flatten(1)


class GATv2Conv(AttentionConv):
    """The same with ``α_i = softmax a·LeakyReLU(W_r h_i + b_r + W_l h_j + b_l)``.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_l`` of sources,
    which is also what is weighed, and ``lin_r`` of destinations.

    Parameters
    ----------
    in_channels, out_channels, heads, …
        See :class:`AttentionConv`.
    share_weights : bool
        Whether sources and destinations have the same matrix.
    """

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
        share_weights: bool = False,
        residual: bool = False,
        *,
        message_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        self.share_weights = share_weights
        super().__init__(
            in_channels,
            out_channels,
            heads,
            concat,
            negative_slope,
            dropout,
            add_self_loops,
            edge_dim,
            fill_value,
            bias,
            residual,
            message_dropout=message_dropout,
            **options,
        )

    def _make(self, in_channels: int, width: int, *, bias: bool) -> None:
        self.lin_l = linear(in_channels, width, bias=bias)
        self.lin_r = self.lin_l
        if not self.share_weights:
            self.lin_r = linear(in_channels, width, bias=bias)
        self.att = nn.Parameter(torch.zeros(1, self.heads, self.out_channels))

    def _attend(
        self,
        H_local: Tensor | CSR,
        graph: LayerGraph,
        A: LayerMatrix,
        edges: Tensor | None,
        keys: DropoutKeys | None,
    ) -> Tensor:
        Y_local, a = autocast(mapped(self.lin_l, H_local)), self.att[0]
        if self.share_weights:
            X_own = own_rows(graph, Y_local)
        else:
            X_own = autocast(mapped_of_own(self.lin_r, graph, H_local))
        messages = self.messages(Y_local, graph, keys)
        if messages is not None:
            # What is weighed travels beside what is scored, in columns that a does not look at.
            Y_local = torch.cat((self.by_head(Y_local), messages), 2).flatten(1)
            X_own, a = self._with_zeros(X_own), nn.functional.pad(a, (0, self.out_channels))
            edges = None if edges is None else self._with_zeros(edges)
        out = attend_v2(
            A,
            Y_local,
            a,
            X_own,
            slope=self.negative_slope,
            edge_features=edges,
            dropout=self.dropped(graph, keys),
        )
        return out if messages is None else self.by_head(out)[..., self.out_channels :].flatten(1)

    def _with_zeros(self, rows: Tensor) -> Tensor:
        """Rows with as many zeros beside the columns of each head."""
        return nn.functional.pad(self.by_head(rows), (0, self.out_channels)).flatten(1)


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
        ``attention_dropout`` of edges, by default as of features; ``message_dropout``, by default
        none; ``concat``, ``v2``, and what else the layers take.
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
