"""SGFormer, Polynormer and GPS, with the arguments and the names of parameters of PyG's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

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
    Stepwise,
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


class _Network(_Model, Stepwise):
    """A model of steps, whose scores are log-probabilities, or logits where a task reads them."""

    normalisation, loops = "sym", True
    attends_globally: ClassVar[Literal["", "linear", "softmax"]] = "linear"
    log_probabilities = True

    @property
    @abstractmethod
    def first(self) -> Sequence[nn.Module]:
        """Modules that multiply the features."""

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """Rates of dropout."""

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters that multiply the features, and all others."""
        first = [p for part in self.first for p in part.parameters()]
        ids = set(map(id, first))
        return [first, [p for p in self.parameters() if id(p) not in ids]]

    def forward(self, x: Tensor, graph: AnyGraph, keys: DropoutKeys | None = None) -> Tensor:
        """Scores [rows, out_channels]. Collective."""
        x, on, keys = self._begin(x, graph, keys, *self.rates)
        rows: tuple[Tensor, ...] = (x,)
        for number in range(self.steps):
            rows = self.step(number, rows, on, keys)
        (scores,) = rows
        return F.log_softmax(scores, dim=-1) if self.log_probabilities else scores


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


class SGFormer(_Network):
    """One attention to all vertices beside a GCN (Wu et al., NeurIPS 2023); log-probabilities.

    Parameters
    ----------
    in_channels, hidden_channels, out_channels, trans_num_layers, trans_num_heads, trans_dropout, \
gnn_num_layers, gnn_dropout, graph_weight, aggregate
        As PyG's.
    seed : int
        Of the weights, and of dropout where a call is given no keys.
    """

    linear_end = "fc"

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
        self.in_channels = in_channels
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

    @classmethod
    def of(
        cls, widths: Sequence[int], *, dropout: float = 0.0, heads: int = 1, seed: int = 0, **_: Any
    ) -> Self:
        """So many layers of neighbours, which return logits."""
        model = cls(
            widths[0],
            widths[1],
            widths[-1],
            trans_num_heads=heads,
            trans_dropout=dropout,
            gnn_num_layers=len(widths) - 2,
            gnn_dropout=dropout,
            seed=seed,
        )
        model.log_probabilities = False
        return model

    @property
    def first(self) -> Sequence[nn.Module]:
        """The linear layers of both branches."""
        return self.trans_conv.fcs[0], self.graph_conv.fcs[0]

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates of both branches."""
        return self.trans_conv.dropout, self.graph_conv.dropout

    @property
    def steps(self) -> int:
        """One, and as many as the longer branch has layers: both go on at a time."""
        return 1 + max(len(self.trans_conv.attns), len(self.graph_conv.convs))

    def step(
        self, number: int, rows: tuple[Tensor, ...], on: Graph, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        """Attended rows, those after the first linear layer of the other branch, and its rows."""
        trans, graph, at = self.trans_conv, self.graph_conv, len(self.trans_conv.bns)
        attended, first, *summed = rows * 2 if number == 0 else rows
        here = summed[0] if summed else first
        if number == 0:
            here = first = graph.end(0, graph.fcs[0](first), on, keys, at)
            attended = trans.end(0, trans.fcs[0](attended), on, keys, 0)
        elif number <= len(graph.convs):
            here = graph.end(number, graph.convs[number - 1](here, on), on, keys, at) + first
        if 0 < number <= len(trans.attns):
            mixed = (trans.attns[number - 1](attended, on) + attended) / 2
            attended = trans.end(number, mixed, on, keys, 0)
        if number + 1 < self.steps:
            return (attended, first, here) if number else (attended, first)
        if self.aggregate == "add":
            both = self.graph_weight * here + (1 - self.graph_weight) * attended
        else:
            both = torch.cat((attended, here), 1)
        return (self.fc(both),)


class Polynormer(_Network):
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

    linear_end = "pred_global"

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
        self.in_channels, self._global = in_channels, False
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

    @classmethod
    def of(
        cls,
        widths: Sequence[int],
        *,
        dropout: float = 0.0,
        input_dropout: bool = False,
        heads: int = 1,
        seed: int = 0,
        **_: Any,
    ) -> Self:
        """So many local layers, heads side by side; all layers train, and return logits."""
        if widths[1] % heads:
            raise InputError(f"--hidden {widths[1]} must be a multiple of --heads {heads}")
        model = cls(
            widths[0],
            widths[1] // heads,
            widths[-1],
            local_layers=len(widths) - 2,
            in_dropout=dropout * input_dropout,
            dropout=dropout,
            global_dropout=dropout,
            heads=heads,
            seed=seed,
        )
        model._global, model.log_probabilities = True, False
        return model

    @property
    def first(self) -> Sequence[nn.Module]:
        """All linear layers and the local one of the features."""
        return self.h_lins[0], self.local_convs[0], self.lins[0]

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates for features, local and global layers."""
        return self.in_drop, self.dropout, self.global_dropout

    @property
    def steps(self) -> int:
        """Local layers, and global ones once these train."""
        return len(self.local_convs) + len(self.global_attn) * self._global

    def step(
        self, number: int, rows: tuple[Tensor, ...], on: Graph, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        """Rows of a layer, and, until these are over, the sum of those of local layers."""
        x, *others = rows
        locals_ = len(self.local_convs)
        if number >= locals_:
            attended = self.global_attn[number - locals_](x, on)
            x = _drop(attended, self.global_dropout, keys, number + 1)
            return (self.pred_global(x) if number + 1 == self.steps else x,)
        x = x if number else _drop(x, self.in_drop, keys, 0)
        if self.pre_ln:
            x = self.pre_lns[number](x)
        h = F.relu(self.h_lins[number](x))
        x = self.local_convs[number](x, on) + self.lins[number](x)
        norm = self.post_bns[number] if self.post_bn else nn.Identity()
        x = _end(norm, x, on, self.dropout, keys, number + 1)
        x = (1 - self.beta) * self.lns[number](h * x) + self.beta * x
        local = x if not others else others[0] + x
        if number + 1 < locals_:
            return x, local
        return (self.ln(local) if self._global else self.pred_local(local),)


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
        self.number = 0  # among the layers of a model
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
        near: Tensor | None = None
        at = 4 * self.number
        if self.conv is not None:  # first, as steps have it
            if getattr(self.conv, "uses_keys", False):
                options["keys"] = keys
            near = _drop(self.conv(x, on, **options), self.dropout, keys, at + 1) + x
            near = run_stages([self.norm1], near, on)
        out = _drop(self.attn(x, on), self.dropout, keys, at) + x
        out = run_stages([self.norm2], out, on)
        out = out if near is None else near + out
        inner = _drop(self.mlp[1](self.mlp[0](out)), self.dropout, keys, at + 2)
        out = out + _drop(self.mlp[3](inner), self.dropout, keys, at + 3)
        return run_stages([self.norm3], out, on)


class GPS(_Network):
    """A linear layer, `GPSConv` around GCNs, and a linear layer that makes logits.

    Parameters
    ----------
    in_channels, hidden_channels, out_channels, num_layers : int
    heads, dropout, attn_type
        Of the layers, as of `GPSConv`.
    seed : int
        Of the weights, and of dropout where a call is given no keys.
    """

    attends_globally: ClassVar[Literal["", "linear", "softmax"]] = "softmax"
    log_probabilities = False
    linear_end = "lin_out"

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 3,
        heads: int = 1,
        dropout: float = 0.0,
        attn_type: str = "multihead",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.in_channels, h = in_channels, hidden_channels
        self.lin_in, self.lin_out = nn.Linear(in_channels, h), nn.Linear(h, out_channels)
        self.dropout = dropout
        self.convs = nn.ModuleList()
        for number in range(num_layers):
            conv = GCNConv(h, h)
            layer = GPSConv(h, conv, heads, dropout, attn_type=attn_type, seed=seed + number)
            layer.number = number
            self.convs.append(layer)
        self._draw()

    @classmethod
    def of(
        cls, widths: Sequence[int], *, dropout: float = 0.0, heads: int = 1, seed: int = 0, **_: Any
    ) -> Self:
        """So many layers."""
        kind = "multihead" if cls.attends_globally == "softmax" else "performer"
        ends = widths[0], widths[1], widths[-1]
        return cls(*ends, len(widths) - 2, heads, dropout, kind, seed=seed)

    @property
    def first(self) -> Sequence[nn.Module]:
        """The first linear layer."""
        return (self.lin_in,)

    @property
    def rates(self) -> tuple[float, ...]:
        """The rate in all layers."""
        return (self.dropout,)

    @property
    def steps(self) -> int:
        """Number of layers, at least one."""
        return max(1, len(self.convs))

    def step(
        self, number: int, rows: tuple[Tensor, ...], on: Graph, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        """A layer; linear ones come with the first and the last."""
        (x,) = rows
        x = x if number else self.lin_in(x)
        for conv in self.convs[number : number + 1]:
            x = conv(x, on, keys)
        return (self.lin_out(x) if number + 1 == self.steps else x,)


class GPSPerformer(GPS):
    """`GPS` with the linear attention of Performers."""

    attends_globally = "linear"
