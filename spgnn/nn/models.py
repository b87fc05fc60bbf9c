"""Models: layers, with norms, activations, dropout and skips between them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from inspect import signature
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from spgnn.autograd import agreeing
from spgnn.errors import InputError, check_choice, check_number
from spgnn.graph.features import Features, Propagated, width_of
from spgnn.graph.protocol import AnyGraph, Graph, fetch_ids, graphs_for
from spgnn.nn.convolution import (
    MLP,
    Convolution,
    Linear,
    find_widths,
    glorot_,
    initialise,
    layer_widths,
    lazy_parts,
    linear_of_own,
)
from spgnn.nn.edge_features import GINEConv
from spgnn.nn.gat import AttentionConv, GATConv, GATv2Conv
from spgnn.nn.layers import GCNConv, GINConv, PaperGCNConv, SAGEConv
from spgnn.nn.norm import (
    Norm,
    Skip,
    Stage,
    needs_all_rows,
    norm_of,
    rule_after,
    run_stages,
    stages_between,
)
from spgnn.nn.rowwise import Activation, DropoutKeys, activation_of, check_width, dropout, keys_on
from spgnn.registry import Order
from spgnn.torch_internals import has_hooks, in_backward

Jumps = Literal["last", "cat", "max", "lstm"]
JUMPS = ("none", "last", "cat", "max", "lstm")


class JumpingKnowledge(nn.Module):
    """All layers' rows to one, with PyG's names of parameters."""

    def __init__(self, mode: str, widths: Sequence[int]) -> None:
        super().__init__()
        if mode in ("max", "lstm") and len(set(widths)) > 1:
            raise InputError(f"jk={mode} needs layers of one width, got {list(widths)}")
        self.mode = mode
        self.width = sum(widths) if mode == "cat" else widths[-1]
        if mode == "lstm":
            inner = len(widths) * widths[0] // 2
            self.lstm = nn.LSTM(widths[0], inner, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * inner, 1)

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """A list of [rows, f], one a layer, to [rows, width]."""
        if self.mode == "last":
            return outputs[-1]
        if self.mode == "cat":
            return torch.cat(list(outputs), dim=-1)
        if self.mode == "max":
            return torch.stack(list(outputs), dim=-1).max(dim=-1)[0]
        x = torch.stack(list(outputs), dim=1)
        share = torch.softmax(self.att(self.lstm(x)[0]).squeeze(-1), dim=-1)
        return (x * share.unsqueeze(-1)).sum(dim=1)


class KeyedModel(nn.Module):
    """A model that drops by its seed and the number of the call, where that is given no keys."""

    takes_keys = True  # it is called with x, the graph and keys

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self._calls, self._replayed = seed, 0, 0

    def keys_of_call(self, keys: DropoutKeys | None, graph: Graph) -> DropoutKeys | None:
        """The keys of this call; none outside training."""
        if keys is not None or not self.training:
            return keys if self.training else None
        if graph.vertex_ids is None:
            raise InputError(
                "dropout is a function of the vertex, and a matrix does not know its vertices: "
                "give keys=DropoutKeys(vertex_ids, seed, epoch), or a graph with vertex_ids; "
                "model.eval() drops nothing"
            )
        return DropoutKeys(graph.vertex_ids, self.seed, self._call())

    def _call(self) -> int:
        """The number of this call; a recomputation in backward has that of the first time."""
        if not in_backward():
            self._calls += 1
        elif self._calls - self._replayed > 1:
            raise InputError(
                "a checkpointed model that is called several times a step needs keys: give "
                "keys=DropoutKeys(vertex_ids, seed, epoch)"
            )
        else:
            self._replayed = self._calls
        return self._calls - 1


class Network(KeyedModel, ABC):
    """Base of the models that the training command builds by their names.

    Attributes
    ----------
    normalisation : {"sym", "row", "none"}
        Of the adjacency, as the training command takes it.
    loops : bool
        Whether vertices are among their own neighbours there; else X is read beside A·X.
    attends : bool
        Whether layers make weights of their own for the edges.
    needs_edges : bool
        Whether layers take features of edges.
    typed : bool
        Whether graphs have several vertex types.
    attends_globally : {"", "linear", "softmax"}
        How each vertex attends to all; layers then leave no vertex out.
    linear_end : str
        The name of a linear layer that makes the outputs, after layers that are all hidden ones.
    """

    normalisation: ClassVar[Literal["sym", "row", "none"]] = "row"
    loops: ClassVar[bool] = False
    attends: ClassVar[bool] = False
    needs_edges: ClassVar[bool] = False
    typed: ClassVar[bool] = False
    attends_globally: ClassVar[Literal["", "linear", "softmax"]] = ""
    linear_end: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def of(cls, widths: Sequence[int], **options: Any) -> Self:
        """A model of these widths: features, those of the hidden layers, classes."""

    @classmethod
    def takes(cls) -> set[str]:
        """The options that models are built with."""
        return set(signature(cls.of).parameters)

    @classmethod
    def size(cls, widths: Sequence[int], **options: Any) -> int:
        """Numbers in the parameters of a model of these widths; nothing is allocated."""
        try:
            with torch.device("meta"):
                model = cls.of(widths, **options)
        except RuntimeError:  # a matrix of more bytes than 64 bits can count
            return sys.maxsize
        return sum(parameter.numel() for parameter in model.parameters())

    @abstractmethod
    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters of each layer, and, last, of all else; the first ones decay."""


