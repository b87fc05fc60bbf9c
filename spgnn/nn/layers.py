"""Layers that sum over neighbours: GCN, GraphSAGE, GraphConv, GIN; SGC, APPNP, LG, TAG, GCNII."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from spgnn.attention import EdgeDropout
from spgnn.autograd import autocast, paper_layer
from spgnn.errors import InputError, check_choice, check_integer, check_number
from spgnn.graph.features import Features, Propagated, times
from spgnn.graph.protocol import (
    Aggregation,
    AnyGraph,
    Graph,
    Normalisation,
    Reduction,
    as_graph,
    dense,
)
from spgnn.nn.convolution import (
    MLP,
    Channels,
    Convolution,
    Linear,
    both,
    glorot_,
    initialise,
    linear_of,
    linear_of_own,
)
from spgnn.nn.norm import Stage, check_local, needs_all_rows
from spgnn.nn.rowwise import DropoutKeys
from spgnn.registry import REDUCTIONS
from spgnn.sparse import CSR

# How neighbours are summed, and over which matrix.
_SUMS: dict[str, tuple[Reduction, Normalisation]] = {
    "mean": ("sum", "row"),
    "sum": ("sum", "none"),
    "add": ("sum", "none"),
}


def _over_neighbours(what: str, aggr: str) -> tuple[Reduction, Normalisation]:
    """The reduction and the matrix of what a layer calls `aggr`."""
    if isinstance(aggr, str) and aggr in _SUMS:
        return _SUMS[aggr]
    check_choice(what, aggr, tuple(dict.fromkeys((*_SUMS, *REDUCTIONS))))
    return aggr, "none"


# Keys of dropped edges are apart from those of features.
EDGES = 1 << 15


class GCNConv(Convolution):
    """``Z = Â H W + b`` with ``Â = D^-1/2 (A + I) D^-1/2`` (Kipf & Welling 2017).

    Its gradients are dH = Aᵀ G Wᵀ and dW = (A H)ᵀ G = Hᵀ (Aᵀ G), whichever operand was stored.

    Parameters
    ----------
    improved : bool
        ``A + 2 I`` instead of ``A + I``.
    add_self_loops : bool, optional
        By default if the matrix is normalised.
    normalize : bool
        ``False``: A as it is.
    """

    bias: Tensor | None
    accepts_propagated = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options, aggr="add", in_channels=in_channels, out_channels=out_channels)
        loops = normalize if add_self_loops is None else add_self_loops
        if loops and not normalize:
            raise InputError("GCNConv: add_self_loops=True needs normalize=True")
        self.normalisation = _normalisation(normalize, loops, improved=improved)
        self.lin = Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the matrix again, in the order [f_in, f_out] of its formula."""
        W = torch.empty_like(self.lin.weight.T, memory_format=torch.contiguous_format)
        glorot_(W, generator)
        self.lin.weight.data.copy_(W.T)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``Â H W``."""
        return Aggregation(H, self.lin.weight, normalisation=self.normalisation)


class PaperGCNConv(GCNConv):
    """GCNConv as the code of the ICPP'24 paper runs it, for comparisons."""

    accepts_propagated = False

    def forward(self, H_local: Features, graph: AnyGraph) -> Tensor:  # type: ignore[override]
        """``(Â H) W``. Collective."""
        A = as_graph(graph).matrix("sym")
        Z = paper_layer(A, dense(H_local, "order paper"), self.lin.weight.T)
        return _shifted(Z, self.bias)


