"""Norms over the vertices of all ranks, with the names and parameters of PyG's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.errors import InputError, check_choice
from spgnn.nn.moments import Moments, moments
from spgnn.nn.propagation import Graph, comm_of, own_of
from spgnn.operands import FIRST_COMPARED

Where = Graph | Communicator


class Norm(nn.Module):
    """Base of the norms. ``norm(x, graph)`` is collective where statistics are over all vertices.

    Attributes
    ----------
    takes_all_rows : bool
        Whether the statistics are over all vertices: then a rank may not leave rows out.
    takes_graph : bool
        Always; what has it is called with the graph beside x.
    """

    takes_all_rows = True
    takes_graph = True

    def __init__(self) -> None:
        super().__init__()
        self._compared = 0

    @abstractmethod
    def forward(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape.

        Parameters
        ----------
        x : Tensor [rows, f]
        graph : what a layer works on, or a Communicator
            Says over which ranks. Of a Propagation with ghosts, own rows alone are counted, and all
            rows are normalised alike.
        shift : Tensor [f], optional
            What is to be added to all rows of x. What a norm takes off again has a gradient of 0
            then. As a sum over x + shift it is rounding, other at any number of ranks, and an
            optimiser that divides by the size of gradients makes whole steps of it.
        """

    @property
    def asks_moments(self) -> bool:
        """Whether it takes statistics over all vertices when it is called, as it is now."""
        return self.takes_all_rows

    def remember(self, found: Moments) -> None:
        """Take moments of all vertices into running ones, if there are any.

        In training a norm does so itself, but where the graph gives it the moments
        (``given_moments``): whoever does may ask it several times.

        Parameters
        ----------
        found : Moments
            Of at least two vertices.
        """

    def reset_parameters(self) -> None:
        """Scales one, shifts zero."""
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def _moments(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Moments:
        """Of x + shift."""
        found = self._unshifted(x, graph)
        if shift is None:
            return found
        # Whatever looks at the mean alone looks at what has been taken off.
        return replace(found, centre=found.centre + shift, mean=found.mean + 0 * shift)

    def _unshifted(self, x: Tensor, graph: Where) -> Moments:
        given = getattr(graph, "given_moments", None)
        if given is not None:
            found: Moments = given(self, x)
            return found
        comm = None if x.is_meta else comm_of(graph)
        if comm is not None and comm.size == 1:
            comm = None
        if comm is not None and self._compared < FIRST_COMPARED:
            # A norm that some ranks alone call would wait for the others for ever.
            self._compared += 1
            comm.check_agreement(
                type(self).__name__, width=x.shape[1], dtype=x.dtype, training=self.training
            )
        return moments(x, own_of(graph), comm)

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
        made: dict[str, Tensor | None] = dict.fromkeys(("weight", "bias"))
        kept: dict[str, Tensor | None] = dict.fromkeys(
            ("running_mean", "running_var", "num_batches_tracked")
        )
        if affine:
            made = {"weight": torch.ones(width, device=device)}
            made["bias"] = torch.zeros(width, device=device)
        if tracked:
            kept["running_mean"] = torch.zeros(width, device=device)
            kept["running_var"] = torch.ones(width, device=device)
            kept["num_batches_tracked"] = torch.tensor(0, device=device)
        for name, tensor in made.items():
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor))
        for name, tensor in kept.items():
            self.register_buffer(name, tensor)


