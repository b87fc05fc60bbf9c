"""Layers on a graph: what all of them are, and the linear maps in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from spgnn.autograd import agreeing, check_strided
from spgnn.comm import Communicator
from spgnn.errors import InputError, check_integer, suggestion
from spgnn.graph.features import Features, times, width_of
from spgnn.graph.parameters import broadcast_
from spgnn.graph.protocol import Aggregation, AnyGraph, Graph, as_graph
from spgnn.kernels.gemm import has_gemm, times_transposed
from spgnn.nn.norm import LinearStage, NormGraph, Stage, norm_of, run_stages, stages_between
from spgnn.nn.rowwise import Activation, DropoutKeys, check_width
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import has_hooks

# Of the features of sources and targets, which may be of two vertex types.
Channels = int | tuple[int, int]


class GraphModule(nn.Module):
    """A module that is called with rows and the graph."""


def takes_graph(model: nn.Module) -> bool:
    """True for a model of our layers, which is called with the graph and not with edge_index."""
    return any(isinstance(part, GraphModule) for part in model.modules())


def edge_arguments(model: nn.Module, graph: Any) -> dict[str, Tensor]:
    """Weights and features of a graph's edges, where `forward` of a model of others names them.

    Features that it may do without are for models of which some layer has an `edge_dim`.
    """
    try:
        named = signature(getattr(model, "_orig_mod", model).forward).parameters
    except ValueError:  # TorchScript's have none
        return {}
    result = {}
    for name in ("edge_weight", "edge_attr") if "edge_index" in named else ():
        if name not in named:
            continue
        optional = named[name].default is not Parameter.empty
        unused = not any(getattr(part, "edge_dim", None) for part in model.modules())
        if name == "edge_attr" and optional and unused:
            continue
        if (values := getattr(graph, name, None)) is not None:
            result[name] = values
    return result


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every part is as it was afterwards."""
    training = [part for part in model.modules() if part.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


class Convolution(GraphModule):
    """Base of layers on a graph: an aggregation, and what is done to its result.

    A layer describes its aggregation in `aggregation`, goes on from the result in `update`, and
    names the bias that comes last (`shift`) and the modules after that (`tail`). All but the
    aggregation itself treats rows independently; norms in the tail look at all vertices. A layer
    that aggregates more than once has a `forward` of its own.

    Our layers have the arguments of PyG's, in their order, and the names of its parameters. With
    ``in_channels=-1`` one finds its width in its first call; its matrices are then drawn on rank 0
    and sent to the others. Where `in_channels` may be a pair, it is of sources and targets of two
    types. ``cached`` has no effect: a graph keeps its matrices. Further options are PyG's of
    message passing, which are refused unless they say what a layer does anyway.

    Parameters
    ----------
    options : dict
        Further options by name.
    aggr : str, optional
        The reduction of a layer that has no choice of it.
    channels, pair
        Widths, to be checked; whether ``in_channels`` may be two.

    Attributes
    ----------
    accepts_propagated : bool
        True if a layer may be given A·X instead of X: its aggregation is a sum.
    uses_own_rows : bool
        Whether it needs the vertex's own row as well as the sum.
    uses_keys : bool
        Whether it drops something itself in training, and needs keys for that.
    uses_edges : bool
        Whether it takes features of edges.
    """

    accepts_propagated = False
    uses_own_rows = False
    uses_keys = False
    uses_edges = False
    calls_agreed = 0

    def __init__(
        self,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        aggr: str | None = None,
        pair: bool = False,
        **channels: Channels,
    ) -> None:
        super().__init__()
        check_channels(type(self).__name__, pair=pair, **channels)
        self._takes = both(channels.get("in_channels", -1))[0]
        check_options(self, options, **({} if aggr is None else {"aggr": aggr}))
        self.register_forward_pre_hook(find_widths, with_kwargs=True)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The layer on this rank's rows; what one rank refuses of its own, all ranks do."""
        graph = arguments[1] if len(arguments) > 1 else named.get("graph")
        on = graph.mesh.everyone if isinstance(graph, DistMatrix) else getattr(graph, "comm", None)
        return agreeing(self, on, partial(super().__call__, *arguments, **named))

    @property
    def takes(self) -> int:
        """Columns of x that the layer takes; -1 if any, or if it does not know yet."""
        if self._takes != -1:
            return self._takes
        linear = (part for part in self.modules() if isinstance(part, Linear))
        return next((p.in_features for p in linear if p.waits and not p.of_targets), -1)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """The request for `graph`, of the rows H [columns, f_in] that the layer is given."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither `aggregation` nor a `forward` of its own"
        )

    def update(self, Z: Tensor, H: Features, graph: Graph) -> Tensor:
        """Rows of the layer, of the aggregated ones Z [rows, f], which it may overwrite.

        By default they are the same. H is for layers that look at ``graph.own(H)``.
        """
        return Z

    @property
    def shift(self) -> Tensor | None:
        """The bias, if it is added to the result of `update`."""
        bias = getattr(self, "bias", None)
        return bias if isinstance(bias, Tensor) else None

    def tail(self) -> Sequence[Stage]:
        """Modules after the bias; those that are norms look at the vertices of all ranks."""
        return ()

    def forward(
        self,
        H_local: Features,
        graph: AnyGraph,
        edge_attr: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Parameters
        ----------
        H_local : Tensor [columns, f_in], CSR, or Propagated
        edge_attr : Tensor [local edges, edge_dim], optional
            Of layers that take features of edges, in the order of ``graph.edge_index``; by default
            ``graph.edge_attr``.
        keys : DropoutKeys, optional
            Of layers that drop edges or messages, in training.

        Returns
        -------
        Tensor [rows, f_out]
            A tensor of its own, which the next layer may overwrite.
        """
        on = as_graph(graph)
        Z = on.aggregate(self.aggregation(H_local, on, edge_attr, keys))
        return run_stages(self.tail(), self.update(Z, H_local, on), on, self.shift)

    @property
    def aggregates_once(self) -> bool:
        """True if the layer is one `aggregation`, its `update` and its tail, and no more."""
        return type(self).forward is Convolution.forward

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices again (Glorot & Bengio 2010, uniform); all else is left as it is."""
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                glorot_(parameter, generator)

    def reset_parameters(self) -> None:
        """Initialise: matrices from torch's own generator, biases zero, other modules themselves.

        Where ranks' generators differ, ``graph.replicate(model)`` makes them the same again.
        """
        if not any(lazy_parts(self)):
            initialise(self)
            self.reset()

    def restore(self) -> None:
        """Initialise what is no matrix: a bias is zero."""
        bias = getattr(self, "bias", None)
        if isinstance(bias, Tensor):
            nn.init.zeros_(bias)


class Linear(nn.Linear):
    """A linear layer whose bias is zero, and whose f_in may be found later (−1).

    With `of_targets` it is of the vertices that a layer makes, where these are of another type.
    """

    def __init__(
        self, f_in: int, f_out: int, *, bias: bool = True, of_targets: bool = False
    ) -> None:
        super().__init__(max(f_in, 1), f_out, bias=bias)
        self.of_targets, self.waits = of_targets, f_in < 0
        if self.waits:
            self.in_features, self.weight = -1, UninitializedParameter()
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, H: Tensor) -> Tensor:
        """``H Wᵀ + b`` of H [n, f_in]."""
        if not has_gemm(H, self.weight):
            return super().forward(H)
        Z = times_transposed(H, self.weight)
        return Z if self.bias is None else Z.add_(self.bias)

    @property
    def is_lazy(self) -> bool:
        """True if f_in is not known yet."""
        return isinstance(self.weight, UninitializedParameter)

    def materialise(self, f_in: int) -> None:
        """Find f_in; nothing is drawn."""
        if isinstance(self.weight, UninitializedParameter):
            self.in_features = f_in
            self.weight.materialize((self.out_features, f_in))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any
    ) -> None:
        weight = state_dict.get(prefix + "weight")
        if isinstance(weight, Tensor) and not isinstance(weight, UninitializedParameter):
            self.materialise(weight.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *rest, **more)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars or self.is_lazy)


class MLP(nn.Module):
    """``lins[0]``, norm, activation, ``lins[1]``, …; parameters have the names of PyG's ``MLP``."""

    takes_graph = True

    def __init__(
        self,
        widths: Sequence[int],
        *,
        act: Activation | None,
        act_first: bool = False,
        norm: str | nn.Module | type[nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.act, self.act_first = act, act_first
        self.lins = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(
            norm_of(norm, width, norm_kwargs or {}) for width in widths[1:-1]
        )

    def forward(self, x: Tensor, graph: NormGraph) -> Tensor:
        """X [rows, widths[0]] to [rows, widths[-1]]. Collective if a norm is."""
        return run_stages([_product(self.lins[0]), *self.stages()], x, as_graph(graph))

    def stages(self) -> list[Stage]:
        """All that comes after the first linear layer; the result of that is overwritten."""
        result: list[Stage] = []
        for norm, lin in zip(self.norms, self.lins[1:], strict=True):
            product = _product(lin)
            hidden = isinstance(product, LinearStage)
            result += stages_between(norm, self.act, self.act_first, hidden=hidden)
            result.append(product)
        return result


def _product(lin: nn.Module) -> Stage:
    """A linear layer whose bias the next stage adds, unless somebody looks at the layer."""
    if not isinstance(lin, Linear) or type(lin).forward is not Linear.forward or has_hooks(lin):
        return lin
    return LinearStage(lin.weight, lin.bias)


def initialise(module: nn.Module) -> None:
    """Biases zero in its layers and linear maps; other modules reset themselves."""
    for part in module.modules():
        if isinstance(part, Convolution):
            part.restore()
        elif isinstance(part, Linear):
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        else:
            reset = getattr(part, "reset_parameters", None)
            if part is not module and callable(reset):
                reset()


def both(in_channels: Channels) -> tuple[int, int]:
    """The width of sources and that of targets."""
    return in_channels if isinstance(in_channels, tuple) else (in_channels, in_channels)


def glorot_(matrix: Tensor, generator: torch.Generator | None = None) -> None:
    """Overwrite a matrix, or each of a batch, with uniform draws (Glorot & Bengio 2010)."""
    bound = (6 / sum(matrix.shape[-2:])) ** 0.5
    with torch.no_grad():
        matrix.uniform_(-bound, bound, generator=generator)


def lazy_parts(module: nn.Module) -> Iterator[Linear]:
    """Linear layers in it whose f_in is not known yet."""
    return (part for part in module.modules() if isinstance(part, Linear) and part.is_lazy)


def linear_of(layer: Linear, H: Tensor | CSR) -> Tensor:
    """A linear layer of dense or sparse rows."""
    if isinstance(H, Tensor):
        return layer(H)  # type: ignore[no-any-return]
    mapped = times(H, layer.weight)
    return mapped if layer.bias is None else mapped + layer.bias


def linear_of_own(layer: Linear, H: Features, graph: Graph) -> Tensor:
    """A linear layer of the vertices whose rows a layer on a graph makes."""
    if isinstance(H, CSR):
        return graph.own(linear_of(layer, H))
    own = graph.own(H)
    if own.shape[1] != layer.in_features:
        raise InputError(
            f"targets have {own.shape[1]} features, their weights take {layer.in_features}: give "
            "in_channels=(of sources, of targets)"
        )
    return linear_of(layer, own)


def layer_widths(
    in_channels: int,
    hidden: int | Sequence[int],
    num_layers: int,
    out_channels: int | None,
    jk: str | None,
) -> list[int]:
    """Features, and what each layer makes: the last one classes, unless a linear layer does."""
    check_integer("num_layers", num_layers, 1)
    ends = out_channels is not None and jk is None
    if isinstance(hidden, int):
        hidden = [hidden] * (num_layers - ends)
    widths = [in_channels, *hidden, *([out_channels] if ends else [])]
    if len(widths) != num_layers + 1:
        raise InputError(
            f"num_layers={num_layers} does not fit hidden_channels={list(hidden)} and "
            f"out_channels={out_channels}"
        )
    for number, width in enumerate(widths):
        if width != -1 or number:
            what = "hidden_channels" if number else "in_channels"
            check_integer("out_channels" if number == num_layers and ends else what, width, 1)
    if out_channels is not None:
        check_integer("out_channels", out_channels, 1)
    return [int(width) for width in widths if width is not None]


def check_channels(name: str, *, pair: bool = False, **channels: Channels) -> None:
    """Refuse widths that cannot be; ``in_channels`` may be −1, found later, or with `pair` two.

    Raises
    ------
    InputError
    """
    for what, width in channels.items():
        lowest = -1 if what == "in_channels" else 1
        two = pair and lowest < 0 and isinstance(width, tuple) and len(width) == 2
        for one in width if two else (width,):  # type: ignore[union-attr]
            if isinstance(one, bool) or not isinstance(one, int) or one < lowest or not one:
                later = ", or -1 to find it at the first call" if lowest < 0 else ""
                raise InputError(f"{name}: {what} must be a positive integer{later}, got {one!r}")


# Further arguments of PyG's message passing, with their defaults.
_DEFAULTS: dict[str, Any] = {
    "flow": "source_to_target",
    "node_dim": -2,
    "decomposed_layers": 1,
    "aggr_kwargs": None,
}


def check_options(layer: nn.Module, options: Mapping[str, Any], **defaults: Any) -> None:
    """Refuse options that a layer does not know, unless they are PyG's `defaults`.

    Raises
    ------
    InputError
    """
    accepted, kind = _DEFAULTS | defaults, type(layer)
    for name, value in options.items():
        if name not in accepted:
            taken = [key for key in signature(kind.__init__).parameters if key != "self"][:-1]
            raise InputError(f"{kind.__name__} has no option {name}{suggestion(name, taken)}")
        if value != accepted[name]:
            raise InputError(f"{kind.__name__}: {name}={value!r} is not supported")


def find_widths(layer: Convolution, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Check what a layer is given, and find the widths that it does not know: a hook of its own."""
    name = type(layer).__name__
    if arguments and isinstance(arguments[0], Tensor):
        _check_features(name, arguments[0])
    of_edges = arguments[2] if len(arguments) > 2 else named.get("edge_attr")
    if isinstance(of_edges, Tensor) and not layer.uses_edges:
        raise InputError(f"{name} takes no features of edges; weights belong to the graph")
    lazy = list(lazy_parts(layer))
    if not lazy:
        if arguments and isinstance(arguments[0], Features):
            check_width(name, layer.takes, "x", width_of(arguments[0]))
        return
    H_local, graph = signature(layer.forward).bind(*arguments, **named).args[:2]
    on = as_graph(graph)
    for part in lazy:
        apart = part.of_targets and on.bipartite and isinstance(H_local, Tensor)
        part.materialise(width_of(on.own(H_local) if apart else H_local))
    layer.reset()
    comm = on.comm
    if comm is not None and not lazy[0].weight.is_meta:
        copy_from_rank_zero(layer, comm)


def _check_features(layer: str, H_local: Tensor) -> None:
    """Refuse features that no layer multiplies."""
    if H_local.dim() != 2:
        raise InputError(f"{layer}: features must be [rows, f], got {list(H_local.shape)}")
    check_strided(f"{layer}: features", H_local)
    if not H_local.is_floating_point():
        raise InputError(
            f"{layer}: features must be floating numbers, got {H_local.dtype}: float()"
        )


def copy_from_rank_zero(module: nn.Module, comm: Communicator) -> None:
    """Overwrite parameters with those of rank 0. Collective."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    comm.check_agreement(f"the parameters of {type(module).__name__}", **shapes)
    broadcast_(module.parameters(), comm)