class SAGEConv(Convolution):
    """``Z = reduce(H) W_l + H W_r + b`` (Hamilton et al. 2017); by default the mean, D^-1 A H.

    ``lin_l`` is of the neighbours, with the bias, ``lin_r`` of the vertex itself, ``lin`` of the
    projection.

    Parameters
    ----------
    aggr : {"mean", "sum", "max", "min", "std"}
    normalize : bool
        Divide each row by its length.
    root_weight : bool
        Without, there is no W_r.
    project : bool
        Neighbours are ``relu(H W + b)``.
    """

    accepts_propagated = True

    def __init__(
        self,
        in_channels: Channels,
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options, pair=True, in_channels=in_channels, out_channels=out_channels)
        self._reduction = _over_neighbours("SAGEConv aggr", aggr)
        sources, targets = both(in_channels)
        if project and sources < 0:
            raise InputError("SAGEConv: project=True needs in_channels")
        self.aggr, self.normalize = aggr, normalize
        self.lin = Linear(sources, sources) if project else None
        self.lin_l = Linear(sources, out_channels, bias=bias)
        self.lin_r = None
        if root_weight:
            self.lin_r = Linear(targets, out_channels, bias=False, of_targets=True)
        self.accepts_propagated = self._reduction[0] == "sum" and not project
        self.uses_own_rows = root_weight

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``reduce(H) W_l + H W_r``; with a projection, H W_r comes in `update`."""
        R, operand = None if self.lin_r is None else self.lin_r.weight, H
        if self.lin is not None:
            if isinstance(H, Propagated):
                raise InputError("SAGEConv: project needs X, and not A·X")
            operand, R = torch.relu(linear_of(self.lin, H)), None
        reduce, normalisation = self._reduction
        return Aggregation(
            operand, self.lin_l.weight, R, normalisation=normalisation, reduce=reduce
        )

    def update(self, Z: Tensor, H: Features, graph: Graph) -> Tensor:
        """Add H W_r, where the operand was another."""
        if self.lin is None or self.lin_r is None:
            return Z
        return Z + linear_of_own(self.lin_r, H, graph)

    @property
    def shift(self) -> Tensor | None:
        """The bias of `lin_l`."""
        return self.lin_l.bias

    def tail(self) -> Sequence[Stage]:
        """Division by the length of each row, if asked for."""
        return (partial(F.normalize, dim=-1),) if self.normalize else ()


class GraphConv(Convolution):
    """``Z = reduce(H) W_rel + b + H W_root`` (Morris et al. 2019); by default the sum, A H.

    Parameters
    ----------
    aggr : {"add", "sum", "mean", "max", "min", "std"}
        Only sums know weights.
    """

    uses_own_rows = True
    accepts_propagated = True

    def __init__(
        self,
        in_channels: Channels,
        out_channels: int,
        aggr: str = "add",
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options, pair=True, in_channels=in_channels, out_channels=out_channels)
        self._reduction = _over_neighbours("GraphConv aggr", aggr)
        self.aggr = aggr
        sources, targets = both(in_channels)
        self.lin_rel = Linear(sources, out_channels, bias=bias)
        self.lin_root = Linear(targets, out_channels, bias=False, of_targets=True)
        self.accepts_propagated = self._reduction[0] == "sum"

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``reduce(H) W_rel + H W_root``; refuses weights that the reduction does not know."""
        reduce, normalisation = self._reduction
        if self._reduction != ("sum", "none") and graph.local_edges.weight is not None:
            raise InputError(f"GraphConv: aggr {self.aggr} of weighted edges is not supported")
        W, R = self.lin_rel.weight, self.lin_root.weight
        return Aggregation(H, W, R, normalisation=normalisation, reduce=reduce)

    @property
    def shift(self) -> Tensor | None:
        """The bias of `lin_rel`."""
        return self.lin_rel.bias


