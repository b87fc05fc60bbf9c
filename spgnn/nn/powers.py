"""Layers that multiply several times: SGC, APPNP, LightGCN's, TAGCN, GCNII."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import autocast, product
from spgnn.errors import InputError, check_integer, check_number
from spgnn.nn.convolution import (
    Convolution,
    check_channels,
    check_options,
    linear,
    multiplies_first,
)
from spgnn.nn.dropout import DropoutKeys, edges_dropped, halo_ids
from spgnn.nn.features import Features, Propagated
from spgnn.nn.products import Kind, operator_of
from spgnn.nn.propagation import LayerGraph, matrix_of, own_rows
from spgnn.sparse import CSR

_EDGES = 1 << 15


def _kind(normalize: bool, add_self_loops: bool) -> Kind:
    return ("sym" if add_self_loops else "plain") if normalize else "none"


def _dense(H_local: Features, layer: str) -> Tensor:
    """H itself.

    Raises
    ------
    InputError
        If it is sparse or propagated.
    """
    if isinstance(H_local, CSR):
        raise InputError(f"{layer} needs dense features; make them so, once: nn.densified(X)")
    if isinstance(H_local, Propagated):
        raise InputError(f"{layer} needs X, not A·X")
    return H_local


class SGConv(Convolution):
    """``Z = Â^K H W + b`` (Wu et al. 2019) with ``Â = D^-1/2 (A + I) D^-1/2``.

    Parameters
    ----------
    in_channels, out_channels : int
        −1 finds `in_channels` at the first call.
    K : int
    cached : bool
        Has no effect: give features that are propagated once, ``nn.propagate_``.
    add_self_loops, bias : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("SGConv", in_channels=in_channels, out_channels=out_channels)
        check_options(self, options, aggr="add")
        self.K = check_integer("SGConv K", K, 1)
        self.kind = _kind(True, add_self_loops)
        self.lin = linear(in_channels, out_channels, bias=bias)

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]; the narrower travels. Collective."""
        W, times = self.lin.weight.T, self.K
        if isinstance(H_local, Propagated):
            H_local, times = H_local.AX_local, times - 1
        first = isinstance(H_local, CSR) or multiplies_first(H_local, W.shape[1], graph)
        Z_local = _times(H_local, W) if first else H_local
        assert isinstance(Z_local, Tensor)
        for _ in range(times):
            Z_local = product(operator_of(graph, self.kind), Z_local)
        Z_local = Z_local if first else _times(Z_local, W)
        return Z_local if self.lin.bias is None else Z_local + self.lin.bias.to(Z_local.dtype)


class APPNP(Convolution):
    """``Z_k = (1 − α) Â Z_{k−1} + α H``, K times (Gasteiger et al. 2019); no parameters.

    Parameters
    ----------
    K : int
    alpha : float
    dropout : float
        Of edges, in training: a function of the two vertices, so the same on any number of ranks.
    cached : bool
        Has no effect: a graph keeps its matrices.
    add_self_loops, normalize : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    propagates = False

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options, aggr="add")
        self.K = check_integer("APPNP K", K, 1)
        self.alpha = check_number("APPNP alpha", alpha, 0, 1)
        self.dropout = check_number("APPNP dropout", dropout, 0, 1)
        self.kind = _kind(normalize, add_self_loops)

    def forward(
        self, H_local: Features, graph: LayerGraph, keys: DropoutKeys | None = None
    ) -> Tensor:
        """H_local [rows, f] to the same shape. Collective.

        Raises
        ------
        InputError
            If H is sparse or propagated; in training with dropout, if there are no keys, or rows do
            not travel whole.
        """
        H = _dense(H_local, "APPNP")
        Z, drops = H, self.training and self.dropout > 0
        dropping = self._dropping(graph, keys) if drops else None
        for step in range(self.K):
            if dropping is None:
                AZ = product(operator_of(graph, self.kind), Z)
            else:
                AZ = dropping(Z, step)
            Z = torch.add(AZ * (1 - self.alpha), own_rows(graph, H), alpha=self.alpha)
        return Z

    def _dropping(
        self, graph: LayerGraph, keys: DropoutKeys | None
    ) -> Callable[[Tensor, int], Tensor]:
        """The product of a step whose edges are dropped."""
        if keys is None:
            raise InputError("APPNP with dropout needs keys=DropoutKeys(vertex_ids, seed, epoch)")
        if self.kind == "plain":
            raise InputError("APPNP: dropout needs add_self_loops=True")
        A = matrix_of(graph, "sym" if self.kind == "sym" else "none")
        ids = halo_ids(A, keys.vertex_ids)
        # Not the numbers of a model's layers, whose masks are others.
        return lambda Z, step: edges_dropped(A, Z, ids, keys.key(_EDGES + step), self.dropout)


