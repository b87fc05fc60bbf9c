"""What all layers on a graph are, and the linear maps in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.errors import InputError, check_integer, suggestion
from spgnn.nn.block import Block
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.propagation import LayerGraph, comm_of, own_rows
from spgnn.operands import check_strided
from spgnn.sparse import CSR


class Convolution(nn.Module):
    """Base of layers on a graph.

    A layer whose ``in_channels`` are −1 finds them when it is first called. Its matrices are then
    drawn on rank 0 and sent to the others.

    Attributes
    ----------
    propagates : bool
        Whether a layer may be given A·X in the place of X: it begins with a product with A.
    looks_at_itself : bool
        Whether it then needs X beside A·X, for a weight of the vertex itself.
    takes_all_rows : bool
        Whether a norm in it takes statistics over all vertices.
    drops_edges : bool
        Whether it is called with keys as well, for a dropout of its own.
    updates : bool
        Whether it is called with an :class:`~spgnn.nn.update.Update` as well, where one comes after
        its bias: it ends with that. Not inherited by a class with a ``forward`` of its own.
    """

    propagates = True
    looks_at_itself = False
    takes_all_rows = False
    drops_edges = False
    updates = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and "updates" not in vars(cls):
            cls.updates = False

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(_find_widths, with_kwargs=True)

    @abstractmethod
    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Z_local must be a tensor of its own, which the next layer may overwrite.
        """

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices anew (Glorot & Bengio 2010, uniform); all else is left as it is."""
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                glorot_(parameter, generator)

    def reset_parameters(self) -> None:
        """Begin anew: matrices from torch's own generator, biases zero, modules in it by their own.

        Where ranks' generators differ, ``graph.replicate(model)`` makes them the same again.
        """
        if not any(lazy_parts(self)):
            begin_anew(self)
            self.reset()

    def restore(self) -> None:
        """What it holds itself and is no matrix, as it began: a bias is zero."""
        bias = getattr(self, "bias", None)
        if isinstance(bias, Tensor):
            nn.init.zeros_(bias)


class Linear(nn.Linear):
    """A linear layer whose bias is zero, and whose f_in may be found later.

    Parameters
    ----------
    f_in : int
        −1 if it is not known yet.
    f_out : int
    bias : bool
    """

    def __init__(self, f_in: int, f_out: int, *, bias: bool = True) -> None:
        super().__init__(max(f_in, 1), f_out, bias=bias)
        if f_in < 0:
            self.in_features, self.weight = -1, UninitializedParameter()
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, H: Tensor) -> Tensor:
        """``H Wᵀ + b`` of H [n, f_in]."""
        if not kernels.has_gemm(H, self.weight):
            return super().forward(H)
        Z = kernels.times_transposed(H, self.weight)
        return Z if self.bias is None else Z.add_(self.bias)

    @property
    def is_lazy(self) -> bool:
        """Whether f_in is not known yet."""
        return isinstance(self.weight, UninitializedParameter)

    def materialise(self, f_in: int) -> None:
        """Find f_in; nothing is drawn."""
        if isinstance(self.weight, UninitializedParameter):
            self.in_features = f_in
            self.weight.materialize((self.out_features, f_in))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any
    ) -> None:
        given = state_dict.get(prefix + "weight")
        if isinstance(given, Tensor) and not isinstance(given, UninitializedParameter):
            self.materialise(given.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *rest, **more)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars or self.is_lazy)


def begin_anew(module: nn.Module) -> None:
    """Layers and linear maps in it as they began, but for matrices; other modules by themselves."""
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


def linear(f_in: int, f_out: int, *, bias: bool = True) -> Linear:
    """A linear layer whose bias is zero."""
    return Linear(f_in, f_out, bias=bias)


def glorot_(matrix: Tensor, generator: torch.Generator | None = None) -> None:
    """Overwrite a matrix, or each of a batch, with uniform draws (Glorot & Bengio 2010)."""
    bound = (6 / sum(matrix.shape[-2:])) ** 0.5
    with torch.no_grad():
        matrix.uniform_(-bound, bound, generator=generator)


def multiplies_first(H_local: Tensor, f_out: int, graph: LayerGraph) -> bool:
    """Whether A (H W) moves fewer bytes than (A H) W, with W [f_in, f_out].

    Each costs the width that travels, forward and backward; but the input needs no gradient, so
    (A X) W has no product in backward. Of a block, where nothing travels, operations count.
    """
    f_in = H_local.shape[1]
    if isinstance(graph, Block):
        return graph.multiplies_first(f_in, f_out, gradient=H_local.requires_grad)
    if not torch.is_grad_enabled():
        return f_out <= f_in
    return 2 * f_out <= f_in * (2 if H_local.requires_grad else 1)


def lazy_parts(module: nn.Module) -> Iterator[Linear]:
    """Linear layers in it whose f_in is not known yet."""
    return (part for part in module.modules() if isinstance(part, Linear) and part.is_lazy)


def width_of(H_local: Features) -> int:
    """Columns of features, however they are stored."""
    return int((H_local.AX_local if isinstance(H_local, Propagated) else H_local).shape[1])


def linear_of_own(linear: nn.Module, H: Features, on: LayerGraph) -> Tensor:
    """A linear map of the vertices whose rows a layer makes."""
    assert isinstance(linear, Linear)
    if isinstance(H, CSR):
        return own_rows(on, kernels.spmm(H, linear.weight.T)) + linear.bias
    made: Tensor = linear(features_beside(H) if isinstance(H, Propagated) else own_rows(on, H))
    return made


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


def check_channels(name: str, **channels: int) -> None:
    """Refuse widths that cannot be; −1 stands for an ``in_channels`` that is found later.

    Raises
    ------
    InputError
    """
    for what, width in channels.items():
        lowest = -1 if what == "in_channels" else 1
        if isinstance(width, bool) or not isinstance(width, int) or width < lowest or not width:
            later = ", or -1 to find it at the first call" if lowest < 0 else ""
            raise InputError(f"{name}: {what} must be a positive integer{later}, got {width!r}")


# What PyG's message passing takes beside, and what it stands for if nobody says anything.
_DEFAULTS: dict[str, Any] = {
    "flow": "source_to_target",
    "node_dim": -2,
    "decomposed_layers": 1,
    "aggr_kwargs": None,
}


def check_options(layer: nn.Module, given: dict[str, Any], **defaults: Any) -> None:
    """Refuse options that a layer does not know, unless they say what it does anyway.

    Parameters
    ----------
    layer : Module
    given : dict
        Options by name.
    defaults
        Of PyG's layer, for options that ours has not.

    Raises
    ------
    InputError
    """
    known = _DEFAULTS | defaults
    for name, value in given.items():
        if name in known and value == known[name]:
            continue
        kind = type(layer)
        taken = [key for key in signature(kind.__init__).parameters if key != "self"][:-1]
        if name in known:
            raise InputError(f"{kind.__name__}: {name}={value!r} is not supported")
        raise InputError(f"{kind.__name__} has no option {name}{suggestion(name, taken)}")


def _find_widths(layer: Convolution, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    if given and isinstance(given[0], Tensor):
        _check_features(type(layer).__name__, given[0])
    lazy = list(lazy_parts(layer))
    if not lazy:
        return
    H_local, graph = signature(layer.forward).bind(*given, **named).args[:2]
    for part in lazy:
        part.materialise(width_of(H_local))
    layer.reset()
    comm = comm_of(graph)
    if comm is not None and not lazy[0].weight.is_meta:
        same_as_rank_zero(layer, comm)


def _check_features(layer: str, H_local: Tensor) -> None:
    """Refuse features that no layer multiplies."""
    if H_local.dim() != 2:
        raise InputError(f"{layer}: features must be [rows, f], got {list(H_local.shape)}")
    check_strided(f"{layer}: features", H_local)
    if not H_local.is_floating_point():
        raise InputError(
            f"{layer}: features must be floating numbers, got {H_local.dtype}: float()"
        )


def same_as_rank_zero(module: nn.Module, comm: Communicator) -> None:
    """Overwrite parameters with those of rank 0. Collective."""
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    comm.check_agreement(f"the parameters of {type(module).__name__}", **shapes)
    with torch.no_grad():
        for parameter in module.parameters():
            sent = parameter.detach().contiguous()
            comm.broadcast(sent, 0).wait()
            parameter.copy_(sent)