class GINConv(Convolution):
    """``Z = nn(A H + (1 + ε) H)`` (Xu et al. 2019), with A the adjacency as it is.

    The sum over neighbours is linear, so where `nn` begins with a linear layer it may come after
    that: the narrower of H and H W_1 travels.

    Parameters
    ----------
    nn : Module
        Anything that takes rows one by one. Norms of spgnn.nn in a Sequential look at all ranks.
    train_eps : bool
        Whether ε is learned.
    """

    eps: Tensor
    uses_own_rows = True
    accepts_propagated = True

    def __init__(
        self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **options: Any
    ) -> None:
        super().__init__(options, aggr="add")
        if not isinstance(nn, torch.nn.Module):
            raise InputError(f"GINConv: nn must be a torch.nn.Module, got {type(nn).__name__}")
        self.nn = nn
        self.needs_all_rows = needs_all_rows(nn)
        self.initial_eps = float(eps)
        if train_eps:
            self.eps = torch.nn.Parameter(torch.full((1,), float(eps)))
        else:
            self.register_buffer("eps", torch.full((1,), float(eps)))

    @property
    def takes(self) -> int:
        """Columns of the linear layer that `nn` begins with."""
        first, _ = first_linear(self.nn)
        return -1 if first is None else first.in_features

    def reset_parameters(self) -> None:
        """Initialise ε, and the modules in `nn`, those of torch by their own rules."""
        initialise(self)
        for part in self.modules():
            if isinstance(part, Linear):
                glorot_(part.weight)

    def restore(self) -> None:
        """Initialise ε."""
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``(A + (1 + ε) I) H W_1``; a sparse H needs an `nn` that begins with a linear layer."""
        if self.training and graph.comm is not None and graph.comm.size > 1:
            check_local(self)
        first, _ = first_linear(self.nn)
        if first is None and isinstance(H, CSR):
            _ = dense(H, "GINConv, where nn does not begin with a linear layer,")
        return Aggregation(H, None if first is None else first.weight, self_loop=1 + self.eps)

    @property
    def shift(self) -> Tensor | None:
        """The bias of the linear layer that `nn` begins with."""
        first, _ = first_linear(self.nn)
        return None if first is None else first.bias

    def tail(self) -> Sequence[Stage]:
        """`nn`, without the linear layer that it begins with."""
        first, rest = first_linear(self.nn)
        return [self.nn] if first is None else rest


def first_linear(module: nn.Module) -> tuple[nn.Linear | None, list[Stage]]:
    """The linear layer that a module begins with, if it does, and all that comes after it."""
    first: nn.Module = module
    rest: list[Stage] = []
    if isinstance(module, MLP):
        first, rest = module.lins[0], module.stages()
    elif isinstance(module, nn.Sequential) and len(module):
        first, rest = module[0], [*module][1:]
    if isinstance(first, nn.Linear) and not isinstance(first.weight, UninitializedParameter):
        return first, rest
    return None, [module]


class SGConv(Convolution):
    """``Z = Â^K H W + b`` (Wu et al. 2019) with ``Â = D^-1/2 (A + I) D^-1/2``.

    Parameters
    ----------
    cached : bool
        Has no effect: give features that are propagated once, ``graph.propagate_``.
    """

    accepts_propagated = True

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
        super().__init__(options, aggr="add", in_channels=in_channels, out_channels=out_channels)
        self.K = check_integer("SGConv K", K, 1)
        self.normalisation = _normalisation(True, add_self_loops)
        self.lin = Linear(in_channels, out_channels, bias=bias)

    def forward(self, H_local: Features, graph: AnyGraph) -> Tensor:  # type: ignore[override]
        """``Â^K H W``; the narrower travels. Collective."""
        on, W, Z, first = as_graph(graph), self.lin.weight, H_local, False
        if not isinstance(H_local, Propagated):
            Z, first = on.operand(Aggregation(H_local, W))
        for _ in range(self.K):
            Z = on.aggregate(Aggregation(Z, normalisation=self.normalisation))
        assert isinstance(Z, Tensor)
        return _shifted(Z if first else times(Z, W), self.lin.bias)


class APPNP(Convolution):
    """``Z_k = (1 − α) Â Z_{k−1} + α H``, K times (Gasteiger et al. 2019); no parameters.

    Parameters
    ----------
    dropout : float
        Of edges, in training: a function of the two vertices, so the same on any number of ranks.
    """

    uses_keys = True

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
        super().__init__(options, aggr="add")
        self.K = check_integer("APPNP K", K, 1)
        self.alpha = check_number("APPNP alpha", alpha, 0, 1)
        self.dropout = check_number("APPNP dropout", dropout, 0, 1)
        self.normalisation = _normalisation(normalize, add_self_loops)

    def forward(  # type: ignore[override]
        self, H_local: Features, graph: AnyGraph, *, keys: DropoutKeys | None = None
    ) -> Tensor:
        """H_local [rows, f] to the same shape; dropout needs keys, and whole rows. Collective."""
        on, H, drops = as_graph(graph), dense(H_local, "APPNP"), self.training and self.dropout > 0
        if drops and keys is None:
            raise InputError("APPNP with dropout needs keys=DropoutKeys(vertex_ids, seed, epoch)")
        Z, kind = H, self.normalisation
        for step in range(self.K):
            dropped = None
            if drops and keys is not None:
                dropped = EdgeDropout(self.dropout, keys.key(EDGES + step), keys.vertex_ids)
            AZ = on.aggregate(Aggregation(Z, normalisation=kind, dropped=dropped))
            Z = torch.add(AZ * (1 - self.alpha), on.own(H), alpha=self.alpha)
        return Z


class LGConv(Convolution):
    """``Z = D^-1/2 A D^-1/2 H`` (LightGCN, He et al. 2020); no parameters.

    Parameters
    ----------
    normalize : bool
        ``False``: A as it is.
    """

    def __init__(self, normalize: bool = True, **options: Any) -> None:
        super().__init__(options, aggr="add")
        self.normalisation = _normalisation(normalize, False)

    def aggregation(
        self, H: Features, graph: Graph, edge_attr: Tensor | None, keys: DropoutKeys | None
    ) -> Aggregation:
        """``D^-1/2 A D^-1/2 H``."""
        return Aggregation(dense(H, "LGConv"), normalisation=self.normalisation)


class TAGConv(Convolution):
    """``Z = Σ_k Â^k H W_k + b`` for k = 0 … K, ``Â = D^-1/2 A D^-1/2`` (Du et al. 2017)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 3,
        bias: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(options, aggr="add", in_channels=in_channels, out_channels=out_channels)
        self.K = check_integer("TAGConv K", K, 0)
        self.normalisation = _normalisation(normalize, False)
        self.lins = nn.ModuleList(
            Linear(in_channels, out_channels, bias=False) for _ in range(K + 1)
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, H_local: Features, graph: AnyGraph) -> Tensor:  # type: ignore[override]
        """``Σ_k Â^k H W_k``; the narrower travels. Collective.

        Where that is H W: ``H W_0 + Â (H W_1 + Â (H W_2 + …))``.
        """
        weights = [lin.weight for lin in self.lins if isinstance(lin, nn.Linear)]
        on, kind = as_graph(graph), self.normalisation
        H = H_local if isinstance(H_local, CSR) else dense(H_local, "TAGConv")
        Z, first = on.operand(Aggregation(H, weights[-1]))
        if first:
            for W in reversed(weights[:-1]):
                own = on.own(times(H, W))
                Z = on.aggregate(Aggregation(Z, normalisation=kind)) + own
            return _shifted(Z, self.bias)
        total = times(on.own(dense(H, "TAGConv")), weights[0])
        for W in weights[1:]:
            Z = on.aggregate(Aggregation(Z, normalisation=kind))
            total = total + times(Z, W)
        return _shifted(total, self.bias)


