"""SGFormer, Polynormer and GPS, with the arguments and the names of parameters of PyG's."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.addons.transformers.attention import (
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
    SoftmaxAttention,
)
from spgnn.errors import InputError, check_choice
from spgnn.graph import AnyGraph, Graph, as_graph, dense
from spgnn.nn import (
    BatchNorm,
    DropoutKeys,
    GATConv,
    GCNConv,
    GraphModule,
    KeyedModel,
    activation_of,
    dropout,
    norm_of,
    run_stages,
    stages_between,
)

_RELU = nn.ReLU()  # a module, which is fused with dropout


class BatchNorm1d(BatchNorm):
    """`BatchNorm` with the names of torch's parameters: ``weight``, not ``module.weight``."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        inner = self._modules.pop("module")
        assert inner is not None
        self._parameters.update(inner._parameters)
        self._buffers.update(inner._buffers)

    @property
    def module(self) -> Any:  # type: ignore[override]  # a part of the base, here the whole
        """The module that holds parameters and running statistics."""
        return self


class _Model(KeyedModel, GraphModule):
    """A model of one graph, in which every vertex attends to all."""

    def _begin(
        self, x: Tensor, graph: AnyGraph, keys: DropoutKeys | None, *rates: float
    ) -> tuple[Tensor, Graph, DropoutKeys | None]:
        """Dense features, the graph, and keys where these rates of dropout need any."""
        name, on = type(self).__name__, as_graph(graph)
        if keys is not None and not isinstance(keys, DropoutKeys):
            raise InputError(
                f"{name}: the third argument are keys of dropout, got a {type(keys).__name__}: "
                "graphs side by side (PyG's batch) are not supported"
            )
        return dense(x, name), on, self.keys_of_call(keys, on) if any(rates) else None

    def reset_parameters(self) -> None:
        """Draw all parameters again, of torch's own generator."""
        _reset(self)

    def _draw(self) -> None:
        """Draw all parameters from the seed: the same ones on every rank."""
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(self.seed)
            self.reset_parameters()


def _drop(x: Tensor, p: float, keys: DropoutKeys | None, layer: int) -> Tensor:
    return cast("Tensor", dropout(x, p, keys, layer))


def _end(norm: Any, x: Tensor, on: Graph, p: float, keys: DropoutKeys | None, at: int) -> Tensor:
    """A norm, ReLU and dropout."""
    update = {"p": p, "keys": keys, "layer": at}
    return run_stages([norm, *stages_between(nn.Identity(), _RELU, False, **update)], x, on)


def _reset(module: nn.Module) -> None:
    """Reset all that knows how to."""
    for part in module.children():
        getattr(part, "reset_parameters", partial(_reset, part))()


class _Branch(nn.Module):
    """Layers of one kind: a linear layer, then the layers; a norm, ReLU and dropout after each."""

    attns: nn.ModuleList
    convs: nn.ModuleList

    def __init__(self, name: str, layers: list[Any], widths: Any, norm: Any, p: float) -> None:
        super().__init__()
        setattr(self, name, nn.ModuleList(layers))
        self.fcs = nn.ModuleList([nn.Linear(*widths)])
        self.bns = nn.ModuleList(norm(widths[1]) for _ in range(len(layers) + 1))
        self.dropout = p

    def end(self, number: int, x: Tensor, on: Graph, keys: DropoutKeys | None, at: int) -> Tensor:
        """The norm, ReLU and dropout after a layer."""
        return _end(self.bns[number], x, on, self.dropout, keys, at + number)