class Stepwise(Network):
    """A network of numbered steps, each of at most one aggregation.

    A step maps rows to rows. It treats them independently but for its aggregation, which comes
    first, and for sums and moments over all vertices, which its graph gives: so it works on any
    rows of a graph, and steps may be computed chunk by chunk.

    Attributes
    ----------
    in_channels : int
        Features.
    """

    in_channels: int

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps."""

    @abstractmethod
    def step(
        self, number: int, rows: tuple[Tensor, ...], on: Graph, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        """Features, or what the step before returned, each [rows, f]; the last: (outputs,)."""


class LayerCall(NamedTuple):
    """A layer as one call of the model runs it, decided before any row is computed."""

    layer: Any
    is_seen: bool  # as a whole, or it has a forward of its own
    following: DropoutKeys | None  # of the dropout that comes after it, with the ids of its rows
    residual: Any
    after: list[Stage]

    def stages(self, H: Features, on: Graph) -> list[Stage]:
        """All that comes after the layer's own tail: skip, activation, norm, dropout."""
        if self.residual is None:
            return self.after
        return [Skip(linear_of_own(self.residual, H, on)), *self.after]


class Stack(Network):
    """Layers with norms, activations, dropout and skip connections between them.

    Arguments, their order and the names of parameters are those of PyG's ``BasicGNN``, so either
    loads the other's ``state_dict``. Weights are replicated: the same seed gives the same ones on
    every rank and at any P.

    Parameters
    ----------
    in_channels : int
        Features; −1 finds them in the first call.
    hidden_channels : int, or a sequence of one width a hidden layer
    out_channels : int, optional
        By default as many as the last hidden layer would have.
    dropout : float
        Probability, on the result of each hidden layer.
    act : str, callable or None
        Activation; see :func:`spgnn.nn.rowwise.activation_of`.
    act_first : bool, whether it comes before the norm
    norm : str, Module or None
        ``batch``, ``layer``, ``graph``, ``pair``; see :func:`spgnn.nn.norm.norm_of`.
    jk : {"last", "cat", "max", "lstm"}, optional
        All layers are hidden ones, and a linear layer makes the output of the last of them, or of
        all together (Xu et al. 2018).
    residual : bool
        Adds a linear map of each layer's input to its result, as tuned full-batch GCNs do (Luo et
        al. 2024). PyG's models have none but GAT, which hands it to its layers.
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
        The class of the layers.
    """

    convolution: ClassVar[type[Convolution]]
    act: Activation | None

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Activation | None = "relu",
        act_first: bool = False,
        act_kwargs: dict[str, Any] | None = None,
        norm: str | nn.Module | type[nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: Jumps | Literal["none"] | None = None,
        *,
        residual: bool = False,
        input_dropout: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(seed)
        self.dropout = check_number("dropout", dropout, 0, 1)
        self.input_dropout = input_dropout
        self.act = activation_of(act, act_kwargs or {})
        self.act_first = act_first
        self.jk_mode = None if jk is None or jk == "none" else jk
        check_choice("jk", jk or "none", JUMPS)
        widths = layer_widths(in_channels, hidden_channels, num_layers, out_channels, self.jk_mode)
        self.in_channels, self.num_layers = widths[0], num_layers
        self.out_channels = widths[-1] if out_channels is None else out_channels
        self.hidden_channels = hidden_channels
        self._norm = norm if isinstance(norm, str) else None  # as in PyG; a module would be a part
        self._norm_kwargs = norm_kwargs or {}
        ends = out_channels is not None and self.jk_mode is None
        self.convs = nn.ModuleList(
            self.init_conv(f_in, f_out, last=ends and number == num_layers - 1, **options)
            for number, (f_in, f_out) in enumerate(pairwise(widths))
        )
        hidden = widths[1:] if self.jk_mode else widths[1:-1]
        self.norms = nn.ModuleList(norm_of(norm, width, norm_kwargs or {}) for width in hidden)
        self.norms.extend([nn.Identity()] * (num_layers - len(hidden)))
        if self.jk_mode is not None:
            self.jk = JumpingKnowledge(self.jk_mode, widths[1:])
            self.lin = Linear(self.jk.width, self.out_channels)
        self.residuals = nn.ModuleList(
            [Linear(f_in, f_out) for f_in, f_out in pairwise(widths)] if residual else []
        )
        self._drawn = False
        self._draw()

    def init_conv(self, f_in: int, f_out: int, *, last: bool, **options: Any) -> Convolution:
        """A layer of these widths; `options` are those of the model, `last` makes the output."""
        return self.layer(self.convolution, f_in, f_out, **options)

    def layer(self, kind: Any, *arguments: Any, **options: Any) -> Convolution:
        """A layer of a kind; options that it does not take are refused."""
        try:
            return kind(*arguments, **options)  # type: ignore[no-any-return]
        except TypeError as error:
            raise InputError(f"{type(self).__name__}: {error}") from None

    @classmethod
    def takes(cls) -> set[str]:
        """The options of the model and its layers, by the signatures of what builds them."""
        makers = [vars(kind).get("init_conv") for kind in cls.__mro__]
        makers.append(Stack.__init__)
        layers = cls.convolution.__mro__
        makers += [vars(kind).get("__init__") for kind in layers[: layers.index(Convolution)]]
        return {name for maker in makers if maker for name in signature(maker).parameters}

    @classmethod
    def of(cls, widths: Sequence[int], **options: Any) -> Self:
        """A model of these widths: features, those of the hidden layers, classes."""
        first, *hidden, last = widths
        if options.get("jk") not in (None, "none"):
            hidden.append(hidden[-1] if hidden else last)
        layers = len(widths) - 1
        return cls(first, hidden, layers, last, **options)

    @property
    def convolutions(self) -> list[Convolution]:
        """The layers."""
        return [layer for layer in self.convs if isinstance(layer, Convolution)]

    @property
    def needs_all_rows(self) -> bool:
        """True if a norm takes statistics over all vertices: then no layer may leave rows out."""
        return needs_all_rows(self)

    @property
    def accepts_propagated(self) -> bool:
        """True if the first layer may be given A·X, computed once, instead of X."""
        return self.convolutions[0].accepts_propagated

    @property
    def keeps_features(self) -> bool:
        """True if X is needed as well as A·X."""
        return self.convolutions[0].uses_own_rows or len(self.residuals) > 0

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters of each layer, with its norm and its skip; and, last, of all else."""
        parts = [self.convs, self.norms, self.residuals]
        by_layer: list[list[nn.Parameter]] = [
            [p for part in layer for p in part.parameters()]
            for layer in zip(*(part for part in parts if len(part)), strict=True)
        ]
        listed = {id(p) for layer in by_layer for p in layer}
        return [*by_layer, [p for p in self.parameters() if id(p) not in listed]]

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices again, layer after layer; biases zero, norms as they began."""
        for layer in self.convolutions:
            layer.reset(generator)
        for part in self.norms:
            if isinstance(part, Norm):
                part.reset_parameters()
        others = [*self.residuals, *([self.jk, self.lin] if self.jk_mode else [])]
        for parameter in (p for part in others for p in part.parameters()):
            if parameter.dim() >= 2:
                glorot_(parameter, generator)
            else:
                nn.init.zeros_(parameter)

    def reset_parameters(self) -> None:
        """Initialise: matrices from torch's own generator, all else as it began."""
        if not any(lazy_parts(self)):
            initialise(self)
            self.reset()

    def _draw(self) -> None:
        if not any(lazy_parts(self)):
            self.reset(torch.Generator().manual_seed(self.seed))
            self._drawn = True

    def _find_widths(self, X_local: Features) -> None:
        """Shapes of what waited for the first features; weights of the seed, as without waiting."""
        self.in_channels = width_of(X_local)
        for part in lazy_parts(self):
            part.materialise(self.in_channels)
        self._draw()

    def forward(self, x: Features, graph: AnyGraph, keys: DropoutKeys | None = None) -> Tensor:
        """Logits [rows of the last layer, classes]. Collective.

        Parameters
        ----------
        x : Tensor or CSR [columns of the first layer, features], or Propagated
            Propagated features have the rows that the first layer makes. They cannot be dropped:
            A·dropout(X) changes every epoch.
        graph : Graph, DistMatrix, or a sequence of one Graph for each layer
            Each layer of a sequence is given the rows that the one before it made. The blocks of a
            mini-batch are such a sequence: ``batch.layers``.
        keys : DropoutKeys, optional
            Of the masks, in training; by default the graph's ids of vertices, the model's seed, and
            the number of the call.

        Raises
        ------
        InputError
            In training with dropout, if there are neither keys nor ids of vertices.
        """
        if not self._drawn and any(lazy_parts(self)):
            self._find_widths(x)
        graphs = graphs_for(graph, len(self.convs))
        keys = self._keys(keys, graphs[0])
        outputs: list[Tensor] = []
        H: Features = x
        following: DropoutKeys | None = None
        calls = [self.call_of(n, self._keys_after(n, graphs, keys)) for n in range(len(graphs))]
        for number, (on, call) in enumerate(zip(graphs, calls, strict=True)):
            if following is None:
                H = self.entering(number, H, on, keys)
            if number and self.jk_mode:
                outputs = [on.own(rows) for rows in (*outputs, _dense(H))]
            following = call.following
            H = self.run_layer(call, H, on, keys)
        assert isinstance(H, Tensor)
        if self.jk_mode is None:
            return H
        if following is None:
            H = _dense(dropout(H, self.dropout, _keys_of_rows(keys, graphs[-1]), len(graphs)))
        return self.lin(self.jk([*outputs, H]))  # type: ignore[no-any-return]

    def entering(self, number: int, H: Features, on: Graph, keys: DropoutKeys | None) -> Features:
        """The rows that a layer is given, after dropout, of those that the layer before made."""
        if number and isinstance(H, Tensor):
            H = H if on.complete is None else on.complete(H)
        if keys is None or isinstance(H, Propagated) or not (number or self.input_dropout):
            return H
        return dropout(H, self.dropout, keys_on(keys, on.vertex_ids), number)

    def run_layer(
        self, call: LayerCall, H: Features, on: Graph, keys: DropoutKeys | None = None
    ) -> Tensor:
        """One layer with its skip, norm and activation, on rows of `entering`. Collective."""
        layer = call.layer
        if call.is_seen:
            # Whoever looks at the layer, or has a forward of its own, sees all of it.
            Z = layer(H, on, keys=keys) if layer.uses_keys else layer(H, on)
            return run_stages(call.stages(H, on), Z, on)
        own_keys = keys if layer.uses_keys else None

        def aggregated() -> Tensor:
            takes = layer.takes if on.whole_rows else -1
            check_width(type(layer).__name__, takes, "x", width_of(H))
            return on.aggregate(layer.aggregation(H, on, None, own_keys))

        Z = layer.update(agreeing(layer, on.comm, aggregated), H, on)
        return run_stages([*layer.tail(), *call.stages(H, on)], Z, on, layer.shift)

    def call_of(self, number: int, following: DropoutKeys | None = None) -> LayerCall:
        """The layer of a number with all that comes after it; `following`: see `LayerCall`."""
        layer, norm = self.convs[number], self.norms[number]
        residual = self.residuals[number] if len(self.residuals) else None
        ends = number == self.num_layers - 1 and self.jk_mode is None
        if ends or (self.act is None and following is None):
            after: list[Stage] = [] if ends or isinstance(norm, nn.Identity) else [norm]
        else:
            hidden = self.jk_mode is None and _only_aggregates(self.convs[number + 1])
            update = {"p": self.dropout, "keys": following, "layer": number + 1, "hidden": hidden}
            after = stages_between(norm, self.act, self.act_first, **update)
        return LayerCall(layer, not _only_aggregates(layer), following, residual, after)

    def _keys_after(
        self, number: int, graphs: Sequence[Graph], keys: DropoutKeys | None
    ) -> DropoutKeys | None:
        """Keys of the dropout after a layer, if it and the activation are one pass."""
        last = number + 1 == len(graphs)
        if keys is None or not self.dropout or (last and self.jk_mode is None):
            return None
        if rule_after(self.norms[number], self.act, self.act_first) is None:
            return None
        if last:
            return _keys_of_rows(keys, graphs[number])
        following = graphs[number + 1]
        return keys_on(keys, following.vertex_ids) if following.complete is None else None

    def _keys(self, keys: DropoutKeys | None, graph: Graph) -> DropoutKeys | None:
        """The keys of this call; none outside training."""
        drops = self.dropout or any(
            c.uses_keys and (getattr(c, "dropout", 0) or getattr(c, "message_dropout", 0))
            for c in self.convs
        )
        return self.keys_of_call(keys, graph) if drops else None


def _keys_of_rows(keys: DropoutKeys | None, on: Graph) -> DropoutKeys | None:
    """The keys of the rows that a layer makes."""
    return keys if on.vertex_ids is None else keys_on(keys, on.own(on.vertex_ids))


def _dense(H: Features) -> Tensor:
    assert isinstance(H, Tensor)
    return H


class GCN(Stack):
    """Layers of :class:`GCNConv`; parameters are those of :class:`Stack`, options the layers'.

    ``order="paper"`` computes what the code of the ICPP'24 paper does; see :class:`PaperGCNConv`.
    """

    convolution = GCNConv
    normalisation, loops = "sym", True

    def init_conv(
        self, f_in: int, f_out: int, *, last: bool, order: Order = "auto", **options: Any
    ) -> Convolution:
        """A layer of these widths."""
        check_choice("order", order, get_args(Order))
        kind = PaperGCNConv if order == "paper" else self.convolution
        return self.layer(kind, f_in, f_out, **options)


class GraphSAGE(Stack):
    """Layers of :class:`SAGEConv`; parameters are those of :class:`Stack`, options the layers'."""

    convolution = SAGEConv


def _only_aggregates(layer: Any) -> bool:
    """True if nobody looks at the layer, and it has no forward of its own."""
    return layer.aggregates_once and not has_hooks(layer, find_widths)


class GIN(Stack):
    """Layers of :class:`GINConv` around two linear ones; other parameters are those of `Stack`.

    As in the paper, ε begins at 0. Between the two are the model's activation, and its norm if that
    is given by name.
    """

    convolution: ClassVar[type[Convolution]] = GINConv
    normalisation = "none"

    def init_conv(self, f_in: int, f_out: int, *, last: bool, **options: Any) -> Convolution:
        """A layer around a perceptron of two layers."""
        inner = MLP(
            [f_in, f_out, f_out],
            act=self.act,
            act_first=self.act_first,
            norm=self._norm,
            norm_kwargs=self._norm_kwargs,
        )
        return self.layer(self.convolution, inner, **options)


class GINE(GIN):
    """Layers of :class:`GINEConv` around two linear ones, with ``edge_dim`` features of an edge.

    Other parameters are those of `Stack`. The graph has the features: ``graph.edge_attr``.
    """

    convolution = GINEConv
    needs_edges = True


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

    normalisation, loops, attends = "none", True, True

    convolution: ClassVar[type[AttentionConv]] = GATConv

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for number, layer in enumerate(self.convolutions):
            assert isinstance(layer, AttentionConv)
            layer.number = number

    def fetch_ids(self, graph: AnyGraph, vertex_ids: Tensor) -> None:
        """Fetch ids of other ranks that dropout needs, now and not in the first call. Collective.

        `vertex_ids` int64 [own rows] are those of the keys, the same object.
        """
        keys = DropoutKeys(vertex_ids, 0, 0)
        for layer, on in zip(self.convs, graphs_for(graph, len(self.convs)), strict=True):
            assert isinstance(layer, AttentionConv)
            dropped = layer.dropped(on, keys)
            if dropped is not None:
                fetch_ids(on, dropped, layer.normalisation)

    def init_conv(
        self,
        f_in: int,
        f_out: int,
        *,
        last: bool,
        heads: int = 1,
        out_heads: int | None = None,
        concat: bool = True,
        v2: bool = False,
        attention_dropout: float | None = None,
        **options: Any,
    ) -> Convolution:
        """A layer of these widths."""
        concat = concat and not last
        if last and out_heads is not None:
            heads = out_heads
        if concat and f_out % heads:
            raise InputError(
                f"{type(self).__name__}: {heads} heads side by side need hidden_channels that are "
                f"a multiple of it, got {f_out}"
            )
        width = f_out // heads if concat else f_out
        dropped = self.dropout if attention_dropout is None else attention_dropout
        kind = GATv2Conv if v2 else self.convolution
        return self.layer(kind, f_in, width, heads, concat, dropout=dropped, **options)


class GATv2(GAT):
    """Layers of :class:`GATv2Conv`."""

    convolution = GATv2Conv