class GCN2Conv(Convolution):
    """``Z = ((1 − α) Â H + α H⁰) ((1 − β) I + β W)`` (GCNII, Chen et al. 2020).

    Called as ``layer(H, H⁰, graph)``. The names ``weight1`` and ``weight2`` are PyG's.

    Parameters
    ----------
    theta, layer : float and int, optional
        ``β = log(θ / layer + 1)``; 1 without them.
    shared_weights : bool
        ``False``: H⁰ has a matrix of its own.
    """

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
        super().__init__(options, aggr="add")
        check_integer("GCN2Conv channels", channels, 1)
        if (theta is None) != (layer is None):
            raise InputError("GCN2Conv: theta and layer go together")
        self.alpha = check_number("GCN2Conv alpha", alpha, 0, 1)
        self.beta = 1.0 if theta is None or layer is None else log(theta / layer + 1)
        self.normalisation = _normalisation(normalize, add_self_loops)
        self.weight1 = nn.Parameter(torch.empty(channels, channels))
        self.weight2 = None if shared_weights else nn.Parameter(torch.empty(channels, channels))
        self.reset()

    def forward(self, H_local: Tensor, H_0: Tensor, graph: AnyGraph) -> Tensor:  # type: ignore[override]
        """H_local [columns, f] and H⁰ of the same vertices to Z_local [rows, f]. Collective."""
        on, H = as_graph(graph), dense(H_local, "GCN2Conv")
        AH = on.aggregate(Aggregation(H, normalisation=self.normalisation)) * (1 - self.alpha)
        initial = on.own(dense(H_0, "GCN2Conv")) * self.alpha
        if self.weight2 is None:
            return self._mixed(AH + initial, self.weight1)
        return self._mixed(AH, self.weight1) + self._mixed(initial, self.weight2)

    def _mixed(self, H: Tensor, W: Tensor) -> Tensor:
        H, W = autocast(H), autocast(W)
        return torch.addmm(H, H, W, beta=1 - self.beta, alpha=self.beta)


def _normalisation(
    normalize: bool, add_self_loops: bool, *, improved: bool = False
) -> Normalisation:
    if normalize and add_self_loops:
        return "improved" if improved else "sym"
    return "plain" if normalize else "none"


def _shifted(Z: Tensor, bias: Tensor | None) -> Tensor:
    return Z if bias is None else Z + bias.to(Z.dtype)