class SGFormer(_Model):
    """One attention to all vertices beside a GCN (Wu et al., NeurIPS 2023); log-probabilities.

    Parameters
    ----------
    in_channels, hidden_channels, out_channels, trans_num_layers, trans_num_heads, trans_dropout, \
gnn_num_layers, gnn_dropout, graph_weight, aggregate
        As PyG's.
    seed : int
        Of the weights, and of dropout where a call is given no keys.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        trans_num_layers: int = 2,
        trans_num_heads: int = 1,
        trans_dropout: float = 0.5,
        gnn_num_layers: int = 3,
        gnn_dropout: float = 0.5,
        graph_weight: float = 0.5,
        aggregate: Literal["add", "cat"] = "add",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_choice("aggregate", aggregate, ("add", "cat"))
        h, heads = hidden_channels, trans_num_heads
        attns: list[Any] = [SGFormerAttention(h, heads, h) for _ in range(trans_num_layers)]
        convs: list[Any] = [GCNConv(h, h) for _ in range(gnn_num_layers)]
        ends = in_channels, h
        self.trans_conv = _Branch("attns", attns, ends, nn.LayerNorm, trans_dropout)
        self.graph_conv = _Branch("convs", convs, ends, BatchNorm1d, gnn_dropout)
        self.graph_weight, self.aggregate, self.out_channels = graph_weight, aggregate, out_channels
        self.fc = nn.Linear(h if aggregate == "add" else 2 * h, out_channels)
        self.params1 = list(self.trans_conv.parameters())
        self.params2 = [*self.graph_conv.parameters(), *self.fc.parameters()]
        self._draw()

    def forward(self, x: Tensor, graph: AnyGraph, keys: DropoutKeys | None = None) -> Tensor:
        """Log-probabilities [rows, out_channels]. Collective."""
        branch, rates = self.trans_conv, (self.trans_conv.dropout, self.graph_conv.dropout)
        x, on, keys = self._begin(x, graph, keys, *rates)
        attended = branch.end(0, branch.fcs[0](x), on, keys, 0)
        for number, attention in enumerate(branch.attns, 1):
            mixed = (attention(attended, on) + attended) / 2
            attended = branch.end(number, mixed, on, keys, 0)
        branch, at = self.graph_conv, len(self.trans_conv.bns)
        first = summed = branch.end(0, branch.fcs[0](x), on, keys, at)
        for number, conv in enumerate(branch.convs, 1):
            summed = branch.end(number, conv(summed, on), on, keys, at) + first
        if self.aggregate == "add":
            both = self.graph_weight * summed + (1 - self.graph_weight) * attended
        else:
            both = torch.cat((attended, summed), 1)
        return F.log_softmax(self.fc(both), dim=-1)


class Polynormer(_Model):
    """Local layers, then attention to all vertices (Deng et al., ICLR 2024); log-probabilities.

    Parameters
    ----------
    in_channels, hidden_channels, out_channels, local_layers, global_layers, in_dropout, dropout, \
global_dropout, heads, beta, qk_shared, pre_ln, post_bn, local_attn
        As PyG's.
    seed : int
        Of the weights, and of dropout where a call is given no keys.

    Attributes
    ----------
    _global : bool
        As in PyG: False until a program sets it, while local layers train alone.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        local_layers: int = 7,
        global_layers: int = 2,
        in_dropout: float = 0.15,
        dropout: float = 0.5,
        global_dropout: float = 0.5,
        heads: int = 1,
        beta: float = 0.9,
        qk_shared: bool = False,
        pre_ln: bool = False,
        post_bn: bool = True,
        local_attn: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self._global = False
        self.in_drop, self.dropout, self.global_dropout = in_dropout, dropout, global_dropout
        self.beta, width = beta, heads * hidden_channels
        widths = [in_channels, *[width] * (local_layers - 1)]
        self.h_lins = nn.ModuleList(nn.Linear(f, width) for f in widths)
        self.local_convs = nn.ModuleList(
            GATConv(f, hidden_channels, heads=heads, add_self_loops=False, bias=False)
            if local_attn
            else GCNConv(f, width)
            for f in widths
        )
        self.lins = nn.ModuleList(nn.Linear(f, width) for f in widths)
        self.lns = nn.ModuleList(nn.LayerNorm(width) for _ in widths)
        if pre_ln:
            self.pre_lns = nn.ModuleList(nn.LayerNorm(f) for f in widths)
        if post_bn:
            self.post_bns = nn.ModuleList(BatchNorm1d(width) for _ in widths)
        self.pre_ln, self.post_bn = pre_ln, post_bn
        self.lin_in, self.ln = nn.Linear(in_channels, width), nn.LayerNorm(width)
        self.global_attn = nn.ModuleList(
            PolynormerAttention(width, heads, hidden_channels, beta, qk_shared=qk_shared)
            for _ in range(global_layers)
        )
        self.pred_local = nn.Linear(width, out_channels)
        self.pred_global = nn.Linear(width, out_channels)
        self._draw()

    def forward(self, x: Tensor, graph: AnyGraph, keys: DropoutKeys | None = None) -> Tensor:
        """Log-probabilities [rows, out_channels]. Collective."""
        rates = self.in_drop, self.dropout, self.global_dropout
        x, on, keys = self._begin(x, graph, keys, *rates)
        x, local = _drop(x, self.in_drop, keys, 0), None
        for number, conv in enumerate(self.local_convs):
            if self.pre_ln:
                x = self.pre_lns[number](x)
            h = F.relu(self.h_lins[number](x))
            x = conv(x, on) + self.lins[number](x)
            norm = self.post_bns[number] if self.post_bn else nn.Identity()
            x = _end(norm, x, on, self.dropout, keys, number + 1)
            x = (1 - self.beta) * self.lns[number](h * x) + self.beta * x
            local = x if local is None else local + x
        if not self._global:
            return F.log_softmax(self.pred_local(local), dim=-1)
        x = self.ln(local)
        for number, attention in enumerate(self.global_attn, len(self.local_convs) + 1):
            x = _drop(attention(x, on), self.global_dropout, keys, number)
        return F.log_softmax(self.pred_global(x), dim=-1)