class BatchNorm(Norm):
    """``γ (x − E x) / sqrt(Var x + ε) + β``, over the vertices of all ranks (Ioffe & Szegedy 2015).

    Arguments, parameters and buffers are those of PyG's. Statistics are merged between ranks from
    centred sums; running ones are those of torch: the variance is the unbiased one.

    Parameters
    ----------
    in_channels : int
    eps : float
    momentum : float or None
        ``None`` averages over all calls.
    affine : bool
    track_running_stats : bool
    allow_single_element : bool
        A single vertex in all is normalised as in evaluation, instead of refused.
    device : optional
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

    def forward(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective in training.

        Raises
        ------
        InputError
            If there is one vertex in all, of which there is no variance.
        """
        held = self.module
        if held.running_mean is not None and held.running_var is not None and not self.training:
            scale = self._scale(held.running_var)
            return _scaled(x, _less(held.running_mean, shift), scale, held.bias)
        found = self._moments(x, graph, shift)
        if found.count <= 1 and self.training:
            if not self.allow_single_element:
                raise InputError(f"BatchNorm: a variance needs two vertices, got {found.count}")
            assert held.running_mean is not None
            assert held.running_var is not None
            scale = self._scale(held.running_var)
            return _scaled(x, _less(held.running_mean, shift), scale, held.bias)
        if self.training and not hasattr(graph, "given_moments"):
            self.remember(found)
        return _scaled(found.centred, found.mean, self._scale(found.variance), held.bias)

    def _scale(self, variance: Tensor) -> Tensor:
        scale = (variance + self.eps).rsqrt()
        return scale if self.module.weight is None else scale * self.module.weight

    @property
    def asks_moments(self) -> bool:
        """In evaluation, running ones do."""
        return self.training or self.module.running_mean is None

    @torch.no_grad()
    def remember(self, found: Moments) -> None:
        """Take moments into the running ones.

        Parameters
        ----------
        found : Moments
            Of at least two vertices.
        """
        held = self.module
        if held.running_mean is None:
            return
        assert held.running_var is not None
        assert held.num_batches_tracked is not None
        held.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(held.num_batches_tracked)
        unbiased = found.variance * (found.count / (found.count - 1))
        held.running_mean.lerp_(found.centre + found.mean, momentum)
        held.running_var.lerp_(unbiased, momentum)

    def reset_running_stats(self) -> None:
        """Forget all statistics."""
        held = self.module
        if held.running_mean is not None:
            held.running_mean.zero_()
            assert held.running_var is not None
            held.running_var.fill_(1)
            assert held.num_batches_tracked is not None
            held.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Scales one, shifts zero, no statistics."""
        super().reset_parameters()
        self.reset_running_stats()


class LayerNorm(Norm):
    """``γ (x − E x) / (σ + ε) + β`` over all vertices and channels, or over those of each vertex.

    Parameters
    ----------
    in_channels : int
    eps : float
    affine : bool
    mode : {"graph", "node"}
        ``graph`` is PyG's default; ``node`` is that of Ba et al. (2016) and of torch.
    device : optional
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
        self.takes_all_rows = mode == "graph"
        made = torch.ones(in_channels, device=device), torch.zeros(in_channels, device=device)
        self.weight = nn.Parameter(made[0]) if affine else None
        self.bias = nn.Parameter(made[1]) if affine else None

    def forward(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective in mode ``graph``."""
        if self.mode == "node":
            x = x if shift is None else x + shift
            return F.layer_norm(x, (self.in_channels,), self.weight, self.bias, self.eps)
        found = self._moments(x, graph, shift)
        between = found.centre - found.centre.mean()
        between = between - between.mean()
        offset = between - found.mean.mean()
        variance = (found.variance + (between + found.mean - found.mean.mean()).square()).mean()
        scale = (1 / (variance.sqrt() + self.eps)).expand(self.in_channels)
        if self.weight is not None:
            scale = scale * self.weight
        return _scaled(found.centred, -offset, scale, self.bias)


class GraphNorm(Norm):
    """``γ (x − α E x) / sqrt(E (x − α E x)² + ε) + β`` (Cai et al. 2021); α is learned.

    Parameters
    ----------
    in_channels : int
    eps : float
    device : optional
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, device: Any = None) -> None:
        super().__init__()
        self.in_channels, self.eps = in_channels, eps
        self.weight = nn.Parameter(torch.ones(in_channels, device=device))
        self.bias = nn.Parameter(torch.zeros(in_channels, device=device))
        self.mean_scale = nn.Parameter(torch.ones(in_channels, device=device))

    def forward(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective."""
        found = self._moments(x, graph, shift)
        left = (1 - self.mean_scale) * (found.centre + found.mean)
        scale = self.weight * (found.variance + left.square() + self.eps).rsqrt()
        return _scaled(found.centred, found.mean - left, scale, self.bias)


class PairNorm(Norm):
    """``s (x − E x)``, divided by its root mean square length, or by each one's own (Zhao 2020).

    Parameters
    ----------
    scale : float
        s.
    scale_individually : bool
    eps : float
    """

    def __init__(
        self, scale: float = 1.0, scale_individually: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.scale, self.scale_individually, self.eps = scale, scale_individually, eps

    def forward(self, x: Tensor, graph: Where, shift: Tensor | None = None) -> Tensor:
        """X [rows, f] to the same shape. Collective."""
        found = self._moments(x, graph, shift)
        if self.scale_individually:
            centred = found.centred - found.mean
            length = centred.norm(2, -1, keepdim=True)
            divided: Tensor = self.scale * centred / (self.eps + length)
            return divided
        scale = self.scale * (self.eps + found.variance.sum()).rsqrt()
        return _scaled(found.centred, found.mean, scale.expand_as(found.mean), None)


def _less(mean: Tensor, shift: Tensor | None) -> Tensor:
    return mean if shift is None else mean - shift


def _scaled(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``(x − mean)·scale + bias`` in one pass over x."""
    shift = -mean * scale
    return torch.addcmul(shift if bias is None else shift + bias, x, scale)
