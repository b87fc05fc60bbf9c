"""Norms over the vertices of all ranks, with the names and parameters of PyG's; and stages."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.autograd import FIRST_COMPARED
from spgnn.comm import Communicator
from spgnn.errors import InputError, check_choice, unknown
from spgnn.graph.foreign import sees_all
from spgnn.graph.moments import Moments
from spgnn.graph.protocol import AnyGraph, Graph, as_graph
from spgnn.kernels.gemm import times_transposed
from spgnn.nn.rowwise import Activation, Rule, Update, activated, check_width, rule_of

NormGraph = AnyGraph | Communicator
# What runs between two aggregations, on rows [n, f]: row-wise modules and functions, and norms.
Stage = nn.Module | Callable[[Tensor], Tensor]


class Norm(nn.Module):
    """Base of the norms. ``norm(x, graph)`` is collective where statistics are over all vertices.

    Attributes
    ----------
    needs_all_rows : bool
        Whether statistics are over all vertices: then no rank may leave rows out.
    takes_graph : bool
        Always; a module with this attribute is called with x and the graph.
    """

    needs_all_rows = True
    takes_graph = True

    def __init__(self) -> None:
        super().__init__()
        self._compared = 0

    @abstractmethod
    def forward(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape.

        Parameters
        ----------
        x : Tensor [rows, f]
        graph : Graph, DistMatrix or Communicator
            With a recomputed halo, own rows alone are counted, and all rows are normalised alike.
        shift : Tensor [f], optional
            A bias that is added to all rows of x. What a norm subtracts again then has a gradient
            of exactly 0, and not of rounding, of which some optimisers make whole steps.
        """

    @property
    def needs_moments(self) -> bool:
        """True if a call takes statistics over all vertices in the current mode."""
        return self.needs_all_rows

    def remember(self, moments: Moments) -> None:
        """Update running moments, if there are any, with those of at least two vertices.

        In training a norm does so itself, unless its moments say otherwise (`Moments.updates`):
        then the caller who runs it several times for one step does.
        """

    def reset_parameters(self) -> None:
        """Scales one, shifts zero."""
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def _moments(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Moments:
        """The moments of x + shift."""
        check_width(type(self).__name__, getattr(self, "in_channels", -1), "x", x.shape[1])
        on = as_graph(graph)
        comm = on.comm
        new = self._compared < FIRST_COMPARED and not torch.compiler.is_compiling()
        if comm is not None and comm.size > 1 and new:
            # A norm that some ranks alone call would wait for the others for ever.
            self._compared += 1
            comm.check_agreement(
                type(self).__name__, width=x.shape[1], dtype=x.dtype, training=self.training
            )
        moments = on.moments(x)
        if shift is None:
            return moments
        # Whatever looks at the mean alone looks at what has been taken off.
        return replace(moments, centre=moments.centre + shift, mean=moments.mean + 0 * shift)

    def extra_repr(self) -> str:
        """Its width, if it has one."""
        return str(getattr(self, "in_channels", ""))


class _Running(nn.Module):
    """Parameters and buffers of ``torch.nn.BatchNorm1d``, which would look at one rank alone."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, width: int, affine: bool, tracked: bool, device: Any) -> None:
        super().__init__()
        ones, zeros = torch.ones(width, device=device), torch.zeros(width, device=device)
        for name, tensor in (("weight", ones), ("bias", zeros)):
            self.register_parameter(name, nn.Parameter(tensor.clone()) if affine else None)
        number = torch.tensor(0, device=device)
        running = {"running_mean": zeros, "running_var": ones, "num_batches_tracked": number}
        for name, tensor in running.items():
            self.register_buffer(name, tensor if tracked else None)


class BatchNorm(Norm):
    """``γ (x − E x) / sqrt(Var x + ε) + β``, over the vertices of all ranks (Ioffe & Szegedy 2015).

    Arguments, parameters and buffers are those of PyG's. Statistics are merged between ranks from
    centred sums; running ones are those of torch: the variance is the unbiased one.

    Parameters
    ----------
    momentum : float or None
        ``None`` averages over all calls.
    allow_single_element : bool
        A single vertex in all is normalised as in evaluation, instead of refused.
    """

    def __init__(
        self,
        in_channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        allow_single_element: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        if allow_single_element and not track_running_stats:
            raise InputError("BatchNorm: allow_single_element needs track_running_stats")
        self.in_channels, self.eps, self.momentum = in_channels, eps, momentum
        self.allow_single_element = allow_single_element
        self.module = _Running(in_channels, affine, track_running_stats, device)

    def forward(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective in training.

        Raises
        ------
        InputError
            If there is one vertex in all, which has no variance.
        """
        module, moments = self.module, None
        if self.needs_moments:
            moments = self._moments(x, graph, shift)
            if self.training and not moments.has_variance:
                if not self.allow_single_element:
                    what = f"a variance needs two vertices, got {moments.count}"
                    raise InputError(f"BatchNorm: {what}")
                moments = None
        if moments is None:
            assert module.running_mean is not None
            assert module.running_var is not None
            scale = self._scale(module.running_var)
            mean = module.running_mean if shift is None else module.running_mean - shift
            return _scaled(x, mean, scale, module.bias)
        if self.training and moments.updates:
            self.remember(moments)
        return _scaled(moments.centred, moments.mean, self._scale(moments.variance), module.bias)

    def _scale(self, variance: Tensor) -> Tensor:
        scale = (variance + self.eps).rsqrt()
        return scale if self.module.weight is None else scale * self.module.weight

    @property
    def needs_moments(self) -> bool:
        """In evaluation, running ones do."""
        return self.training or self.module.running_mean is None

    @torch.no_grad()
    def remember(self, moments: Moments) -> None:
        """Take moments of at least two vertices into the running ones."""
        module = self.module
        if module.running_mean is None:
            return
        assert module.running_var is not None
        assert module.num_batches_tracked is not None
        module.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(module.num_batches_tracked)
        unbiased = moments.variance * (moments.count / (moments.count - 1))
        mean, dtype = moments.centre + moments.mean, module.running_mean.dtype
        module.running_mean.lerp_(mean.to(dtype), momentum)
        module.running_var.lerp_(unbiased.to(dtype), momentum)

    def reset_running_stats(self) -> None:
        """Forget all statistics."""
        for name, buffer in self.module.named_buffers():
            buffer.fill_(name == "running_var")

    def reset_parameters(self) -> None:
        """Scales one, shifts zero, no statistics."""
        super().reset_parameters()
        self.reset_running_stats()


class LayerNorm(Norm):
    """``γ (x − E x) / (σ + ε) + β`` over all vertices and channels, or over those of each vertex.

    Parameters
    ----------
    mode : {"graph", "node"}
        ``graph`` is PyG's default; ``node`` is that of Ba et al. (2016) and of torch.
    """

    def __init__(
        self,
        in_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        mode: Literal["graph", "node"] = "graph",
        device: Any = None,
    ) -> None:
        super().__init__()
        check_choice("LayerNorm mode", mode, ("graph", "node"))
        self.in_channels, self.eps, self.mode = in_channels, eps, mode
        self.needs_all_rows = mode == "graph"
        initial = torch.ones(in_channels, device=device), torch.zeros(in_channels, device=device)
        self.weight = nn.Parameter(initial[0]) if affine else None
        self.bias = nn.Parameter(initial[1]) if affine else None

    def forward(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective in mode ``graph``."""
        if self.mode == "node":
            x = x if shift is None else x + shift
            return F.layer_norm(x, (self.in_channels,), self.weight, self.bias, self.eps)
        moments = self._moments(x, graph, shift)
        between = moments.centre - moments.centre.mean()
        between = between - between.mean()
        offset = between - moments.mean.mean()
        variance = (
            moments.variance + (between + moments.mean - moments.mean.mean()).square()
        ).mean()
        scale = (1 / (variance.sqrt() + self.eps)).expand(self.in_channels)
        if self.weight is not None:
            scale = scale * self.weight
        return _scaled(moments.centred, -offset, scale, self.bias)


class GraphNorm(Norm):
    """``γ (x − α E x) / sqrt(E (x − α E x)² + ε) + β`` (Cai et al. 2021); α is learned."""

    def __init__(self, in_channels: int, eps: float = 1e-5, device: Any = None) -> None:
        super().__init__()
        self.in_channels, self.eps = in_channels, eps
        self.weight = nn.Parameter(torch.ones(in_channels, device=device))
        self.bias = nn.Parameter(torch.zeros(in_channels, device=device))
        self.mean_scale = nn.Parameter(torch.ones(in_channels, device=device))

    def forward(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective."""
        moments = self._moments(x, graph, shift)
        left = (1 - self.mean_scale) * (moments.centre + moments.mean)
        scale = self.weight * (moments.variance + left.square() + self.eps).rsqrt()
        return _scaled(moments.centred, moments.mean - left, scale, self.bias)


class PairNorm(Norm):
    """``s (x − E x)``, divided by its root mean square length, or by each one's own (Zhao 2020).

    Parameters
    ----------
    scale : float
        s.
    """

    def __init__(
        self, scale: float = 1.0, scale_individually: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.scale, self.scale_individually, self.eps = scale, scale_individually, eps

    def forward(self, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective."""
        moments = self._moments(x, graph, shift)
        if self.scale_individually:
            centred = moments.centred - moments.mean
            length = centred.norm(2, -1, keepdim=True)
            divided: Tensor = self.scale * centred / (self.eps + length)
            return divided
        scale = self.scale * (self.eps + moments.variance.sum()).rsqrt()
        return _scaled(moments.centred, moments.mean, scale.expand_as(moments.mean), None)


def _scaled(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``(x − mean)·scale + bias`` in one pass over x."""
    shift = -mean * scale
    return torch.addcmul(shift if bias is None else shift + bias, x, scale)


_NORMS: dict[str, type[nn.Module]] = {
    "batch": BatchNorm,
    "layer": LayerNorm,
    "graph": GraphNorm,
    "pair": PairNorm,
}


def norm_of(
    norm: str | nn.Module | type[nn.Module] | None, width: int, options: dict[str, Any]
) -> nn.Module:
    """A norm of its name; ``Identity`` of none."""
    if isinstance(norm, nn.Module):
        check_local(norm)
        return copy.deepcopy(norm)
    if norm is None or norm == "none":
        return nn.Identity()
    kind = norm
    if isinstance(norm, str):
        name = norm.lower().replace("_", "").replace("-", "").removesuffix("norm")
        if name not in _NORMS:
            raise unknown("norm", norm, ("none", *_NORMS))
        kind = _NORMS[name]
    assert isinstance(kind, type)
    arguments = () if kind is PairNorm else (width,)
    try:
        result = kind(*arguments, **options)
    except TypeError as error:
        raise InputError(f"norm {kind.__name__}: {error}") from None
    check_local(result)
    return result


@dataclass(frozen=True, eq=False)
class LinearStage:
    """The stage of a linear layer, whose bias the next stage adds."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, Z: Tensor) -> Tensor:
        """``Z Wᵀ``."""
        return times_transposed(Z, self.weight)


@dataclass(frozen=True, eq=False)
class Skip:
    """The stage of a skip connection: it adds rows."""

    rows: Tensor

    def __call__(self, Z: Tensor) -> Tensor:
        """``Z + rows``."""
        return Z + self.rows


def rule_after(norm: nn.Module, act: Activation | None, act_first: bool) -> Rule | None:
    """The activation's rule, if one pass over the rows after the norm is all of it."""
    ends = isinstance(norm, nn.Identity) or (isinstance(norm, Norm) and not act_first)
    return rule_of(act) if ends else None


def stages_between(
    norm: nn.Module, act: Activation | None, act_first: bool, **update: Any
) -> list[Stage]:
    """A norm and an activation, in one pass with what else `update` says where that is possible."""
    rule, bare = rule_after(norm, act, act_first), isinstance(norm, nn.Identity)
    owned = act_first or bare or isinstance(norm, Norm)
    last: Stage = partial(activated, act, owned=owned) if rule is None else Update(rule, **update)
    first: list[Stage] = [] if bare else [norm]
    return [last, *first] if act_first else [*first, last]


def run_stages(
    stages: Sequence[Stage], Z: Tensor, graph: Graph, shift: Tensor | None = None
) -> Tensor:
    """Run stages on rows, after a bias that is still to be added. Collective if a norm is.

    Parameters
    ----------
    Z : Tensor [rows, f]
        May be overwritten.
    shift : Tensor [f], optional
        The bias: the first stage gets it where that is a norm or an `Update`.
    """
    for place, stage in enumerate(stages):
        waits = isinstance(stage, Update) or takes_shift(stage)
        if isinstance(stage, Skip):  # sums commute: a norm that follows gets the bias
            waits = any(map(takes_shift, stages[place + 1 : place + 2]))
        if shift is not None and not waits:
            # In place: nobody keeps the product itself.
            Z, shift = Z.add_(shift.to(Z.dtype)), None
        Z = run_stage(stage, Z, graph, shift)
        if isinstance(stage, LinearStage):
            shift = stage.bias
        elif not isinstance(stage, Skip):
            shift = None
    return Z if shift is None else Z.add_(shift.to(Z.dtype))


def run_stage(stage: Stage, x: Tensor, graph: NormGraph, shift: Tensor | None = None) -> Tensor:
    """Run one stage; norms in it, and in a Sequential, look at all ranks."""
    if isinstance(stage, Norm) and x.dtype in (torch.bfloat16, torch.float16):
        # Statistics, and what they are taken of, are float32.
        wide: Tensor = _shifted(stage, x.float(), graph, shift)
        return wide.to(x.dtype)
    if isinstance(stage, Update):
        return stage(x, shift)
    if getattr(stage, "takes_graph", False):
        return _shifted(stage, x, graph, shift)
    if isinstance(stage, nn.Sequential):
        for part in stage:
            x = run_stage(part, x, graph)
        return x
    rows: Tensor = stage(x)
    return rows


def _shifted(module: Any, x: Tensor, graph: NormGraph, shift: Tensor | None) -> Tensor:
    rows: Tensor = module(x, graph) if shift is None else module(x, graph, shift)
    return rows


def takes_shift(stage: Stage) -> bool:
    """True for a norm of ours, which takes the bias as a separate argument."""
    return type(stage) in _NORMS.values()


def check_local(module: nn.Module) -> None:
    """Refuse what takes statistics over the rows of one rank, where ours look at all."""
    for part in module.modules():
        if sees_all(part):
            kind = type(part)
            raise InputError(
                f"{kind.__module__.partition('.')[0]}'s {kind.__name__} takes statistics over the "
                "rows of one rank; spgnn.nn has BatchNorm, LayerNorm, GraphNorm and PairNorm"
            )


def needs_all_rows(module: nn.Module) -> bool:
    """True if any norm of a module takes statistics over all vertices."""
    return any(isinstance(part, Norm) and part.needs_all_rows for part in module.modules())