class GPSConv(_Model):
    """A layer of neighbours and one of all vertices, added (Rampášek et al., NeurIPS 2022).

    Parameters
    ----------
    channels : int
    conv : Module or None
        A layer of spgnn.nn.
    heads, dropout, act, act_kwargs, norm, norm_kwargs
        As PyG's; norms are those of spgnn.nn.
    attn_type : {"multihead", "performer"}
        Softmax, or random features.
    attn_kwargs : dict, optional
    seed : int
        Of dropout, where a call is given no keys, and of random features: layers of one model have
        different ones. Weights are drawn of torch's own generator, as PyG's.
    """

    def __init__(
        self,
        channels: int,
        conv: nn.Module | None,
        heads: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        act_kwargs: dict[str, Any] | None = None,
        norm: str | None = "batch_norm",
        norm_kwargs: dict[str, Any] | None = None,
        attn_type: str = "multihead",
        attn_kwargs: dict[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        check_choice("attn_type", attn_type, ("multihead", "performer"))
        self.channels, self.conv, self.heads, self.dropout = channels, conv, heads, dropout
        kind: Any = SoftmaxAttention
        options = attn_kwargs or {}
        if attn_type == "performer":
            kind, options = PerformerAttention, {"seed": seed, **options}
        try:
            self.attn = kind(channels, heads, **options)
        except TypeError as error:
            raise InputError(f"GPSConv: attn_kwargs: {error}") from None
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            cast("nn.Module", activation_of(act, act_kwargs or {})),
            nn.Dropout(dropout),
            nn.Linear(2 * channels, channels),
            nn.Dropout(dropout),
        )
        self.norm1, self.norm2, self.norm3 = (
            norm_of(norm, channels, norm_kwargs or {}) for _ in range(3)
        )

    def forward(
        self, x: Tensor, graph: AnyGraph, keys: DropoutKeys | None = None, **options: Any
    ) -> Tensor:
        """X [rows, channels] to the same shape. Collective."""
        x, on, keys = self._begin(x, graph, keys, self.dropout, getattr(self.conv, "dropout", 0))
        attended = _drop(self.attn(x, on), self.dropout, keys, 0) + x
        out = run_stages([self.norm2], attended, on)
        if self.conv is not None:
            if getattr(self.conv, "uses_keys", False):
                options["keys"] = keys
            near: Tensor = self.conv(x, on, **options)
            near = _drop(near, self.dropout, keys, 1) + x
            out = run_stages([self.norm1], near, on) + out
        inner = _drop(self.mlp[1](self.mlp[0](out)), self.dropout, keys, 2)
        out = out + _drop(self.mlp[3](inner), self.dropout, keys, 3)
        return run_stages([self.norm3], out, on)