class LGConv(Convolution):
    """``Z = D^-1/2 A D^-1/2 H`` (LightGCN, He et al. 2020); no parameters.

    Parameters
    ----------
    normalize : bool
        ``False``: A as it is.
    options
        Of PyG's message passing; none but their defaults.
    """

    propagates = False

    def __init__(self, normalize: bool = True, **options: Any) -> None:
        super().__init__()
        check_options(self, options, aggr="add")
        self.kind = _kind(normalize, add_self_loops=False)

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f] to Z_local [rows, f]. Collective."""
        return product(operator_of(graph, self.kind), _dense(H_local, "LGConv"))


class TAGConv(Convolution):
    """``Z = Σ_k Â^k H W_k + b`` for k = 0 … K, ``Â = D^-1/2 A D^-1/2`` (Du et al. 2017).

    Parameters
    ----------
    in_channels, out_channels : int
        −1 finds `in_channels` at the first call.
    K : int
    bias, normalize : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    propagates = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 3,
        bias: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("TAGConv", in_channels=in_channels, out_channels=out_channels)
        check_options(self, options, aggr="add")
        self.K = check_integer("TAGConv K", K, 0)
        self.kind = _kind(normalize, add_self_loops=False)
        self.lins = nn.ModuleList(
            linear(in_channels, out_channels, bias=False) for _ in range(K + 1)
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [rows, f_in] to Z_local [rows, f_out]; the narrower travels. Collective.

        Where that is H W: ``H W_0 + Â (H W_1 + Â (H W_2 + …))``.
        """
        A = operator_of(graph, self.kind)
        weights = [lin.weight.T for lin in self.lins if isinstance(lin, nn.Linear)]
        if isinstance(H_local, CSR) or (
            isinstance(H_local, Tensor) and multiplies_first(H_local, weights[0].shape[1], graph)
        ):
            Z_local = _times(H_local, weights[-1])
            for W in reversed(weights[:-1]):
                Z_local = product(A, Z_local) + own_rows(graph, _times(H_local, W))
        else:
            power = _dense(H_local, "TAGConv")
            Z_local = _times(own_rows(graph, power), weights[0])
            for W in weights[1:]:
                power = product(A, power)
                Z_local = Z_local + _times(power, W)
        return Z_local if self.bias is None else Z_local + self.bias.to(Z_local.dtype)


class GCN2Conv(Convolution):
    """``Z = ((1 − α) Â H + α H⁰) ((1 − β) I + β W)`` (GCNII, Chen et al. 2020).

    Called as ``layer(H, H⁰, graph)``. The names ``weight1`` and ``weight2`` are PyG's.

    Parameters
    ----------
    channels : int
    alpha : float
    theta, layer : float and int, optional
        ``β = log(θ / layer + 1)``; 1 without them.
    shared_weights : bool
        ``False``: H⁰ has a matrix of its own.
    cached : bool
        Has no effect: a graph keeps its matrices.
    add_self_loops, normalize : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    propagates = False

    def __init__(
        self,
        channels: int,
        alpha: float,
        theta: float | None = None,
        layer: int | None = None,
        shared_weights: bool = True,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_options(self, options, aggr="add")
        check_integer("GCN2Conv channels", channels, 1)
        if (theta is None) != (layer is None):
            raise InputError("GCN2Conv: theta and layer go together")
        self.alpha = check_number("GCN2Conv alpha", alpha, 0, 1)
        self.beta = 1.0 if theta is None or layer is None else log(theta / layer + 1)
        self.kind = _kind(normalize, add_self_loops)
        self.weight1 = nn.Parameter(torch.empty(channels, channels))
        self.weight2 = None if shared_weights else nn.Parameter(torch.empty(channels, channels))
        self.reset()

    def forward(self, H_local: Tensor, H_0: Tensor, graph: LayerGraph) -> Tensor:  # type: ignore[override]
        """H_local [columns, f] and H⁰ of the same vertices to Z_local [rows, f]. Collective."""
        AH = product(operator_of(graph, self.kind), _dense(H_local, "GCN2Conv")) * (1 - self.alpha)
        first = own_rows(graph, _dense(H_0, "GCN2Conv")) * self.alpha
        if self.weight2 is None:
            return self._mixed(AH + first, self.weight1)
        return self._mixed(AH, self.weight1) + self._mixed(first, self.weight2)

    def _mixed(self, H: Tensor, W: Tensor) -> Tensor:
        H, W = autocast(H), autocast(W)
        return torch.addmm(H, H, W, beta=1 - self.beta, alpha=self.beta)


def _times(H_local: Features, W: Tensor) -> Tensor:
    if isinstance(H_local, CSR):
        return kernels.spmm(H_local, W)
    assert isinstance(H_local, Tensor)
    return kernels.times_transposed(H_local, W.T)
